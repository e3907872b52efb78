"""tanh: a number between -1 and 1.

forward      a' = tanh(a)
backward     Δ = Δ' ∘ (1 - a'²)
from         da' = (1 - tanh²(a)) da
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
    y = a.tanh()
    return y, Saved(y)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    return Delta * (1 - saved.y.square())  # Δ' ∘ (1 - a'²)     of  tanh(a)


TANH = Rule("tanh", Pair(forward, backward))
