"""Dropout: a random part of the features is set to 0, the rest made larger so that the mean stays.

forward      a' = a ∘ m/(1-p),   m ~ Bernoulli(1-p) elementwise; a' = a in evaluation
backward     Δ  = Δ' ∘ m/(1-p)           the same mask
shapes       a, m, a', Δ', Δ ~ any, the same
cost         pointwise; saves m as one byte an element
source       docs/equations.md, row "dropout"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.run import Run


class Saved(NamedTuple):
    m: Tensor | None  # bool, the shape of a: what was kept; None in evaluation
    p: float  # the part that is dropped


def forward(a: Tensor, p: float, run: Run) -> tuple[Tensor, Saved]:
    if run.seed is None or p == 0:
        return a, Saved(None, p)
    m = torch.rand(a.shape, generator=run.random(a.device), device=a.device) >= p
    return a * m / (1 - p), Saved(m, p)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    m, p = saved
    return Delta if m is None else Delta * m / (1 - p)  # Δ' ∘ m/(1-p)     of  a * m / (1 - p)
