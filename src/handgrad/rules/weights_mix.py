"""Mixing: every unit adds up what it reads, each source by its weight.

forward      mixed = ρ v                         mixed_α = Σ_β ρ_{αβ} v_β, for each set of weights
backward     Δ_ρ = Δ vᵗ        Δ_v = ρᵗ Δ        one v shared by F sets of weights: Δ_v = Σ_f ρ_fᵗ Δ_f
from         Δ·d(ρ v) = (Δ vᵗ)·dρ + (ρᵗ Δ)·dv
shapes       ρ ~ (B, F, T, S)   v ~ (B, F, S, r), or (B, 1, S, r) where it is shared   mixed, Δ ~ (B, F, T, r)
             F sets of weights and r = 1 with v cut into single features is a diagonal matrix of weights
cost         2·B·F·T·S·r FLOPs forward, twice that backward; saves ρ and v
source       second source, "one sum over the sequence";
             docs/equations.md, rows "diagonal", "one-hot sum -> V_j sum", "heads"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    rho: Tensor  # (B, F, T, S)  factor of Δ_v
    v: Tensor  # (B, F or 1, S, r)  factor of Δ_ρ


def forward(rho: Tensor, v: Tensor, run: Run) -> tuple[Tensor, Saved]:
    return run.show("mixed", rho @ v), Saved(rho, v)


def backward(Delta: Tensor, saved: Saved, run: Run) -> tuple[Tensor, Tensor]:
    rho, v = saved
    Delta = run.show("Delta_mixed", Delta)
    Delta_rho = Delta @ v.mT  #                                           of  rho @ v, by rho
    Delta_v = rho.mT @ Delta  #                                           of  rho @ v, by v
    shared = v.shape[1] < Delta_v.shape[1]
    return Delta_rho, Delta_v.sum(1, keepdim=True) if shared else Delta_v  # of  one v, read by every ρ_f


MIX = Rule("weights_mix", Pair(forward, backward))
