"""A receiver that holds no more of the gradient than is still being added to.

The gradient of a parameter is complete when every part of the network that uses it has finished: one part for most,
two for a tied weight. It is then handed to `done` and dropped, so that memory holds the gradient of one layer, and of
the tied weights, instead of the gradient of the whole network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import torch

from handgrad.core.gradients import Accumulate
from handgrad.core.params import Layout, Tree

Done = Callable[[str, torch.Tensor], None]
LARGE = 32 << 20  # bytes


@dataclass
class Room:
    """Memory of large gradients, kept from step to step: made anew it would be fresh pages, or a hole in the heap.

    >>> room = Room(least=8)
    >>> g = room.take((2, 1), torch.float32, torch.device("cpu"))
    >>> room.give(g)
    >>> room.take((1, 2), torch.float32, torch.device("cpu")).data_ptr() == g.data_ptr()
    True
    """

    least: int = LARGE
    free: list[torch.Tensor] = field(default_factory=list)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory that holds anything at all."""
        for i, x in enumerate(self.free):
            if (x.numel(), x.dtype, x.device) == (prod(shape), dtype, device):
                return self.free.pop(i).view(shape)
        return torch.empty(shape, dtype=dtype, device=device)

    def give(self, g: torch.Tensor) -> None:
        if g.nbytes >= self.least:
            self.free.append(g)


@dataclass
class Pieces:
    """What is being added to: owner -> its gradient so far, and which of its names have not finished yet."""

    layout: Layout
    done: Done
    dtype: torch.dtype
    device: torch.device
    room: Room
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    waiting: dict[str, set[str]] = field(default_factory=dict)
    unset: set[int] = field(default_factory=set)  # as in Accumulate

    def __post_init__(self) -> None:
        for name in self.layout.slots:
            self.waiting.setdefault(self.layout.owner(name), set()).add(name)

    def sum_of(self, name: str) -> torch.Tensor:
        owner = self.layout.owner(name)
        assert owner in self.waiting, f"{owner} receives a gradient after it was complete"
        if owner not in self.sums:
            g = self.room.take(self.layout.slots[owner].shape, self.dtype, self.device)
            self.sums[owner] = g
            self.unset.add(g.data_ptr())
        return self.sums[owner]

    def finish(self, path: str) -> None:
        for owner, names in list(self.waiting.items()):
            names -= {name for name in names if name.startswith(path)}
            if not names:
                g = self.sum_of(owner)
                Accumulate({owner: g}, self.unset).settle()
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

    only_sums: ClassVar[bool] = True
    pieces: Pieces
    path: str = ""

    @classmethod
    def into(
        cls,
        layout: Layout,
        done: Done,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        room: Room | None = None,
    ) -> Collect:
        """`done` may give the memory of what it gets back to `room`."""
        return cls(Pieces(layout, done, dtype, torch.device(device), Room() if room is None else room))

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

    def whole(self, name: str, gradient: torch.Tensor) -> None:
        self._of(name).whole(name, gradient)

    def finished(self) -> None:
        self.pieces.finish(self.path)

    def _of(self, name: str) -> Accumulate:
        known = self.path + name in self.pieces.layout.slots
        tree: Tree = {name: self.pieces.sum_of(self.path + name)} if known else {}
        return Accumulate(tree, self.pieces.unset)
