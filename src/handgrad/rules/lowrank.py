"""Low-rank update (LoRA): what a frozen matrix should change by, written as a product of two thin matrices.

forward      low = a A         y = s low B,   added to the frozen a w + 1 b;   s = α/r, or α/√r
backward     Δ_low = s Δ' Bᵗ        Δ = Δ_low Aᵗ        ∂L/∂B = lowᵗ (s Δ')        ∂L/∂A = aᵗ Δ_low
from         Δ'·d(s a A B) = s Δ'·(da A B + a dA B + a A dB)
shapes       a, Δ ~ (..., n_in)   A ~ (n_in, r)   B ~ (r, n_out)   low ~ (..., r)   y, Δ' ~ (..., n_out)
assumes      at first A is random and B = 0: then y = 0, and ∂L/∂A = 0 exactly while ∂L/∂B is not
cost         2·N·r·(n_in + n_out) FLOPs forward, twice that backward; saves a and low
source       docs/equations.md, row "LoRA"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run
from handgrad.rules.fused import lowrank_added


class Saved(NamedTuple):
    a: Tensor  # (..., n_in)  factor of ∂L/∂A
    low: Tensor  # (..., r)  factor of ∂L/∂B; thin, so cheaper to keep than to form again


def forward(a: Tensor, A: Tensor, B: Tensor, s: float, run: Run) -> tuple[Tensor, Saved]:
    low = run.show("low", a @ A)
    return s * (low @ B), Saved(a, low)


def backward(Delta: Tensor, saved: Saved, A: Tensor, B: Tensor, s: float, grads: Gradients, run: Run) -> Tensor:
    a, low = saved
    D = s * Delta  #                                       of  s * (…)
    grads.outer("B", low, D)  # ∂L/∂B = lowᵗ (s Δ')        of  low @ B, by B
    Delta_low = run.show("Delta_low", D @ B.mT)  #         of  low @ B, by low
    grads.outer("A", a, Delta_low)  # ∂L/∂A = aᵗ Δ_low     of  a @ A, by A
    return Delta_low @ A.mT  # Δ = Δ_low Aᵗ                of  a @ A, by a


INNER = ("base", "lora", "lora.low", "Delta_base", "Delta_lora", "lora.Delta_low", "Delta_from_base", "Delta_from_lora")
LOWRANK = Rule("lowrank", Pair(forward, backward), Pair(lowrank_added.forward, lowrank_added.backward), INNER)


def merged(w: Tensor, A: Tensor, B: Tensor, s: float) -> Tensor:
    """The one matrix that does the same: w + s A B ~ (n_in, n_out). Formed in float32 at least, and rounded to the type
    of w once; w is left as it is."""
    dtype = w.dtype
    w, A, B = (x.to(torch.promote_types(dtype, torch.float32)) for x in (w, A, B))
    return (w + s * (A @ B)).to(dtype)
