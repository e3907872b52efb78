"""Who receives a parameter's gradient. A layer hands over *factors*, never yet multiplied; the receiver decides.

    outer(name, a, Delta)    dL/dw = aᵗ Delta              a ~ (..., n), Delta ~ (..., m) -> (n, m)
    total(name, Delta)       dL/db = 1ᵗ Delta              Delta ~ (..., m) -> (m,)
    rows(name, ids, Delta)   dL/dw = OHE(ids)ᵗ Delta       ids ~ (...), Delta ~ (..., m) -> (V, m); repeated ids add;
                                                        ids may lack leading axes of Delta, which then are summed
    scaled(name, x, Delta)   dL/dγ = 1ᵗ (Delta ∘ x)        both (..., m) -> (m,)

A part of the network that has handed over all it has says `finished()`. A name may be handed over several times, and
adds up: a tied one at both of its places, a large one in pieces.

Leading axes are samples and tokens, the samples first; a gradient sums over all of them. A receiver that is not
`only_sums` may tell samples apart: what it is given keeps the samples' axis, stays as it is, and a piece of some
samples alone goes to `of_samples(grads, first, end, n)`. A name that is absent from the receiver is
frozen: nothing is computed for it, and no layer has an `if` for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from handgrad.core.params import Buffer, Tree


class Gradients(Protocol):
    """What a backward pass talks to. `grads / part` is the receiver of that part of the network."""

    def __truediv__(self, part: str) -> Gradients: ...
    def outer(self, name: str, a: torch.Tensor, Delta: torch.Tensor) -> None: ...
    def total(self, name: str, Delta: torch.Tensor) -> None: ...
    def rows(self, name: str, ids: torch.Tensor, Delta: torch.Tensor) -> None: ...
    def scaled(self, name: str, x: torch.Tensor, Delta: torch.Tensor) -> None: ...
    def finished(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Hands on everything but the word that a part has finished: for parts that will be passed again."""

    inner: Gradients

    def __truediv__(self, part: str) -> Unfinished:
        return Unfinished(self.inner / part)

    def outer(self, name: str, a: torch.Tensor, Delta: torch.Tensor) -> None:
        self.inner.outer(name, a, Delta)

    def total(self, name: str, Delta: torch.Tensor) -> None:
        self.inner.total(name, Delta)

    def rows(self, name: str, ids: torch.Tensor, Delta: torch.Tensor) -> None:
        self.inner.rows(name, ids, Delta)

    def scaled(self, name: str, x: torch.Tensor, Delta: torch.Tensor) -> None:
        self.inner.scaled(name, x, Delta)

    def finished(self) -> None:
        """Whoever holds the layer says so, after its last pass."""


def of_samples(grads: Gradients, first: int, end: int, n: int) -> Gradients:
    """The receiver of what samples first … end - 1 of n hand over alone. Where it has finished, a part has handed over
    all that it has of these samples. One that does not tell samples apart has no method `samples`, and takes all alike.
    """
    apart: Callable[[int, int, int], Gradients] | None = getattr(grads, "samples", None)
    return Unfinished(grads) if apart is None else apart(first, end, n)


PIECE = 1 << 22  # elements


@dataclass(frozen=True, slots=True)
class Accumulate:
    """g += the product: all that a plain training step needs. `tree` is `Buffer.tree` of the gradient.

    >>> g = {"w": torch.zeros(2, 2)}
    >>> Accumulate(g).outer("w", torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    >>> g["w"]
    tensor([[3., 4.],
            [6., 8.]])
    """

    only_sums: ClassVar[bool] = True  # what is handed to `total` may have been added up before
    tree: Tree
    unset: set[int] | None = None  # memory that holds nothing of this gradient yet: the first to come overwrites it

    def __truediv__(self, part: str) -> Accumulate:
        below = self.tree.get(part, {})
        assert isinstance(below, dict), f"{part} is a parameter, not a part"
        return Accumulate(below, self.unset)

    @classmethod
    def over(cls, gradient: Buffer) -> Accumulate:
        """For a buffer that still holds an old gradient, which is never read. Ask `settle` at the end."""
        return cls(gradient.tree, {g.data_ptr() for g in gradient.values()})

    def settle(self) -> None:
        """What nobody has handed over anything for is 0."""
        for value in self.tree.values():
            if isinstance(value, dict):
                Accumulate(value, self.unset).settle()
            elif self._first(value):
                value.zero_()

    def outer(self, name: str, a: torch.Tensor, Delta: torch.Tensor) -> None:
        if (g := self._of(name)) is not None:
            a, Delta = a.flatten(0, -2), Delta.flatten(0, -2)
            first = self._first(g)
            if a.dtype == g.dtype:
                torch.mm(a.mT, Delta, out=g) if first else g.addmm_(a.mT, Delta)
                return
            if g.numel() <= PIECE:
                g.copy_(a.mT @ Delta) if first else g.add_(a.mT @ Delta)
                return
            size = max(1, PIECE // g.shape[1])  # the product in half precision, as much of it as a cache holds
            for part, columns in zip(torch.split(g, size), torch.split(a, size, 1), strict=True):
                product = columns.mT @ Delta
                part.copy_(product) if first else part.add_(product)

    def total(self, name: str, Delta: torch.Tensor) -> None:
        if (g := self._from_zero(name)) is not None:
            g += Delta.flatten(0, -2).sum(0, dtype=g.dtype)

    def rows(self, name: str, ids: torch.Tensor, Delta: torch.Tensor) -> None:
        if (g := self._from_zero(name)) is not None:
            Delta = Delta.flatten(0, -2 - ids.ndim).sum(0) if Delta.ndim - 1 > ids.ndim else Delta
            g.index_add_(0, ids.flatten(), Delta.flatten(0, -2).to(g.dtype))

    def scaled(self, name: str, x: torch.Tensor, Delta: torch.Tensor) -> None:
        if (g := self._from_zero(name)) is not None:
            g += (x * Delta).flatten(0, -2).sum(0, dtype=g.dtype)

    def whole(self, name: str, gradient: torch.Tensor) -> None:
        """One that somebody has multiplied already, in full."""
        if (g := self._of(name)) is not None:
            g.copy_(gradient) if self._first(g) else g.add_(gradient)

    def finished(self) -> None:
        """Sums need no end."""

    def _of(self, name: str) -> torch.Tensor | None:
        g = self.tree.get(name)
        assert not isinstance(g, dict), f"{name} is a part, not a parameter"
        return g

    def _first(self, g: torch.Tensor) -> bool:
        if self.unset is None or g.data_ptr() not in self.unset:
            return False
        self.unset.remove(g.data_ptr())
        return True

    def _from_zero(self, name: str) -> torch.Tensor | None:
        """What sums are added to: 0 where nothing has come yet."""
        g = self._of(name)
        return g.zero_() if g is not None and self._first(g) else g
