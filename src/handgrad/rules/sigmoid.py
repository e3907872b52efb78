"""Sigmoid: a number between 0 and 1, the degree to which a gate is open.

forward      a' = 1 / (1 + exp(-a))
backward     Δ = Δ' ∘ a' ∘ (1 - a')
from         da' = exp(-a)/(1 + exp(-a))² da = a' (1 - a') da
shapes       a, a', Δ', Δ ~ any, the same
cost         pointwise; saves a', from which the slope follows without another exp
source       docs/equations.md, row "pointwise"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    y: Tensor  # a', any shape


def forward(a: Tensor, run: Run) -> tuple[Tensor, Saved]:
    y = a.sigmoid()
    return y, Saved(y)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    y = saved.y
    return Delta * (y * (1 - y))  # Δ' ∘ a' ∘ (1 - a')     of  sigmoid(a)


SIGMOID = Rule("sigmoid", Pair(forward, backward))
