"""A whole matrix of weights for every pair: each of its d·m entries is a function of its own.

forward      W_{αβ} = the d·m functions at (α, β), as a (d, m) matrix          out_α = Σ_β x_β W_{αβ}
backward     Δ_W_{αβ} = x_βᵗ Δ_α                                               Δ_x_β = Σ_α Δ_α W_{αβ}ᵗ
from         Δ_α·dout_α = Σ_β Δ_α·(dx_β W_{αβ} + x_β dW_{αβ})
shapes       f, Δ_f ~ (B, d·m, T, S), entry (i, j) of W at i·m + j   x ~ (B, S, d)   out, Δ ~ (B, T, m)
cost         2·B·T·S·d·m FLOPs forward, twice that backward; saves f and x: d·m numbers for every pair of tokens,
             which is why nobody does this
source       second source, "matrix of functions"; docs/equations.md, rows "full matrix function", "source and end"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    W: Tensor  # (B, d, m, T, S)  factor of Δ_x
    x: Tensor  # (B, S, d)  factor of Δ_W


def forward(f: Tensor, x: Tensor, run: Run) -> tuple[Tensor, Saved]:
    W = f.reshape(f.shape[0], x.shape[-1], -1, *f.shape[2:])
    return run.show("mixed", torch.einsum("bijts,bsi->btj", W, x)), Saved(W, x)


def backward(Delta: Tensor, saved: Saved, run: Run) -> tuple[Tensor, Tensor]:
    W, x = saved
    Delta = run.show("Delta_mixed", Delta)
    Delta_W = torch.einsum("bsi,btj->bijts", x, Delta)  # x_βᵗ Δ_α          of  x_β W_{αβ}, by W
    Delta_x = torch.einsum("bijts,btj->bsi", W, Delta)  # Σ_α Δ_α W_{αβ}ᵗ   of  x_β W_{αβ}, by x
    return Delta_W.flatten(1, 2), Delta_x


MATRIX = Rule("weights_matrix", Pair(forward, backward))
