"""Temperature: scores divided by τ before the softmax. Above 1 the weights become more equal, below 1 more selective.

forward      a' = a / τ          softmax(a') = softmax(a/τ)
backward     Δ  = Δ' / τ         dL/dτ = -(1/τ) Σ (Δ' ∘ a')      where τ is learned
from         Δ'·da' = (Δ'/τ)·da - (Δ'·a/τ²) dτ,   and a/τ² = a'/τ
shapes       a, a', Δ', Δ ~ any, the same   τ ~ (1,), or a plain number where it is fixed
assumes      τ ≠ 0. Scores are linear in the queries, so (q/τ) kᵗ = (q kᵗ)/τ: a head divides its queries, which is
             T·d_ρ divisions instead of T·S, and every form of attention can stay as it is
cost         pointwise; saves a'
source       second source, on sharpening the weights; docs/equations.md, row "temperature"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients


class Saved(NamedTuple):
    cooled: Tensor  # a', the shape of a: one of the two factors of dL/dτ


def forward(a: Tensor, tau: Tensor | float) -> tuple[Tensor, Saved]:
    cooled = a / tau
    return cooled, Saved(cooled)


def backward(Delta: Tensor, saved: Saved, tau: Tensor | float, grads: Gradients) -> Tensor:
    Delta = Delta / tau  # Δ = Δ'/τ                                                        of  a / tau, by a
    grads.scaled("tau", column(saved.cooled), column(-Delta))  # dL/dτ = -Σ Δ ∘ a'         of  a / tau, by tau
    return Delta


def column(x: Tensor) -> Tensor:
    """A sample's elements below each other: one parameter serves them all, so its gradient sums over every axis."""
    return x.reshape(len(x), -1, 1)
