"""Scores of pairs: a ~ (B, T, width) -> score ~ (B, F, T, T), F functions of (x_α, x_β); α reads, β is read.

A score has two branches, `end` (the unit that reads, through x_α of its skip connection) and `source`. Terms of a
score are the branches of a `Sum` of a `Fork`; leave one out by not naming it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from handgrad.core.combine import Fork, inside
from handgrad.core.gradients import Gradients
from handgrad.core.layer import Layer
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.rule import Rule
from handgrad.core.run import Run
from handgrad.layers.linear import Linear
from handgrad.rules.additive import ADDITIVE
from handgrad.rules.weights_product import PRODUCT


@dataclass(frozen=True)
class Same:
    """a' = a: a branch that leaves the stream as it is. A view, so that its error is this branch's alone."""

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, None]:
        return a.view_as(a), None

    def backward(self, p: Tree, Delta: Tensor, saved: None, grads: Gradients, run: Run) -> Tensor:
        return Delta


SAME = Same()


@dataclass(frozen=True)
class Spread:
    """y ~ (B, T, F) -> (B, F, T, T): functions of one token, along a row (`END`) or a column (`SOURCE`) of pairs."""

    rule: Rule

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, y: Tensor, run: Run) -> tuple[Tensor, Any]:
        return self.rule.forward(y, run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        return self.rule.backward(Delta, saved, run)


@dataclass(frozen=True)
class Additive:
    """score_{αβ} = tanh(x_α W_a + x_β W_b + b) w: `functions` of them over one hidden layer of `hidden` features.

    Parameters: `end.w` is W_a, `source.w` and `source.b` are W_b and b, and `w ~ (hidden, functions)`.

    >>> {name: slot.shape for name, slot in Additive(6, 4, 1).slots().items()}
    {'end.w': (6, 4), 'source.w': (6, 4), 'source.b': (4,), 'w': (4, 1)}
    """

    width: int
    hidden: int
    functions: int
    std: float = 0.02

    @cached_property
    def end(self) -> Linear:
        return Linear(self.width, self.hidden, False, self.std)

    @cached_property
    def source(self) -> Linear:
        return Linear(self.width, self.hidden, True, self.std)

    def slots(self) -> dict[str, Slot]:
        w = {"w": Slot((self.hidden, self.functions), self.std)}
        return prefixed({"end": self.end.slots(), "source": self.source.slots()}) | w

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        return self.pairs(p, (a, a), run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        Delta_end, Delta_source = self.unpairs(p, Delta, saved, grads, run)
        return run.show("Delta_from_end", Delta_end) + run.show("Delta_from_source", Delta_source)

    def pairs(self, p: Tree, a: tuple[Tensor, Tensor], run: Run) -> tuple[Tensor, Any]:
        """Units a[0] ~ (B, T, width) that read sources a[1] ~ (B, S, width)."""
        q, saved_end = self.end.forward(inside(p, "end"), a[0], run / "end")
        k, saved_source = self.source.forward(inside(p, "source"), a[1], run / "source")
        pair = ADDITIVE.choose(run)
        score, saved = pair.forward(run.show("end", q), run.show("source", k), p["w"], run)
        return score, (pair, saved, saved_end, saved_source)

    def unpairs(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> tuple[Tensor, Tensor]:
        """The errors of the two inputs of `pairs`."""
        pair, saved, saved_end, saved_source = saved
        Delta_q, Delta_k = pair.backward(Delta, saved, grads, run)
        Delta_q, Delta_k = run.show("Delta_end", Delta_q), run.show("Delta_source", Delta_k)
        below_end = self.end.backward(inside(p, "end"), Delta_q, saved_end, grads / "end", run / "end")
        below = self.source.backward(inside(p, "source"), Delta_k, saved_source, grads / "source", run / "source")
        return below_end, below


@dataclass(frozen=True)
class Product:
    """score = q kᵗ, with q = end(a) cut into `functions` parts, and k = source(a) likewise, or whole where `shared`.

    end = source = Same()                                   the dot product x_α·x_β
    end = Linear(d, F·d), source = Same(), shared           the bilinear form x_α A_f x_βᵗ, A side by side in `end.w`
    end = Linear(d, F·r), source = Linear(d, F·r)           the same with A_f of rank r
    """

    end: Layer
    source: Layer
    functions: int
    shared: bool = False

    @cached_property
    def branches(self) -> Fork:
        return Fork({"end": self.end, "source": self.source})

    def slots(self) -> dict[str, Slot]:
        return self.branches.slots()

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        (q, k), saved = self.branches.forward(p, a, run)
        score, product = PRODUCT.forward(cut(q, self.functions), cut(k, self.sources), run=run)
        return score, [saved, product]

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        Delta_q, Delta_k = PRODUCT.backward(Delta, saved[1], run)
        return self.branches.backward(p, (joined(Delta_q), joined(Delta_k)), saved[0], grads, run)

    @property
    def sources(self) -> int:
        return 1 if self.shared else self.functions


def cut(a: Tensor, parts: int) -> Tensor:
    return a.unflatten(-1, (parts, -1)).transpose(-3, -2)  # (B, T, F·r) -> (B, F, T, r)


def joined(a: Tensor) -> Tensor:
    return a.transpose(-3, -2).flatten(-2)  # (B, F, T, r) -> (B, T, F·r)
