"""From logits to the next token: greedy, or drawn from the softmax after penalty, temperature, top-k, top-p and min-p.

They apply in this order; each sees what the one before has left.

Everything here is float64 on the CPU, whatever the model ran in: one row of logits is small, and the same logits and
the same seed then give the same token on every device.

A logit of -∞ means that this token is impossible, and it is never drawn. NaN and +∞ mean that the model broke.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, NumericError, ShapeError

PENALTIES = (0.01, 100.0)  # no logit of any type can overflow within them


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    temperature   logits are divided by it; 0 is the same as greedy
    top_k         only the k most probable tokens; 0 is off, and more than the vocabulary is the whole vocabulary.
                  Exactly k are kept: among equal logits at the k-th place the lower ids stay
    top_p         only the smallest set of most probable tokens whose probabilities add up to at least p, the token
                  that crosses p included; 1 is off
    greedy        the most probable token; the lowest id where several are equal
    min_p         only tokens at least min_p times as probable as the most probable one; 0 is off
    repetition_penalty
                  positive logits of tokens that are in the window (prompt and new text) are divided by it, negative
                  ones multiplied; 1 is off, below 1 rewards repetition. It applies to greedy choices, too

    Raises ConfigError, with all that is wrong at once.

    >>> Sampling(temperature=-1.0, top_p=0.0)
    Traceback (most recent call last):
    handgrad.core.errors.ConfigError: temperature is -1.0, and must be a finite number of at least 0; top_p is 0.0, ...
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        wrong = []
        if not (isfinite(self.temperature) and self.temperature >= 0):
            wrong.append(f"temperature is {self.temperature}, and must be a finite number of at least 0")
        if type(self.top_k) is not int or self.top_k < 0:
            wrong.append(f"top_k is {self.top_k}, and must be a whole number of at least 0 (0 is off)")
        if not 0 < self.top_p <= 1:
            wrong.append(f"top_p is {self.top_p}, and must be above 0 and at most 1 (1 is off)")
        if not 0 <= self.min_p <= 1:
            wrong.append(f"min_p is {self.min_p}, and must be from 0 to 1 (0 is off)")
        if not PENALTIES[0] <= self.repetition_penalty <= PENALTIES[1]:
            wrong.append(
                f"repetition_penalty is {self.repetition_penalty}, and must be from {PENALTIES[0]} to {PENALTIES[1]} "
                "(1 is off)"
            )
        if wrong:
            raise ConfigError("; ".join(wrong))

    @property
    def certain(self) -> bool:
        """Nothing is left to chance."""
        return self.greedy or self.temperature == 0


def pick(logits: Tensor, sampling: Sampling, generator: torch.Generator | Sequence[torch.Generator]) -> Tensor:
    """The next token of each row: logits ~ (B, V) -> ids ~ (B,), int64, where the logits are.

    `generator` is a CPU generator, or one for each row; one number a row is drawn from it, none where nothing is left
    to chance.
    Raises NumericError for a row with NaN or +∞, or with nothing but -∞.

    >>> pick(torch.tensor([[0.0, 3.0, 1.0]]), Sampling(greedy=True), torch.Generator())
    tensor([1])
    """
    if sampling.certain and logits.ndim == 2 and logits.numel() and sound(logits):
        return logits.max(-1).indices  # the first of the largest, as argmax gives it, in half its time
    rows = checked(logits)
    cumulative = probabilities(rows, sampling).cumsum(-1)
    total = cumulative[:, -1:]
    u = drawn(len(rows), generator) * total
    # u is below the total except by rounding; then the last token that has any probability is the one that is meant.
    u = u.minimum(total.nextafter(torch.zeros(())))
    ids = torch.searchsorted(cumulative, u, right=True)  # the first column above u: never one of probability 0
    return ids[:, 0].to(logits.device)


def drawn(n: int, generator: torch.Generator | Sequence[torch.Generator]) -> Tensor:
    """n numbers ~ (n, 1) in [0, 1): all from one stream, or each from its own."""
    if isinstance(generator, torch.Generator):
        return torch.rand((n, 1), generator=generator, dtype=torch.float64)
    return torch.cat([torch.rand((1, 1), generator=own, dtype=torch.float64) for own in generator])


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """What is drawn from: logits ~ (B, V) -> P ~ (B, V), float64, rows that sum to 1.

    >>> probabilities(torch.tensor([[2.0, 1.0, 1.0, 0.0]]), Sampling(top_k=2)).ne(0)
    tensor([[ True,  True, False, False]])
    """
    rows = checked(logits)
    if sampling.certain:
        return torch.zeros_like(rows).scatter_(-1, rows.argmax(-1, keepdim=True), 1.0)
    # The maximum is taken out before the division, so that no temperature, however small, can overflow.
    scaled = (rows - rows.amax(-1, keepdim=True)) / sampling.temperature
    ordered, order = scaled.sort(stable=True, dim=-1, descending=True)
    if 0 < sampling.top_k < ordered.shape[-1]:
        ordered[:, sampling.top_k :] = -inf
    P = ordered.softmax(-1)
    if sampling.top_p < 1:
        mass_before = P.cumsum(-1).roll(1, -1)
        mass_before[:, 0] = 0.0
        P = P.masked_fill(mass_before >= sampling.top_p, 0.0)
        P /= P.sum(-1, keepdim=True)
    if sampling.min_p > 0:
        P = P.masked_fill(sampling.min_p * P[:, :1] > P, 0.0)
        P /= P.sum(-1, keepdim=True)
    return torch.zeros_like(P).scatter_(-1, order, P)


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """logits ~ (B, V), float64, where those of tokens in seen ~ (B, T) are less likely; ids of -1 are no tokens.

    >>> penalised(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[0, 1, -1]]), 2.0)
    tensor([[ 1., -4.,  2.]], dtype=torch.float64)
    """
    rows = logits.to("cpu", torch.float64)
    known = seen.to("cpu")
    known = known.where(known < rows.shape[1], -1)  # tokens in padded columns have no logit here
    hit = torch.zeros((len(rows), rows.shape[1] + 1), dtype=torch.bool).scatter_(1, known + 1, True)[:, 1:]
    return rows.where(~hit, rows.where(rows <= 0, rows / penalty).where(rows > 0, rows * penalty))


def checked(logits: Tensor) -> Tensor:
    if logits.ndim != 2 or 0 in logits.shape:
        raise ShapeError(f"sampling reads logits (batch, vocabulary), each at least 1; found {tuple(logits.shape)}")
    rows = logits.to("cpu", torch.float64)
    if bad := non_finite(rows):
        raise NumericError(f"no token can be drawn from these logits: {bad}. The model that made them is at fault")
    return rows


def sound(rows: Tensor) -> bool:
    """Is there a token to draw in every row? The largest logit tells: it is NaN or +∞ if any is, -∞ if all are."""
    return bool(rows.amax(-1).isfinite().all())


def non_finite(rows: Tensor) -> str:
    """What keeps these logits from being drawn from, in words; empty where nothing does."""
    for value, wrong in (("NaN", rows.isnan()), ("+infinity", rows == inf)):
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            return f"row {row} has {value} at id {column} ({int(wrong.sum())} in all)"
    if (nothing := (rows == -inf).all(-1)).any():
        return f"row {int(nothing.nonzero()[0])} is -infinity at every id"
    return ""
