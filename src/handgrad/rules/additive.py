"""Additive score: how well two tokens fit, by a small network with one hidden layer over the pair of them.

forward      pair_{αβ} = tanh(q_α + k_β)                         score_{αβ} = pair_{αβ} w
backward     Δ_pair = Δ wᵗ                                        ∂L/∂w = Σ_{αβ} pair_{αβ}ᵗ Δ_{αβ}
             D = Δ_pair ∘ (1 - pair²)                             Δ_q = Σ_β D_{αβ}        Δ_k = Σ_α D_{αβ}
from         Δ·d(pair w) = (Δ wᵗ)·dpair + (pairᵗ Δ)·dw,   dpair_{αβ} = (1 - pair²_{αβ}) ∘ (dq_α + dk_β):
             q_α stands in a whole row of pairs and k_β in a whole column, so each adds up what its pairs receive
shapes       q ~ (B, T, d_a)   k ~ (B, S, d_a)   pair ~ (B, T, S, d_a)   w ~ (d_a, F)   score, Δ ~ (B, F, T, S)
             F functions share one hidden layer: one is Bahdanau's; heads, or entries of a matrix, need more
assumes      q = x_α W_a and k = x_β W_b + b come from layers of their own
cost         B·T·S·d_a·(2F + 1) FLOPs and as many tanh's; the explicit pair saves B·T·S·d_a numbers. The chunked pair
             saves q and k alone, forms `pair` for as many α at a time as give at most CHUNK of its entries, and forms
             it again on the way back: one more forward, and memory that grows with S, not with T·S
source       second source, "Bahdanau"; docs/equations.md, row "additive (Bahdanau) score"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run

CHUNK = 1 << 20  # entries of `pair` that the chunked pair forms at a time, for each sample


class Saved(NamedTuple):
    pair: Tensor  # (B, T, S, d_a)  factor of ∂L/∂w; the derivative of tanh is 1 - pair²
    w: Tensor  # (d_a, F)


class SavedChunked(NamedTuple):
    q: Tensor  # (B, T, d_a)  pair is formed again from q and k
    k: Tensor  # (B, S, d_a)
    w: Tensor  # (d_a, F)
    rows: int  # α's at a time


def forward(q: Tensor, k: Tensor, w: Tensor, run: Run) -> tuple[Tensor, Saved]:
    pair = run.show("pair", (q.unsqueeze(2) + k.unsqueeze(1)).tanh())
    return (pair @ w).movedim(-1, 1), Saved(pair, w)


def backward(Delta: Tensor, saved: Saved, grads: Gradients, run: Run) -> tuple[Tensor, Tensor]:
    pair, w = saved
    Delta = Delta.movedim(1, -1)  #                                   of  movedim
    grads.outer("w", pair, Delta)  # ∂L/∂w = Σ pairᵗ Δ                of  pair @ w, by w
    Delta_pair = run.show("Delta_pair", Delta @ w.mT)  #              of  pair @ w, by pair
    D = Delta_pair * (1 - pair.square())  #                           of  tanh
    Delta_q = D.sum(2)  #                                             of  q.unsqueeze(2) +: once in each column β
    return Delta_q, D.sum(1)  #                                       of  + k.unsqueeze(1): once in each row α


def chunked_forward(q: Tensor, k: Tensor, w: Tensor, run: Run, chunk: int = CHUNK) -> tuple[Tensor, SavedChunked]:
    rows = max(1, chunk // max(1, k.shape[1] * k.shape[2]))
    scores = [((part.unsqueeze(2) + k.unsqueeze(1)).tanh() @ w).movedim(-1, 1) for part in torch.split(q, rows, 1)]
    return torch.cat(scores, 2), SavedChunked(q, k, w, rows)


def chunked_backward(Delta: Tensor, saved: SavedChunked, grads: Gradients, run: Run) -> tuple[Tensor, Tensor]:
    q, k, w, rows = saved
    Delta_q, Delta_k = [], torch.zeros_like(k)
    for part, Delta_part in zip(torch.split(q, rows, 1), torch.split(Delta, rows, 2), strict=True):
        pair = (part.unsqueeze(2) + k.unsqueeze(1)).tanh()
        below_q, below_k = backward(Delta_part, Saved(pair, w), grads, run)  # the explicit pair, on these α alone
        Delta_q.append(below_q)
        Delta_k += below_k
    return torch.cat(Delta_q, 1), Delta_k


ADDITIVE = Rule(
    "additive", Pair(forward, backward), Pair(chunked_forward, chunked_backward), inner=("pair", "Delta_pair")
)
