"""Temperature: one number `tau ~ (1,)` where it is learned, none where it is fixed."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.rules import temperature


@dataclass(frozen=True)
class Temperature:
    """a' = a/τ. Where τ is learned, `tau` is its first value.

    >>> Temperature(2.0).slots(), Temperature(2.0, learned=True).slots()["tau"].shape
    ({}, (1,))
    """

    tau: float = 1.0
    learned: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.tau) and self.tau > 0):
            raise ConfigError(
                f"a temperature of {self.tau:g} cannot divide scores; give a number above 0 (1 changes nothing, "
                "smaller is more selective)"
            )

    def slots(self) -> dict[str, Slot]:
        return {"tau": Slot((1,), mean=self.tau)} if self.learned else {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, temperature.Saved]:
        return temperature.forward(a, p.get("tau", self.tau))

    def backward(self, p: Tree, Delta: Tensor, saved: temperature.Saved, grads: Gradients, run: Run) -> Tensor:
        return temperature.backward(Delta, saved, p.get("tau", self.tau), grads)
