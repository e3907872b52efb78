"""Multi-head attention: three branches leave the input, attend head by head, and are mixed by w_o.

q, k, v = a w_q + b_q, a w_k + b_k, a w_v + b_v      each (B, T, width), cut into heads (B, H, T, width/H)
a' = concat_h(attend(q_h, k_h, v_h)) w_o + b_o
With G < H heads of keys and values, k and v are (B, T, G·width/H), and each of them serves H/G query heads. Where heads
have a width of their own, it stands in the place of width/H.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from handgrad.core.combine import Fork, inside
from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.layer import Layer
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.run import Run
from handgrad.layers.linear import Linear
from handgrad.layers.mask import CAUSAL, Bound, Mask
from handgrad.layers.rope import Rotary
from handgrad.rules.attend import ATTEND
from handgrad.rules.group import GROUP

STACKED = "stacked"
SHOWN = ("q", "k", "v", "out", "Delta_q", "Delta_k", "Delta_v", "Delta_out", *ATTEND.inner)


@dataclass(frozen=True)
class MultiHead:
    """Parameters `query`, `key`, `value`, `out`, each a `Linear`; signals q, k, v, raw, scaled, causal, rho, out.

    bias       offsets of query, key and value; and of out, unless `out_bias` says otherwise
    kv_heads   heads of keys and values; 0 means as many as `heads`. A cache keeps only these
    rotary     turns q and k by their positions, before a cache keeps k; None where positions come from elsewhere
    d_head     width of a head; 0 means width/heads
    instead    layers that stand in the place of some of the four linear ones, with their widths

    >>> MultiHead(6, 2).slots()["query.w"].shape
    (6, 6)
    >>> MultiHead(6, 2, kv_heads=1).slots()["key.w"].shape
    (6, 3)
    >>> MultiHead(6, 2, d_head=4, out_bias=False).slots()["out.w"].shape
    (8, 6)
    """

    PLACES: ClassVar = {"instead": ""}  # field -> its step in paths
    width: int
    heads: int
    bias: bool = True
    mask: Mask = CAUSAL
    std: float = 0.02
    std_out: float = 0.02
    kv_heads: int = 0
    rotary: Rotary | None = None
    d_head: int = 0
    out_bias: bool | None = None
    instead: Mapping[str, Layer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.d_head and self.width % self.heads:
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
        return self.d_head or self.width // self.heads

    @cached_property
    def branches(self) -> Fork:
        sizes = {"query": self.heads, "key": self.groups, "value": self.groups}
        own = {name: Linear(self.width, n * self.d_h, self.bias, self.std) for name, n in sizes.items()}
        return Fork({name: self.instead.get(name, linear) for name, linear in own.items()})

    @cached_property
    def out(self) -> Layer:
        bias = self.bias if self.out_bias is None else self.out_bias
        return self.instead.get("out", Linear(self.heads * self.d_h, self.width, bias, self.std_out))

    def opened(self) -> MultiHead:
        """The same layer with its parts in a field, where whoever rewrites a tree of layers finds them."""
        return replace(self, instead={**self.branches.branches, "out": self.out})

    def slots(self) -> dict[str, Slot]:
        return self.branches.slots() | prefixed({"out": self.out.slots()})

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        branches, saved_in = self.branches.forward(p, a, run)
        q, k, v = (cut(y, self.d_h) for y in branches)
        q, k, saved_turn = self.turned(q, k, run)
        if run.cache is not None:
            k, v = run.cache.extend(run.path, k, v)
        allowed = Bound(self.mask, q.shape[-2], k.shape[-2], run.position, q.device)
        B, _, T, _ = q.shape
        q, k, v, saved_group = self.shared(q, k, v, run)
        heads, saved_attend = ATTEND.forward(q, k, v, allowed, run=run)
        heads = heads.reshape(B, self.heads, T, self.d_h)
        y, saved_out = self.out.forward(inside(p, "out"), joined(heads), run / "out")
        return y, [saved_in, saved_turn, saved_group, saved_attend, saved_out]

    def backward(self, p: Tree, Delta: Tensor, saved: list[Any], grads: Gradients, run: Run) -> Tensor:
        Delta = self.out.backward(inside(p, "out"), Delta, saved.pop(), grads / "out", run / "out")
        Delta = cut(Delta, self.d_h)
        B, H, T, _ = Delta.shape
        saved_attend, saved_group, saved_turn = saved.pop(), saved.pop(), saved.pop()
        if saved_group is STACKED:
            Delta = Delta.reshape(B, self.groups, -1, self.d_h)
        Delta_q, Delta_k, Delta_v = ATTEND.backward(Delta, saved_attend, run)
        if saved_group is STACKED:
            Delta_q = Delta_q.reshape(B, H, T, self.d_h)
        elif saved_group:
            Delta_k, Delta_v = (GROUP.backward(D, saved_group, run) for D in (Delta_k, Delta_v))
        if saved_turn:
            both = self.rotary.backward({}, torch.cat((Delta_q, Delta_k), -3), saved_turn, grads, run)
            Delta_q, Delta_k = both.split((self.heads, self.groups), -3)
        return self.branches.backward(p, tuple(map(joined, (Delta_q, Delta_k, Delta_v))), saved.pop(), grads, run)

    def turned(self, q: Tensor, k: Tensor, run: Run) -> tuple[Tensor, Tensor, Any]:
        """q and k turned by their positions; as they are where there is nothing to turn."""
        if self.rotary is None:
            return q, k, None
        both, saved = self.rotary.forward({}, torch.cat((q, k), -3), run)
        q, k = both.split((self.heads, self.groups), -3)
        return q, k, saved

    def shared(self, q: Tensor, k: Tensor, v: Tensor, run: Run) -> tuple[Tensor, Tensor, Tensor, Any]:
        """A key and a value for every query head; as they are where each has its own.

        Heads of one token that share their keys are the rows of one matrix of queries, q ~ (B, G, H/G, D): then nothing
        is repeated, unless somebody wants to see it head by head.
        """
        if self.groups == self.heads:
            return q, k, v, None
        if q.shape[-2] == 1 and not run.wants(SHOWN):
            return q.reshape(len(q), self.groups, -1, self.d_h), k, v, STACKED
        n = self.heads // self.groups
        k, saved_group = GROUP.forward(k, n, run=run)
        return q, k, GROUP.forward(v, n, run=run)[0], saved_group


def cut(a: Tensor, d_h: int) -> Tensor:
    return a.unflatten(-1, (-1, d_h)).transpose(-3, -2)  # (B, T, H·D) -> (B, H, T, D)


def joined(a: Tensor) -> Tensor:
    return a.transpose(-3, -2).flatten(-2)  # (B, H, T, D) -> (B, T, H·D)
