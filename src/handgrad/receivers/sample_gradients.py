"""The gradient of each sample, for chosen parameters: B times their memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from handgrad.core.errors import unknown
from handgrad.core.params import Layout
from handgrad.core.run import widened
from handgrad.receivers.samples import ALL, Batch, Range, Waiting, matching, summed, tokens_last, with_samples


@dataclass
class Stacks:
    layout: Layout
    chosen: frozenset[str]
    waiting: Waiting
    batch: Batch = field(default_factory=Batch)
    made: dict[str, Tensor] = field(default_factory=dict)

    def of(self, owner: str, like: Tensor) -> Tensor:
        if owner not in self.made:
            self.made[owner] = widened(like.new_zeros(self.batch.n, *self.layout.slots[owner].shape))
        self.waiting.silent.discard(owner)
        return self.made[owner]


@dataclass(frozen=True)
class SampleGradients:
    """Per-sample gradients ~ (B, *shape) of the parameters that `patterns` name, as a receiver of a backward pass.

    They are what the samples add to the gradient of the batch: Σ_b g_b is exactly that gradient. The mean loss of one
    sample by itself has the gradient (n/n_b) g_b, with n_b of the batch's n targets (`hg.sample_gradients` gives that).

    >>> from handgrad.core import Slot
    >>> grads = SampleGradients.of(Layout({"w": Slot((1, 1)), "b": Slot((1,))}), ["w"])
    >>> grads.outer("w", torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([[[3.0]], [[4.0]]]))
    >>> grads["w"].flatten()
    tensor([3., 8.])
    """

    stacks: Stacks
    path: str = ""
    where: Range = ALL

    @classmethod
    def of(cls, layout: Layout, patterns: Iterable[str] = ("*",), n_samples: int = 0) -> SampleGradients:
        """Of `n_samples`, or of as many as the first factors have. Raises UnknownName for a pattern without a match."""
        chosen = {name for names in matching(patterns, layout).values() for name in names}
        return cls(Stacks(layout, frozenset(chosen), Waiting(layout), Batch(n_samples)))

    def __getitem__(self, name: str) -> Tensor:
        owner = self.stacks.layout.owner(name)
        if owner not in self.stacks.chosen:
            raise unknown("chosen parameter", name, self.stacks.chosen)
        self.stacks.waiting.require_heard(owner)
        return self.stacks.made[owner]

    def named(self) -> dict[str, Tensor]:
        return {name: self[name] for name in self.stacks.layout.places if name in self.stacks.chosen}

    def __truediv__(self, part: str) -> SampleGradients:
        return SampleGradients(self.stacks, f"{self.path}{part}.", self.where)

    def samples(self, first: int, end: int, n: int) -> SampleGradients:
        return SampleGradients(self.stacks, self.path, Range(first, end, n))

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        if (g := self._of(name, a, Delta)) is not None:
            g += (widened(tokens_last(a)).mT @ widened(tokens_last(Delta))).view_as(g)

    def total(self, name: str, Delta: Tensor) -> None:
        if (g := self._of(name, Delta)) is not None:
            g += summed(Delta).view_as(g)

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        if (g := self._of(name, Delta)) is not None:
            where, V = with_samples(ids, Delta), g.shape[1]
            first = V * torch.arange(len(g), device=ids.device).unsqueeze(1)  # of each sample's own rows
            rows = widened(tokens_last(Delta)).flatten(0, 1)
            g.view(-1, g.shape[-1]).index_add_(0, (where + first).flatten(), rows)

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        if (g := self._of(name, x, Delta)) is not None:
            g += summed(widened(x) * widened(Delta)).view_as(g)

    def finished(self) -> None:
        """Sums need no end."""

    def _of(self, name: str, *factors: Tensor) -> Tensor | None:
        """Where the gradients of these samples are added up; None for a parameter that was not chosen."""
        name = self.path + name
        if name not in self.stacks.layout.slots or self.stacks.layout.owner(name) not in self.stacks.chosen:
            return None
        where = self.stacks.batch.require(name, self.where, *factors)
        return self.stacks.of(self.stacks.layout.owner(name), factors[-1])[where.first : where.end]
