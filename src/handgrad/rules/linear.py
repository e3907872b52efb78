"""Fully connected layer.

forward      a' = a w + 1 b
backward     Δ  = Δ' wᵗ          ∂L/∂w = aᵗ Δ'          ∂L/∂b = 1ᵗ Δ'
from         Δ'·da' = Δ'·(da w + a dw + 1 db)
shapes       a ~ (..., n_in)   w ~ (n_in, n_out)   b ~ (n_out,)   a', Δ' ~ (..., n_out)
cost         2·N·n_in·n_out FLOPs forward, twice that backward; saves a
source       Boué, arXiv 2512.23329, "fully connected layer"; docs/equations.md, row "linear"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.product import product


class Saved(NamedTuple):
    a: Tensor  # (..., n_in)  one of the two factors of ∂L/∂w


def forward(a: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Saved]:
    y = product(a, w)
    return (y if b is None else y.add_(b)), Saved(a)


def backward(Delta: Tensor, saved: Saved, w: Tensor, grads: Gradients) -> Tensor:
    grads.outer("w", saved.a, Delta)  # ∂L/∂w = aᵗ Δ'     of  a @ w, by w
    grads.total("b", Delta)  # ∂L/∂b = 1ᵗ Δ'              of  + b
    return Delta @ w.mT  # Δ = Δ' wᵗ                      of  a @ w, by a
