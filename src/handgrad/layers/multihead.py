"""Multi-head attention: three branches leave the input, attend head by head, and are mixed by w_o.

q, k, v = a w_q + b_q, a w_k + b_k, a w_v + b_v      each (B, T, width), cut into heads (B, H, T, width/H)
a' = concat_h(attend(q_h, k_h, v_h)) w_o + b_o
With G < H heads of keys and values, k and v are (B, T, G·width/H), and each of them serves H/G query heads.
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
from handgrad.layers.rope import Rotary
from handgrad.rules.attend import ATTEND
from handgrad.rules.group import GROUP


@dataclass(frozen=True)
class MultiHead:
    """Parameters `query`, `key`, `value`, `out`, each a `Linear`; signals q, k, v, raw, scaled, causal, rho, out.

    kv_heads   heads of keys and values; 0 means as many as `heads`. A cache keeps only these
    rotary     turns q and k by their positions, before a cache keeps k; None where positions come from elsewhere

    >>> MultiHead(6, 2).slots()["query.w"].shape
    (6, 6)
    >>> MultiHead(6, 2, kv_heads=1).slots()["key.w"].shape
    (6, 3)
    """

    width: int
    heads: int
    bias: bool = True
    mask: Mask = CAUSAL
    std: float = 0.02
    std_out: float = 0.02
    kv_heads: int = 0
    rotary: Rotary | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"a width of {self.width} cannot be cut into {self.heads} heads of equal width; "
                f"choose a width that is a multiple of {self.heads}"
            )
        if self.kv_heads < 0 or self.heads % self.groups:
            raise ConfigError(
                f"{self.heads} query heads cannot share {self.kv_heads} key and value heads equally; "
                f"choose a number of kv heads that divides {self.heads}"
            )

    @property
    def groups(self) -> int:
        return self.kv_heads or self.heads

    @property
    def d_h(self) -> int:
        return self.width // self.heads

    @cached_property
    def branches(self) -> Fork:
        sizes = {"query": self.heads, "key": self.groups, "value": self.groups}
        return Fork({name: Linear(self.width, n * self.d_h, self.bias, self.std) for name, n in sizes.items()})

    @cached_property
    def out(self) -> Linear:
        return Linear(self.width, self.width, self.bias, self.std_out)

    def slots(self) -> dict[str, Slot]:
        return self.branches.slots() | prefixed({"out": self.out.slots()})

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        branches, saved_in = self.branches.forward(p, a, run)
        q, k, v = (cut(y, self.d_h) for y in branches)
        q, k, saved_turn = self.turned(q, k, run)
        if run.cache is not None:
            k, v = run.cache.extend(run.path, k, v)
        k, v, saved_group = self.shared(k, v, run)
        allowed = self.mask(q.shape[-2], k.shape[-2], run.position, q.device)
        heads, saved_attend = ATTEND.forward(q, k, v, allowed, run=run)
        y, saved_out = self.out.forward(inside(p, "out"), joined(heads), run / "out")
        return y, [saved_in, saved_turn, saved_group, saved_attend, saved_out]

    def backward(self, p: Tree, Delta: Tensor, saved: list[Any], grads: Gradients, run: Run) -> Tensor:
        Delta = self.out.backward(inside(p, "out"), Delta, saved.pop(), grads / "out", run / "out")
        Delta_q, Delta_k, Delta_v = ATTEND.backward(cut(Delta, self.d_h), saved.pop(), run)
        if saved_group := saved.pop():
            Delta_k, Delta_v = (GROUP.backward(D, saved_group, run) for D in (Delta_k, Delta_v))
        if saved_turn := saved.pop():
            turns = zip((Delta_q, Delta_k), saved_turn, strict=True)
            Delta_q, Delta_k = (self.rotary.backward({}, D, s, grads, run) for D, s in turns)
        return self.branches.backward(p, tuple(map(joined, (Delta_q, Delta_k, Delta_v))), saved.pop(), grads, run)

    def turned(self, q: Tensor, k: Tensor, run: Run) -> tuple[Tensor, Tensor, Any]:
        """q and k turned by their positions; as they are where there is nothing to turn."""
        if self.rotary is None:
            return q, k, None
        q, saved_q = self.rotary.forward({}, q, run)
        k, saved_k = self.rotary.forward({}, k, run)
        return q, k, (saved_q, saved_k)

    def shared(self, k: Tensor, v: Tensor, run: Run) -> tuple[Tensor, Tensor, Any]:
        """A key and a value for every query head; as they are where each has its own."""
        if self.groups == self.heads:
            return k, v, None
        n = self.heads // self.groups
        k, saved_group = GROUP.forward(k, n, run=run)
        return k, GROUP.forward(v, n, run=run)[0], saved_group


def cut(a: Tensor, d_h: int) -> Tensor:
    return a.unflatten(-1, (-1, d_h)).transpose(-3, -2)  # (B, T, H·D) -> (B, H, T, D)


def joined(a: Tensor) -> Tensor:
    return a.transpose(-3, -2).flatten(-2)  # (B, H, T, D) -> (B, T, H·D)
