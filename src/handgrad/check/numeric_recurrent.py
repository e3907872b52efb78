"""Numeric checks of the recurrent part that are no law of a single case. Each raises `LawBroken`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from handgrad.check.case import normal
from handgrad.check.cases import case
from handgrad.check.laws import require, same
from handgrad.core import Accumulate, Run
from handgrad.rules import additive


def chunked() -> None:
    """The chunked additive score equals the explicit one, for chunks that do and do not divide T."""
    q, k, w = normal((2, 7, 3), 1, "q"), normal((2, 5, 3), 1, "k"), normal((3, 2), 1, "w")
    Delta = normal((2, 2, 7, 5), 1, "Delta")
    right, saved = additive.forward(q, k, w, Run())
    g = {"w": torch.zeros_like(w)}
    below = additive.backward(Delta, saved, Accumulate(g), Run())
    for rows in (1, 2, 7, 11):
        found, kept = additive.chunked_forward(q, k, w, Run(), chunk=rows * 15)
        require(kept.rows == rows, f"{kept.rows} rows at a time, and {rows} were asked for")
        h = {"w": torch.zeros_like(w)}
        below_chunked = additive.chunked_backward(Delta, kept, Accumulate(h), Run())
        same(found, right, f"the score in chunks of {rows}")
        same(h["w"], g["w"], f"the gradient of w in chunks of {rows}")
        for D, E, name in zip(below_chunked, below, "qk", strict=True):
            same(D, E, f"Delta_{name} in chunks of {rows}")


def carried() -> None:
    """An error that enters at the last token alone reaches the first one, through the states between them."""
    for name in ("rnn", "lstm", "growing memory"):
        at = case(name)
        p, a, Delta = at.draw(1)
        Delta[:, :-1] = 0
        _, saved = at.layer.forward(p.tree, a, Run())
        below = at.layer.backward(p.tree, Delta, saved, Accumulate(p.layout.zeros(torch.float64).tree), Run())
        require(bool(below[:, 0].any()), f"{name}: nothing of the last token's error reaches the first token")


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation forms."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        for x in out if isinstance(out, list | tuple) else (out,):
            if isinstance(x, Tensor):
                self.size_bytes = max(self.size_bytes, x.untyped_storage().nbytes())
        return out


def largest_bytes(tokens: int, hidden: int, chunk: int | None) -> int:
    """The largest tensor of one forward and backward pass of an additive score, float32; None: the explicit pair."""
    q = k = torch.zeros(1, tokens, hidden)
    w = torch.zeros(hidden, 1)
    with Largest() as largest:
        if chunk is None:
            score, saved = additive.forward(q, k, w, Run())
            additive.backward(score, saved, Accumulate({"w": torch.zeros_like(w)}), Run())
        else:
            score, kept = additive.chunked_forward(q, k, w, Run(), chunk)
            additive.chunked_backward(score, kept, Accumulate({"w": torch.zeros_like(w)}), Run())
    return largest.size_bytes


def memory() -> None:
    """The explicit pair forms T² d_a numbers at once; the chunked pair no more than a chunk, or the scores."""
    T, d_a = 64, 32
    explicit, chunks = largest_bytes(T, d_a, None), largest_bytes(T, d_a, chunk=4 * T * d_a)
    require(explicit == 4 * T * T * d_a, f"the explicit pair formed {explicit} bytes, not 4·T²·d_a")
    require(
        chunks <= 4 * 4 * T * d_a, f"the chunked pair formed {chunks} bytes, more than a chunk of {4 * 4 * T * d_a}"
    )
