"""Embedding: a lookup, which is a product with one-hot rows. The terminal layer: nothing flows below token ids.

forward      a = OHE(t) w_emb                (token)         a = w_pos[first : first + T]          (position)
backward     ∂L/∂w_emb = OHE(t)ᵗ Δ           (token)         ∂L/∂w_pos = OHE(position)ᵗ Δ          (position)
from         Δ·da = Δ·(OHE(t) dw_emb) = (OHE(t)ᵗ Δ)·dw_emb: the rows of a repeated token add
shapes       t ~ (B, T) ids   w_emb ~ (V, d)   w_pos ~ (T_context, d)   a, Δ ~ (B, T, d); (T, d) for the position
cost         no FLOPs; saves the ids
source       Boué, arXiv 2512.23329, section 2; docs/equations.md, rows "token embedding" and "learned position"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients


class Saved(NamedTuple):
    ids: Tensor  # (B, T) or (T,)  which row each Δ row goes to


def forward(ids: Tensor, w: Tensor) -> tuple[Tensor, Saved]:
    return w[ids], Saved(ids)


def backward(name: str, Delta: Tensor, saved: Saved, grads: Gradients) -> None:
    grads.rows(name, saved.ids, Delta)  # ∂L/∂w = OHE(t)ᵗ Δ     of  w[ids]
