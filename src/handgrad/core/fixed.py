"""Layers that nobody trains, and those that nothing is trained below: what they need not keep, and need not form.

Both are for parameters that are frozen: gradients that are handed over for them are dropped here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from handgrad.core.gradients import Accumulate, Gradients
from handgrad.core.layer import Feature, Layer, Saved
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.core.thrifty import Gap, exchanged

NOBODY = Accumulate({})


@dataclass(frozen=True)
class Fixed:
    """f without its gradients: a' and Δ are those of f, and its input is not kept.

    For layers that need their input as a factor of a gradient only: linear ones.
    """

    f: Any

    def slots(self) -> dict[str, Slot]:
        slots: dict[str, Slot] = self.f.slots()
        return slots

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        y, saved = self.f.forward(p, a, run)
        return y, exchanged(saved, a, Gap())

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        return self.f.backward(p, Delta, saved, NOBODY, run)

    @property
    def n_in(self) -> int:
        return int(self.f.n_in)

    @property
    def n_out(self) -> int:
        return int(self.f.n_out)


@dataclass(frozen=True)
class Still:
    """f as a map alone: nothing in it or below it is trained, so nothing is kept and no error goes down."""

    f: Layer

    def slots(self) -> dict[str, Slot]:
        return self.f.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        return self.f.forward(p, a, run)[0], None

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> None:
        """Nobody below learns."""
