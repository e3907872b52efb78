"""LoRA: a linear layer, wrapped, with a low-rank update beside it.

Parameters `base.w`, `base.b`, which are frozen by being absent from the gradient's layout, and `lora.A`, `lora.B`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

from torch import Tensor

from handgrad.core.combine import Fork, Sequence, Sum, inside
from handgrad.core.errors import ConfigError, cut
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.layers.linear import Linear
from handgrad.layers.pointwise import Dropout
from handgrad.rules import dropout, lowrank
from handgrad.rules.lowrank import LOWRANK

MOST_ALPHA = 1e9


@dataclass(frozen=True)
class LowRankUpdate:
    """y = s (a A) B. At first A is random with the spread that linear layers of n_in inputs start with, and B = 0."""

    n_in: int
    n_out: int
    rank: int
    s: float

    def slots(self) -> dict[str, Slot]:
        return {"A": Slot((self.n_in, self.rank), 1 / sqrt(3 * self.n_in)), "B": Slot((self.rank, self.n_out))}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, lowrank.Saved]:
        return lowrank.forward(a, p["A"], p["B"], self.s, run)

    def backward(self, p: Tree, Delta: Tensor, saved: lowrank.Saved, grads: Gradients, run: Run) -> Tensor:
        return lowrank.backward(Delta, saved, p["A"], p["B"], self.s, grads, run)


@dataclass(frozen=True)
class LowRank:
    """a' = linear(a) + s (a A) B, s = alpha/rank, or alpha/√rank with `rslora`; `dropout` acts on the update's input.

    A layer that has an update may have another one on top. Where nobody asks to see the update by itself, it is added
    to what it updates, in place.

    >>> f = LowRank(Linear(6, 5), rank=2, alpha=4)
    >>> f.s, f.slots()["lora.A"].shape, f.slots()["lora.B"].shape
    (2.0, (6, 2), (2, 5))
    """

    PLACES: ClassVar = {"linear": "base"}  # field -> its step in paths
    linear: Linear | LowRank
    rank: int
    alpha: float
    rslora: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise ConfigError(f"the rank of a low-rank update is {self.rank}, and must be a whole number of at least 1")
        if type(self.alpha) not in (int, float) or not 0 < self.alpha < MOST_ALPHA:
            raise ConfigError(
                f"alpha of a low-rank update is {cut(self.alpha)}, and must be a number above 0 and below "
                f"{MOST_ALPHA:g}: it scales the update"
            )
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise ConfigError(
                f"dropout of a low-rank update is {cut(self.dropout)}, and must be at least 0 and below 1"
            )

    @property
    def n_in(self) -> int:
        return self.linear.n_in

    @property
    def n_out(self) -> int:
        return self.linear.n_out

    @property
    def s(self) -> float:
        return self.alpha / (sqrt(self.rank) if self.rslora else self.rank)

    @cached_property
    def parts(self) -> Sum:
        update = LowRankUpdate(self.n_in, self.n_out, self.rank, self.s)
        lora = Sequence((Dropout(self.dropout), update)) if self.dropout else update
        return Sum(Fork({"base": self.linear, "lora": lora}))

    def slots(self) -> dict[str, Slot]:
        return self.parts.slots()

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        pair = LOWRANK.choose(run)
        if pair is LOWRANK.explicit:
            y, saved = self.parts.forward(p, a, run)
            return y, (pair, None, None, saved)
        y, saved = self.linear.forward(inside(p, "base"), a, run / "base")
        x, dropped = dropout.forward(a, self.dropout, run / "lora")
        y, added = pair.forward(y, x, *self.factors(p), self.s)
        return y, (pair, added, dropped, saved)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        pair, added, dropped, saved = saved
        if pair is LOWRANK.explicit:
            return self.parts.backward(p, Delta, saved, grads, run)
        below = self.linear.backward(inside(p, "base"), Delta, saved, grads / "base", run / "base")
        onto = below if dropped.m is None else None
        term = pair.backward(Delta, added, *self.factors(p), self.s, grads / "lora", onto)
        return term if onto is not None else below + dropout.backward(term, dropped, run / "lora")

    def factors(self, p: Tree) -> tuple[Any, Any]:
        lora = inside(p, "lora")
        return lora["A"], lora["B"]
