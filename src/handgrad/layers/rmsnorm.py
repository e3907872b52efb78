"""RMS norm: gain `gamma ~ (width,)`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.rules import rmsnorm


@dataclass(frozen=True)
class RMSNorm:
    """a' = a/√(mean(a²) + ε) ∘ γ over the last axis."""

    width: int
    epsilon: float = 1e-5

    def slots(self) -> dict[str, Slot]:
        return {"gamma": Slot((self.width,), mean=1.0)}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, rmsnorm.Saved]:
        return rmsnorm.forward(a, p["gamma"], self.epsilon, run)

    def backward(self, p: Tree, Delta: Tensor, saved: rmsnorm.Saved, grads: Gradients, run: Run) -> Tensor:
        return rmsnorm.backward(Delta, saved, p["gamma"], grads, run)
