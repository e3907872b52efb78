"""A receiver that holds no more of the gradient than is still being added to.

The gradient of a parameter is complete when every part of the network that uses it has finished: one part for most,
two for a tied weight. It is then handed to `done` and dropped, so that memory holds the gradient of one layer, and of
the tied weights, instead of the gradient of the whole network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from handgrad.core.gradients import Accumulate
from handgrad.core.params import Layout, Tree

Done = Callable[[str, torch.Tensor], None]


@dataclass
class Pieces:
    """What is being added to: owner -> its gradient so far, and which of its names have not finished yet."""

    layout: Layout
    done: Done
    dtype: torch.dtype
    device: torch.device
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    waiting: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.layout.slots:
            self.waiting.setdefault(self.layout.owner(name), set()).add(name)

    def sum_of(self, name: str) -> torch.Tensor:
        owner = self.layout.owner(name)
        assert owner in self.waiting, f"{owner} receives a gradient after it was complete"
        if owner not in self.sums:
            self.sums[owner] = torch.zeros(self.layout.slots[owner].shape, dtype=self.dtype, device=self.device)
        return self.sums[owner]

    def finish(self, path: str) -> None:
        for owner, names in list(self.waiting.items()):
            names -= {name for name in names if name.startswith(path)}
            if not names:
                g = self.sum_of(owner)
                del self.waiting[owner], self.sums[owner]
                self.done(owner, g)


@dataclass(frozen=True)
class Collect:
    """Adds up like `Accumulate`, parameter by parameter, and hands each sum over as soon as it is complete.

    >>> from handgrad.core import Layout, Slot
    >>> grads = Collect.into(Layout({"one.w": Slot((1, 1)), "two.w": Slot((1, 1))}), print)
    >>> (grads / "two").outer("w", torch.tensor([[3.0]]), torch.tensor([[2.0]]))
    >>> (grads / "two").finished()
    two.w tensor([[6.]])
    >>> grads.finished()
    one.w tensor([[0.]])
    """

    pieces: Pieces
    path: str = ""

    @classmethod
    def into(
        cls, layout: Layout, done: Done, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Collect:
        return cls(Pieces(layout, done, dtype, torch.device(device)))

    def __truediv__(self, part: str) -> Collect:
        return Collect(self.pieces, f"{self.path}{part}.")

    def outer(self, name: str, a: torch.Tensor, Delta: torch.Tensor) -> None:
        self._of(name).outer(name, a, Delta)

    def total(self, name: str, Delta: torch.Tensor) -> None:
        self._of(name).total(name, Delta)

    def rows(self, name: str, ids: torch.Tensor, Delta: torch.Tensor) -> None:
        self._of(name).rows(name, ids, Delta)

    def scaled(self, name: str, x: torch.Tensor, Delta: torch.Tensor) -> None:
        self._of(name).scaled(name, x, Delta)

    def finished(self) -> None:
        self.pieces.finish(self.path)

    def _of(self, name: str) -> Accumulate:
        known = self.path + name in self.pieces.layout.slots
        tree: Tree = {name: self.pieces.sum_of(self.path + name)} if known else {}
        return Accumulate(tree)
