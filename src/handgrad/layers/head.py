"""One attention head by itself, with widths of its own, as the derivation writes it.

q, k ~ (B, T, d_ρ) and v ~ (B, T, d_h) leave one input on three branches; a_h = attend(q, k, v) ~ (B, T, d_h).
Going back the three branches meet at the input: Δ = Δ_q w_qᵗ + Δ_k w_kᵗ + Δ_v w_vᵗ, shown as `Delta_from_query`,
`Delta_from_key` and `Delta_from_value`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from handgrad.core.combine import Fork, inside
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.run import Run
from handgrad.layers.linear import Linear
from handgrad.layers.mask import CAUSAL, Bound, Mask
from handgrad.layers.temperature import Temperature
from handgrad.rules.attend import ATTEND


@dataclass(frozen=True)
class Head:
    """Parameters `query`, `key`, `value`, each a `Linear` with or without its own offset, and `temperature`.

    width   of the input, d
    d_rho   of queries and keys, d_ρ
    d_h     of values and of the output

    >>> head = Head(width=6, d_rho=3, d_h=2, key_bias=False)
    >>> {name: slot.shape for name, slot in head.slots().items()}
    {'query.w': (6, 3), 'query.b': (3,), 'key.w': (6, 3), 'value.w': (6, 2), 'value.b': (2,)}
    """

    width: int
    d_rho: int
    d_h: int
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    mask: Mask = CAUSAL
    temperature: Temperature | None = None
    std: float = 0.02

    @cached_property
    def branches(self) -> Fork:
        return Fork(
            {
                "query": Linear(self.width, self.d_rho, self.query_bias, self.std),
                "key": Linear(self.width, self.d_rho, self.key_bias, self.std),
                "value": Linear(self.width, self.d_h, self.value_bias, self.std),
            }
        )

    def slots(self) -> dict[str, Slot]:
        own = prefixed({"temperature": self.temperature.slots()}) if self.temperature else {}
        return self.branches.slots() | own

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        branches, saved_in = self.branches.forward(p, a, run)
        q, k, v = (y.unsqueeze(1) for y in branches)  # (B, T, ·) -> (B, 1, T, ·): the only head there is
        saved_tau = None
        if self.temperature:
            q, saved_tau = self.temperature.forward(inside(p, "temperature"), q, run / "temperature")
        if run.cache is not None:
            k, v = run.cache.extend(run.path, k, v)
        allowed = Bound(self.mask, q.shape[-2], k.shape[-2], run.position, q.device)
        out, saved_attend = ATTEND.forward(q, k, v, allowed, run=run)
        return out.squeeze(1), [saved_in, saved_tau, saved_attend]

    def backward(self, p: Tree, Delta: Tensor, saved: list[Any], grads: Gradients, run: Run) -> Tensor:
        Delta_q, Delta_k, Delta_v = ATTEND.backward(Delta.unsqueeze(1), saved.pop(), run)
        saved_tau = saved.pop()
        if self.temperature:
            Delta_q = self.temperature.backward(
                inside(p, "temperature"), Delta_q, saved_tau, grads / "temperature", run / "temperature"
            )
        Deltas = tuple(D.squeeze(1) for D in (Delta_q, Delta_k, Delta_v))
        return self.branches.backward(p, Deltas, saved.pop(), grads, run)
