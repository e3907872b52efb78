"""Product score: two tokens fit as far as their vectors point the same way.

forward      score = q kᵗ                        score_{αβ} = q_α·k_β, for each set of weights
backward     Δ_q = Δ k        Δ_k = Δᵗ q         one k shared by F sets of weights: Δ_k = Σ_f Δ_fᵗ q_f
from         Δ·d(q kᵗ) = (Δ k)·dq + (Δᵗ q)·dk
shapes       q ~ (B, F, T, r)   k ~ (B, F, S, r), or (B, 1, S, r) where it is shared   score, Δ ~ (B, F, T, S)
             q = k = x is the dot product; q = x A, k = x the bilinear form x_α A x_βᵗ; q = x w_q, k = x w_k the
             bilinear form of rank r, A = w_q w_kᵗ
cost         2·B·F·T·S·r FLOPs forward, twice that backward; saves q and k
source       second source, "product"; docs/equations.md, rows "tanh interaction / product", "bilinear", "low rank"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    q: Tensor  # (B, F, T, r)  factor of Δ_k
    k: Tensor  # (B, F or 1, S, r)  factor of Δ_q


def forward(q: Tensor, k: Tensor, run: Run) -> tuple[Tensor, Saved]:
    return q @ k.mT, Saved(q, k)


def backward(Delta: Tensor, saved: Saved, run: Run) -> tuple[Tensor, Tensor]:
    q, k = saved
    Delta_q = Delta @ k  #                                                of  q @ kᵗ, by q
    Delta_k = Delta.mT @ q  #                                             of  q @ kᵗ, by k
    shared = k.shape[1] < Delta_k.shape[1]
    return Delta_q, Delta_k.sum(1, keepdim=True) if shared else Delta_k  # of  one k, read by every q_f


PRODUCT = Rule("weights_product", Pair(forward, backward))
