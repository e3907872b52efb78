"""Fixed weights: one learned matrix for every pair of positions, as in any network whose input has a fixed size.

forward      out_α = Σ_{β≤α} x_β W_{αβ} = [x_0, …, x_α] w_α
backward     Δ_x_β = Σ_{α≥β} Δ_α W_{αβ}ᵗ            ∂L/∂w_α = [x_0, …, x_α]ᵗ Δ_α
from         Δ_α·dout_α = Δ_α·(d[x_0, …, x_α] w_α + [x_0, …, x_α] dw_α)
shapes       x ~ (B, T, d)   w_α ~ ((α+1)·d, m), block β of its rows is W_{αβ}   out, Δ ~ (B, T, m)
assumes      there is a w_α for every position: T is at most what was learned, and no longer input has any weights
cost         B·T·(T+1)·d·m FLOPs forward, twice that backward, and T·(T+1)/2·d·m parameters; saves x
source       second source, "fixed weights"; docs/equations.md, row "fixed weights"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients


class Saved(NamedTuple):
    x: Tensor  # (B, T, d)  its first α+1 tokens are a factor of ∂L/∂w_α


def forward(x: Tensor, w: Sequence[Tensor]) -> tuple[Tensor, Saved]:
    out = [x[:, : t + 1].flatten(1) @ w[t] for t in range(x.shape[1])]
    return torch.stack(out, 1), Saved(x)


def backward(Delta: Tensor, saved: Saved, w: Sequence[Tensor], grads: Gradients) -> Tensor:
    x = saved.x
    Delta_x = torch.zeros_like(x)
    for t, Delta_t in enumerate(Delta.unbind(1)):
        read = x[:, : t + 1]
        (grads / str(t)).outer("w", read.flatten(1), Delta_t)  # [x_0, …, x_α]ᵗ Δ_α     of  flatten(1) @ w[t], by w[t]
        Delta_x[:, : t + 1] += (Delta_t @ w[t].mT).view_as(read)  # Δ_α w_αᵗ, cut       of  flatten(1) @ w[t], by x
    return Delta_x
