"""Multi-head attention: three branches leave the input, attend head by head, and are mixed by w_o.

q, k, v = a w_q + b_q, a w_k + b_k, a w_v + b_v      each (B, T, width), cut into heads (B, H, T, width/H)
a' = concat_h(attend(q_h, k_h, v_h)) w_o + b_o
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from handgrad.core.combine import Fork, inside
from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.run import Run
from handgrad.layers.linear import Linear
from handgrad.layers.mask import CAUSAL, Mask
from handgrad.rules.attend import ATTEND


@dataclass(frozen=True)
class MultiHead:
    """Parameters `query`, `key`, `value`, `out`, each a `Linear`; signals q, k, v, raw, scaled, causal, rho, out.

    >>> MultiHead(6, 2).slots()["query.w"].shape
    (6, 6)
    """

    width: int
    heads: int
    bias: bool = True
    mask: Mask = CAUSAL
    std: float = 0.02
    std_out: float = 0.02

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"a width of {self.width} cannot be cut into {self.heads} heads of equal width; "
                f"choose a width that is a multiple of {self.heads}"
            )

    @cached_property
    def branches(self) -> Fork:
        return Fork({n: Linear(self.width, self.width, self.bias, self.std) for n in ("query", "key", "value")})

    @cached_property
    def out(self) -> Linear:
        return Linear(self.width, self.width, self.bias, self.std_out)

    def slots(self) -> dict[str, Slot]:
        return self.branches.slots() | prefixed({"out": self.out.slots()})

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        branches, saved_in = self.branches.forward(p, a, run)
        q, k, v = (self.cut(y) for y in branches)
        if run.cache is not None:
            k, v = run.cache.extend(run.path, k, v)
        allowed = self.mask(q.shape[-2], k.shape[-2], run.position, q.device)
        heads, saved_attend = ATTEND.forward(q, k, v, allowed, run=run)
        y, saved_out = self.out.forward(inside(p, "out"), self.joined(heads), run / "out")
        return y, [saved_in, saved_attend, saved_out]

    def backward(self, p: Tree, Delta: Tensor, saved: list[Any], grads: Gradients, run: Run) -> Tensor:
        Delta = self.out.backward(inside(p, "out"), Delta, saved.pop(), grads / "out", run / "out")
        Deltas = ATTEND.backward(self.cut(Delta), saved.pop(), run)
        return self.branches.backward(p, tuple(self.joined(D) for D in Deltas), saved.pop(), grads, run)

    def cut(self, a: Tensor) -> Tensor:
        return a.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (B, T, C) -> (B, H, T, D)

    def joined(self, a: Tensor) -> Tensor:
        return a.transpose(-3, -2).flatten(-2)  # (B, H, T, D) -> (B, T, C)
