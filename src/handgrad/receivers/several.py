"""Receivers around receivers: two at once, a weight for each sample, and one that keeps what it is given for later."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients, of_samples
from handgrad.receivers.sample_norms import SampleNorms
from handgrad.receivers.samples import ALL, Range


@dataclass(frozen=True)
class Both:
    """Hands everything to two receivers: `Both(Accumulate(g), norms)` sums and measures in one backward pass.

    >>> from handgrad.core import Accumulate
    >>> import torch
    >>> g, h = {"b": torch.zeros(1)}, {"b": torch.zeros(1)}
    >>> Both(Accumulate(g), Accumulate(h)).total("b", torch.ones(2, 3, 1))
    >>> g["b"], h["b"]
    (tensor([6.]), tensor([6.]))
    """

    one: Gradients
    other: Gradients

    def __truediv__(self, part: str) -> Both:
        return Both(self.one / part, self.other / part)

    def samples(self, first: int, end: int, n: int) -> Both:
        return Both(of_samples(self.one, first, end, n), of_samples(self.other, first, end, n))

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        self.one.outer(name, a, Delta)
        self.other.outer(name, a, Delta)

    def total(self, name: str, Delta: Tensor) -> None:
        self.one.total(name, Delta)
        self.other.total(name, Delta)

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        self.one.rows(name, ids, Delta)
        self.other.rows(name, ids, Delta)

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        self.one.scaled(name, x, Delta)
        self.other.scaled(name, x, Delta)

    def finished(self) -> None:
        self.one.finished()
        self.other.finished()


@dataclass(frozen=True)
class Measured:
    """`Both(norms, grads)` in fewer products: what is multiplied sample by sample is not multiplied again for the sum.

    >>> from handgrad.core import Accumulate, Layout, Slot
    >>> import torch
    >>> layout = Layout({"w": Slot((1, 1))})
    >>> g, norms = layout.zeros(), SampleNorms.of(layout)
    >>> measured = Measured(norms, Accumulate(g.tree))
    >>> measured.outer("w", torch.ones(2, 3, 1), torch.ones(2, 3, 1))
    >>> measured.finished()
    >>> g["w"], norms.norms()
    (tensor([[6.]]), tensor([3., 3.]))
    """

    norms: SampleNorms
    grads: Gradients

    def __truediv__(self, part: str) -> Measured:
        return Measured(self.norms / part, self.grads / part)

    def samples(self, first: int, end: int, n: int) -> Both:
        return Both(self.norms, self.grads).samples(first, end, n)

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        self.norms.outer_into(name, a, Delta, self.grads)

    def total(self, name: str, Delta: Tensor) -> None:
        Both(self.norms, self.grads).total(name, Delta)

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        Both(self.norms, self.grads).rows(name, ids, Delta)

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        Both(self.norms, self.grads).scaled(name, x, Delta)

    def finished(self) -> None:
        self.norms.finished()
        self.grads.finished()


@dataclass(frozen=True)
class Weighted:
    """Σ_b weights_b g_b instead of Σ_b g_b: every sample's factors are multiplied by its weight, the thinner of two.

    >>> from handgrad.core import Accumulate
    >>> import torch
    >>> g = {"b": torch.zeros(1)}
    >>> Weighted(Accumulate(g), torch.tensor([1.0, 0.5])).total("b", torch.ones(2, 3, 1))
    >>> g["b"]
    tensor([4.5000])
    """

    inner: Gradients
    weights: Tensor  # (B,)

    def __truediv__(self, part: str) -> Weighted:
        return Weighted(self.inner / part, self.weights)

    def samples(self, first: int, end: int, n: int) -> Weighted:
        return Weighted(of_samples(self.inner, first, end, n), self.weights[first:end])

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        if a.shape[-1] < Delta.shape[-1]:
            self.inner.outer(name, self._times(a), Delta)
        else:
            self.inner.outer(name, a, self._times(Delta))

    def total(self, name: str, Delta: Tensor) -> None:
        self.inner.total(name, self._times(Delta))

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        self.inner.rows(name, ids, self._times(Delta))

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        self.inner.scaled(name, x, self._times(Delta))

    def finished(self) -> None:
        self.inner.finished()

    def _times(self, x: Tensor) -> Tensor:
        return x * self.weights.to(x.dtype).view(-1, *[1] * (x.ndim - 1))


class Call(NamedTuple):
    path: tuple[str, ...]
    where: Range
    how: str
    given: tuple[str | Tensor, ...]


@dataclass(frozen=True)
class Kept:
    """Keeps everything, in memory as large as all factors together, until `hand_over` gives it to somebody, once.

    >>> from handgrad.core import Accumulate
    >>> import torch
    >>> kept, g = Kept(), {"up": {"b": torch.zeros(1)}}
    >>> (kept / "up").total("b", torch.ones(2, 3, 1))
    >>> kept.hand_over(Accumulate(g))
    >>> g["up"]["b"]
    tensor([6.])
    """

    calls: deque[Call] = field(default_factory=deque)
    path: tuple[str, ...] = ()
    where: Range = ALL

    def __truediv__(self, part: str) -> Kept:
        return Kept(self.calls, (*self.path, part), self.where)

    def samples(self, first: int, end: int, n: int) -> Kept:
        return Kept(self.calls, self.path, Range(first, end, n))

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        self._keep("outer", name, a, Delta)

    def total(self, name: str, Delta: Tensor) -> None:
        self._keep("total", name, Delta)

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        self._keep("rows", name, ids, Delta)

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        self._keep("scaled", name, x, Delta)

    def finished(self) -> None:
        self._keep("finished")

    def _keep(self, how: str, *given: str | Tensor) -> None:
        self.calls.append(Call(self.path, self.where, how, given))

    def hand_over(self, grads: Gradients) -> None:
        """In the order of the backward pass; what has been given is dropped."""
        while self.calls:
            path, where, how, given = self.calls.popleft()
            receiver = grads
            for part in path:
                receiver = receiver / part
            if where.n:
                receiver = of_samples(receiver, where.first, where.end, where.n)
            getattr(receiver, how)(*given)
