"""A score that looks at one of the two tokens only: the same along a whole row, or along a whole column.

forward      END       score_{αβ} = y_α          the unit that reads; the sources do not matter
             SOURCE    score_{αβ} = y_β          the source; the units that read it do not matter
backward     END       Δ_y_α = Σ_β Δ_{αβ}
             SOURCE    Δ_y_β = Σ_α Δ_{αβ}
from         Δ·dscore = Σ_{αβ} Δ_{αβ} dy_α = Σ_α (Σ_β Δ_{αβ}) dy_α, and the same with α and β exchanged
shapes       y ~ (B, T, F)   score, Δ ~ (B, F, T, T)
assumes      T units read the same T tokens
cost         nothing is computed forward (a view); sums of B·F·T² numbers backward; saves nothing
source       second source, weights of one argument;
             docs/equations.md, rows "source only", "self only", "non-interaction terms"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    """Nothing: both directions are linear and know their shapes."""


def end_forward(y: Tensor, run: Run) -> tuple[Tensor, Saved]:
    return y.mT.unsqueeze(-1).expand(-1, -1, -1, y.shape[1]), Saved()


def end_backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    return Delta.sum(-1).mT  # Σ_β Δ_{αβ}      of  expand along β


def source_forward(y: Tensor, run: Run) -> tuple[Tensor, Saved]:
    return y.mT.unsqueeze(-2).expand(-1, -1, y.shape[1], -1), Saved()


def source_backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    return Delta.sum(-2).mT  # Σ_α Δ_{αβ}      of  expand along α


END = Rule("end", Pair(end_forward, end_backward))
SOURCE = Rule("source", Pair(source_forward, source_backward))
