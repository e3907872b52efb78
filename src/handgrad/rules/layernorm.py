"""Layer norm: each token's d features centred and scaled, then given a learned gain and offset.

forward      x = (a - μ) / σ,   μ = mean(a),   σ² = mean((a - μ)²) + ε        a' = x ∘ γ + 1 β
backward     D = Δ' ∘ γ         Δ = (D - mean(D) - x ∘ mean(D ∘ x)) / σ
             ∂L/∂γ = 1ᵗ(Δ' ∘ x)         ∂L/∂β = 1ᵗ Δ'
from         dx = (da - mean(da) - x mean(x ∘ da)) / σ, which is symmetric: D is projected off span{1, x}
             (exactly so at ε = 0), then divided by σ
shapes       a, x, a', Δ' ~ (..., d)   μ, σ ~ (..., 1)   γ, β ~ (d,)
assumes      the biased variance (divided by d, not d - 1), and ε inside the root
cost         pointwise; saves x and 1/σ. Statistics are formed in float32 at least
source       Boué, arXiv 2512.23329, "layer norm"; docs/equations.md, row "layer norm"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.run import Run, widened


class Saved(NamedTuple):
    x: Tensor  # (..., d)  factor of ∂L/∂γ, and the direction projected off
    over: Tensor  # (..., 1)  1/σ


def forward(a: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float, run: Run) -> tuple[Tensor, Saved]:
    centred = widened(a)
    centred = centred - centred.mean(-1, keepdim=True)
    over = (centred.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    x = run.show("x", (centred * over).to(a.dtype))
    y = x * gamma
    return (y if beta is None else y + beta), Saved(x, over)


def backward(Delta: Tensor, saved: Saved, gamma: Tensor, grads: Gradients, run: Run) -> Tensor:
    x, over = saved
    grads.scaled("gamma", x, Delta)  # ∂L/∂γ = 1ᵗ(Δ' ∘ x)     of  x * gamma, by gamma
    grads.total("beta", Delta)  # ∂L/∂β = 1ᵗ Δ'               of  + beta
    D = run.show("Delta_x", Delta * gamma)  # D = Δ' ∘ γ      of  x * gamma, by x
    D, x = widened(D), widened(x)
    along_1 = D.mean(-1, keepdim=True)  #                     of  centred - mean
    along_x = (D * x).mean(-1, keepdim=True)  #               of  / σ, which also depends on a
    return torch.addcmul(D - along_1, x, along_x, value=-1).mul_(over).to(Delta.dtype)  # (D - … - x ∘ …)/σ
