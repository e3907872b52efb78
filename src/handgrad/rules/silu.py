"""SiLU: a let through in proportion to its own sigmoid. GELU's relative, and the gate of SwiGLU.

forward      a' = a σ(a),   σ the sigmoid
backward     Δ = Δ' ∘ (σ(a) + a σ(a) (1 - σ(a)))
from         da' = (σ + a σ') da,   σ' = σ (1 - σ)
shapes       a, a', Δ', Δ ~ any, the same
cost         pointwise; saves a and σ(a)
source       docs/equations.md, row "pointwise"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    a: Tensor  # any shape
    gate: Tensor  # σ(a), the costly part of forward


def forward(a: Tensor, run: Run) -> tuple[Tensor, Saved]:
    gate = a.sigmoid()
    return a * gate, Saved(a, gate)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    a, gate = saved
    dgate = torch.addcmul(gate, gate, gate, value=-1)  # σ (1 - σ)       of  sigmoid(a)
    return torch.addcmul(gate, a, dgate).mul_(Delta)  # Δ' ∘ (σ + a σ')  of  a * gate


SILU = Rule("silu", Pair(forward, backward))
