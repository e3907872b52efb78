"""Fully connected layer: `w ~ (n_in, n_out)`, and `b ~ (n_out,)` where asked for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.rules import linear


@dataclass(frozen=True)
class Linear:
    """a' = a w + 1 b, for a ~ (..., n_in). `std` is the spread of the first w.

    >>> import handgrad as hg, torch
    >>> f = hg.Linear(3, 2)
    >>> p = hg.Layout(f.slots()).draw(seed=0)
    >>> f.forward(p.tree, torch.zeros(1, 5, 3), hg.Run())[0].shape
    torch.Size([1, 5, 2])
    """

    n_in: int
    n_out: int
    bias: bool = True
    std: float = 0.02

    def slots(self) -> dict[str, Slot]:
        w = {"w": Slot((self.n_in, self.n_out), self.std)}
        return w | {"b": Slot((self.n_out,))} if self.bias else w

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, linear.Saved]:
        return linear.forward(a, p["w"], p.get("b"))

    def backward(self, p: Tree, Delta: Tensor, saved: linear.Saved, grads: Gradients, run: Run) -> Tensor:
        return linear.backward(Delta, saved, p["w"], grads)
