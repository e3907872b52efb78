"""GELU: a gate that lets a through in proportion to how large it is. Two forms that differ by up to 4.7e-4.

forward      a' = a Φ(a),   Φ the normal distribution function
             erf form       Φ(a) = (1 + erf(a/√2)) / 2
             tanh form      Φ(a) ≈ (1 + tanh(u/2)) / 2 = sigmoid(u),   u = 2√(2/π) (a + 0.044715 a³)     (GPT-2's)
backward     Δ = Δ' ∘ f'(a)
             erf form       f'(a) = Φ(a) + a φ(a),   φ(a) = exp(-a²/2)/√(2π)
             tanh form      f'(a) = Φ(a) + a Φ(a) (1 - Φ(a)) u',   u' = 2√(2/π) (1 + 3·0.044715 a²)
shapes       a, a', Δ', Δ ~ any, the same
cost         pointwise; saves a and Φ(a)
source       docs/equations.md, row "pointwise"; each backward is that of its own forward, never of the other form
"""

from __future__ import annotations

from math import pi, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run

LINEAR = 2 * sqrt(2 / pi)  # u = LINEAR a + CUBIC a³
CUBIC = LINEAR * 0.044715


class Saved(NamedTuple):
    a: Tensor  # any shape
    gate: Tensor  # Φ(a), the costly part of forward


def tanh_forward(a: Tensor, run: Run) -> tuple[Tensor, Saved]:
    u = torch.addcmul(a.new_tensor(LINEAR), a, a, value=CUBIC) * a
    gate = u.sigmoid()
    return a * gate, Saved(a, gate)


def tanh_backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    a, gate = saved
    du = torch.addcmul(a.new_tensor(LINEAR), a, a, value=3 * CUBIC)  # u'                of  u
    dgate = torch.addcmul(gate, gate, gate, value=-1).mul_(du)  # Φ (1 - Φ) u'           of  sigmoid(u)
    del du
    return torch.addcmul(gate, a, dgate, out=dgate).mul_(Delta)  # Δ' ∘ (Φ + a dΦ/da)   of  a * gate


def erf_forward(a: Tensor, run: Run) -> tuple[Tensor, Saved]:
    gate = (a * sqrt(0.5)).erf() * 0.5 + 0.5
    return a * gate, Saved(a, gate)


def erf_backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    a, gate = saved
    density = a.square().mul_(-0.5).exp_().mul_(1 / sqrt(2 * pi))  # φ = dΦ/da          of  gate
    return torch.addcmul(gate, a, density).mul_(Delta)  # Δ' ∘ (Φ + a φ)                     of  a * gate


GELU_TANH = Rule("gelu_tanh", Pair(tanh_forward, tanh_backward))
GELU_ERF = Rule("gelu_erf", Pair(erf_forward, erf_backward))
