"""Sinusoidal positions: a fixed table of sines and cosines, from fast to slow, is added to the stream.

forward      a' = a + S,   S[t, 2i] = sin(t ω_i),   S[t, 2i+1] = cos(t ω_i),   ω_i = base^(-2i/d)
backward     Δ = Δ'           nothing is learned, so Δ passes whole
from         Δ'·d(a + S) = Δ'·da
shapes       a, a', Δ', Δ ~ (B, T, d)   S ~ (T, d) or (B, T, d)   t ~ (T,) or (B, T) positions
assumes      nothing of d: where it is odd, the last sine stands without its cosine
cost         pointwise; saves nothing
source       docs/equations.md, row "sinusoidal position"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    """Nothing: backward is the identity."""


def table(t: Tensor, d: int, base: float) -> Tensor:
    """S at the positions t, in float64: at position 10,000 float32 angles are up to 5e-4 off."""
    omega = base ** (-torch.arange(0, d, 2, dtype=torch.float64, device=t.device) / d)
    phi = t[..., None] * omega  # (..., T, ⌈d/2⌉)
    return torch.stack((phi.sin(), phi.cos()), -1).flatten(-2)[..., :d]


def forward(a: Tensor, S: Tensor, run: Run) -> tuple[Tensor, Saved]:
    return a + S.to(a), Saved()


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    return Delta  # Δ = Δ'     of  a + S


SINUSOIDAL = Rule("sinusoidal", Pair(forward, backward))
