"""Attention weights made fit for a page: checked, rounded, and kept below a stated size.

A map is stored as rows of whole numbers, one unit = 1/10,000. Where nothing in any map looks to the right of the
diagonal, row i holds its first i + 1 weights only.

Known limits: at most TOKEN_LIMIT tokens, so that labels stay readable, and at most CHARACTER_LIMIT characters of
weights; beyond it each block keeps its first heads. `Packed.notes` says in words what was left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from handgrad.core.errors import NumericError, ShapeError
from handgrad.inspect.text import printable, shorten, visible

CHARACTER_LIMIT = 2_000_000
TOKEN_LIMIT = 128
UNITS = 10_000
# bfloat16 rounds each weight by up to 1/256 of itself, and so may the sum of a row
ROW_SUM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Packed:
    """`maps` is a list of {"block", "head", "rows"}; `labels` short and `tokens` longer forms of the kept tokens."""

    maps: list[dict[str, Any]]
    tokens: list[str]
    labels: list[str]
    causal: bool
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """What the page's script reads."""
        return {
            "units": UNITS,
            "causal": self.causal,
            "tokens": self.tokens,
            "labels": self.labels,
            "maps": self.maps,
        }


def check(tokens: Sequence[str], attention: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The maps as arrays (H, T, T), T the number of tokens, in the precision they came in.

    Raises ShapeError where a shape does not fit the tokens, NumericError where a finite row is not a set of weights
    (negative, or a sum other than 1). Rows that are not finite pass: `pack` leaves their maps out and says so.

    >>> check(["a", "b"], {"block 0": np.eye(3)[None]})
    Traceback (most recent call last):
    handgrad.core.errors.ShapeError: the sentence has 2 tokens, but the attention of 'block 0' is over 3 ...
    """
    checked = {}
    for name, given in attention.items():
        weights = np.asarray(given)
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2]:
            raise ShapeError(
                f"attention of '{name}' must have the shape (heads, tokens, tokens); found {weights.shape}."
            )
        if weights.shape[1] != len(tokens):
            raise ShapeError(
                f"the sentence has {len(tokens):,} tokens, but the attention of '{name}' is over "
                f"{weights.shape[1]:,} positions, so labels would name the wrong places. "
                "Give the tokens that the model read, one for each position."
            )
        _check_rows(name, weights)
        checked[name] = weights
    return checked


def _check_rows(name: str, weights: np.ndarray) -> None:
    sums = weights.sum(axis=2, dtype=np.float64)
    finite = np.isfinite(weights).all(axis=2)
    wrong = finite & ((np.abs(sums - 1) > ROW_SUM_TOLERANCE) | (weights.min(axis=2, initial=0.0) < 0))
    if wrong.any():
        head, row = (int(i) for i in np.argwhere(wrong)[0])
        raise NumericError(
            f"attention of '{name}', head {head}, row {row}: weights from {weights[head, row].min():.4g} "
            f"with the sum {sums[head, row]:.4g}; each row must be at least 0 and sum to 1. "
            "Give the weights after the softmax, with keys on the last axis."
        )


def pack(tokens: Sequence[str], attention: Mapping[str, np.ndarray], *, limit: int = CHARACTER_LIMIT) -> Packed:
    """Round and bound the maps; `limit` is in characters of JSON.

    >>> packed = pack(["a", " "], {"block 0": np.array([[[1.0, 0.0], [0.25, 0.75]]])})
    >>> packed.maps, packed.labels
    ([{'block': 'block 0', 'head': 0, 'rows': [[10000], [2500, 7500]]}], ['a', '·'])
    """
    checked = check(tokens, attention)
    notes: list[str] = []
    everything = [(name, head) for name, weights in checked.items() for head in range(weights.shape[0])]
    wanted = [(name, head) for name, head in everything if np.isfinite(checked[name][head]).all()]
    if len(wanted) < len(everything):
        notes.append(
            f"{len(everything) - len(wanted):,} of {len(everything):,} attention maps hold values that are not finite "
            "(NaN or infinite) and are left out."
        )
    causal = all(not np.triu(checked[name][head], k=1).any() for name, head in wanted)
    length = min(len(tokens), TOKEN_LIMIT)
    maps = _fill(checked, wanted, length, causal, limit)
    if wanted and length < len(tokens):
        mass = "" if causal else ", so the weights of a row need not sum to 1"
        notes.append(f"Shown here: the first {length:,} of {len(tokens):,} tokens, to keep labels readable{mass}.")
    if len(maps) < len(wanted):
        notes.append(
            f"Shown here: {len(maps):,} of {len(wanted):,} attention maps, the first heads of each block, "
            f"to keep attention data below {limit:,} characters."
        )
    labels = [visible(token) for token in tokens[:length]]
    return Packed(
        maps=maps,
        tokens=[shorten(label, 60) for label in labels],
        labels=[shorten(label, 10) for label in labels],
        causal=causal,
        notes=notes,
    )


def _fill(
    checked: Mapping[str, np.ndarray], wanted: Sequence[tuple[str, int]], length: int, causal: bool, limit: int
) -> list[dict[str, Any]]:
    """As many maps as fit: the first head of every block, then the second of every block, and so on."""
    order = {name: i for i, name in enumerate(checked)}
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    left = limit
    for name, head in sorted(wanted, key=lambda pair: (pair[1], order[pair[0]])):
        entry = {"block": printable(name), "head": head, "rows": _rows(checked[name][head, :length, :length], causal)}
        left -= len(json.dumps(entry, separators=(",", ":"))) + 1
        if left < 0:
            break
        kept[name, head] = entry
    return [kept[pair] for pair in wanted if pair in kept]


def _rows(weights: np.ndarray, causal: bool) -> list[list[int]]:
    whole: list[list[int]] = np.rint(weights.astype(np.float64) * UNITS).astype(int).tolist()
    return [row[: i + 1] for i, row in enumerate(whole)] if causal else whole
