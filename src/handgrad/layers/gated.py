"""Gated MLPs, by composition alone: one branch says what, the other how much of it."""

from __future__ import annotations

from handgrad.core.combine import Chain, Fork, Gate, Sequence
from handgrad.core.rule import Rule
from handgrad.layers.linear import Linear
from handgrad.layers.pointwise import Pointwise
from handgrad.rules.gelu import GELU_TANH
from handgrad.rules.silu import SILU


def gated(width: int, inner: int, activation: Rule, bias: bool, std: float, std_out: float) -> Sequence:
    """(f(a w_gate) ∘ (a w_up)) w_down. Signals `gate`, after f, and `up`; their product `gated`; `down`."""
    gate = Sequence((Linear(width, inner, bias, std), Pointwise(activation)))
    product = Gate("gated", Fork({"gate": gate, "up": Linear(width, inner, bias, std)}))
    return Sequence((product, Chain({"down": Linear(inner, width, bias, std_out)})))


def swiglu(width: int, inner: int, bias: bool = False, std: float = 0.02, std_out: float = 0.02) -> Sequence:
    """(silu(a w_gate) ∘ (a w_up)) w_down.

    >>> sorted(swiglu(6, 4).slots())
    ['down.w', 'gate.w', 'up.w']
    """
    return gated(width, inner, SILU, bias, std, std_out)


def geglu(width: int, inner: int, bias: bool = False, std: float = 0.02, std_out: float = 0.02) -> Sequence:
    """(gelu(a w_gate) ∘ (a w_up)) w_down, with GELU's tanh form."""
    return gated(width, inner, GELU_TANH, bias, std, std_out)
