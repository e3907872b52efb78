"""Logits as agreements with the embedding's rows; tied to it, the two gradients add in one slot.

forward      logits = a w_embᵗ
backward     Δ = Δ' w_emb          ∂L/∂w_emb = Δ'ᵗ a   (plus the embedding's own OHE(t)ᵗ Δ where tied)
from         Δ'·dlogits = Δ'·(da w_embᵗ + a dw_embᵗ)
shapes       a ~ (..., d)   w_emb ~ (V, d)   logits, Δ' ~ (..., V)
cost         2·N·d·V FLOPs forward, twice that backward; saves a
source       Boué, arXiv 2512.23329, "the whole network"; docs/equations.md, row "tying"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.product import product


class Saved(NamedTuple):
    a: Tensor  # (..., d)  one of the two factors of ∂L/∂w_emb


def forward(a: Tensor, w_emb: Tensor) -> tuple[Tensor, Saved]:
    return product(a, w_emb.mT), Saved(a)


def backward(Delta: Tensor, saved: Saved, w_emb: Tensor, grads: Gradients) -> Tensor:
    grads.outer("w_emb", Delta, saved.a)  # ∂L/∂w_emb = Δ'ᵗ a     of  a @ w_emb.mT, by w_emb
    return Delta @ w_emb  # Δ = Δ' w_emb                          of  a @ w_emb.mT, by a
