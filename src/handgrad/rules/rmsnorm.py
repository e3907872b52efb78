"""RMS norm: each token's d features divided by their root mean square, then given a learned gain. Nothing is centred.

forward      x = a / ρ,   ρ² = mean(a²) + ε        a' = x ∘ γ
backward     D = Δ' ∘ γ         Δ = (D - x ∘ mean(D ∘ x)) / ρ         ∂L/∂γ = 1ᵗ(Δ' ∘ x)
from         dx = (da - x mean(x ∘ da)) / ρ, which is symmetric: D is projected off x (exactly so at ε = 0), then
             divided by ρ
shapes       a, x, a', Δ' ~ (..., d)   ρ ~ (..., 1)   γ ~ (d,)
assumes      ε inside the root
cost         pointwise; saves x and 1/ρ. The mean square is formed in float32 at least
source       docs/equations.md, row "RMS norm"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.run import Run, widened


class Saved(NamedTuple):
    x: Tensor  # (..., d)  factor of ∂L/∂γ, and the direction projected off
    over: Tensor  # (..., 1)  1/ρ


def forward(a: Tensor, gamma: Tensor, epsilon: float, run: Run) -> tuple[Tensor, Saved]:
    wide = widened(a)
    over = (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    x = run.show("x", (wide * over).to(a.dtype))
    return x * gamma, Saved(x, over)


def backward(Delta: Tensor, saved: Saved, gamma: Tensor, grads: Gradients, run: Run) -> Tensor:
    x, over = saved
    grads.scaled("gamma", x, Delta)  # ∂L/∂γ = 1ᵗ(Δ' ∘ x)     of  x * gamma, by gamma
    D = run.show("Delta_x", Delta * gamma)  # D = Δ' ∘ γ      of  x * gamma, by x
    D, x = widened(D), widened(x)
    along_x = (D * x).mean(-1, keepdim=True)  #               of  over, which also depends on a
    return torch.addcmul(D, x, along_x, value=-1).mul_(over).to(Delta.dtype)  # (D - x ∘ …)/ρ     of  wide * over
