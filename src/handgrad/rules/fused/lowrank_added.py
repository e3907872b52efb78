"""A low-rank update added to what it updates, in place: none of the sums and scalings of whole feature maps is formed.

forward      low = a A          y ← y + s low B
backward     Δ_low = s (Δ' Bᵗ)      Δ ← Δ + Δ_low Aᵗ      ∂L/∂B = (s low)ᵗ Δ'      ∂L/∂A = aᵗ Δ_low
from         rules/lowrank.py, with s moved to the thin factor, of r columns instead of n_out
shapes       a ~ (..., n_in)   A ~ (n_in, r)   B ~ (r, n_out)   low, Δ_low ~ (..., r)   y, Δ' ~ (..., n_out)
assumes      y and Δ are results that nobody else holds: here, of the layer that is updated
cost         as rules/lowrank.py; y and Δ are passed over once, and by the explicit pair three times
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients


class Saved(NamedTuple):
    a: Tensor  # (..., n_in)  factor of ∂L/∂A
    low: Tensor  # (..., r)  factor of ∂L/∂B


def forward(y: Tensor, a: Tensor, A: Tensor, B: Tensor, s: float) -> tuple[Tensor, Saved]:
    low = a @ A
    rows(y).addmm_(rows(low), B, alpha=s)  # y is fresh: see `assumes`
    return y, Saved(a, low)


def backward(
    Delta: Tensor, saved: Saved, A: Tensor, B: Tensor, s: float, grads: Gradients, onto: Tensor | None = None
) -> Tensor:
    """Δ_low Aᵗ, added `onto` the Δ of what was updated, where that is given."""
    a, low = saved
    grads.outer("B", s * low, Delta)  # ∂L/∂B = (s low)ᵗ Δ'        of  s low B, by B
    Delta_low = s * (Delta @ B.mT)  #                              of  s low B, by low
    grads.outer("A", a, Delta_low)  # ∂L/∂A = aᵗ Δ_low             of  a @ A, by A
    if onto is None:
        return Delta_low @ A.mT  # Δ_low Aᵗ                        of  a @ A, by a
    rows(onto).addmm_(rows(Delta_low), A.mT)
    return onto


def rows(x: Tensor) -> Tensor:
    return x.view(-1, x.shape[-1])
