"""ReLU: what is negative is cut off.

forward      a' = max(a, 0)
backward     Δ = Δ' ∘ [a > 0]           the derivative at 0 is taken as 0
shapes       a, a', Δ', Δ ~ any, the same
cost         pointwise; saves the sign as one byte an element
source       docs/equations.md, row "pointwise"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    positive: Tensor  # bool, the shape of a


def forward(a: Tensor, run: Run) -> tuple[Tensor, Saved]:
    return a.relu(), Saved(a > 0)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    return Delta * saved.positive  # Δ' ∘ [a > 0]     of  max(a, 0)


RELU = Rule("relu", Pair(forward, backward))
