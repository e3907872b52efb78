"""Layer norm: gain `gamma ~ (width,)`, and offset `beta ~ (width,)` where asked for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.rules import layernorm


@dataclass(frozen=True)
class LayerNorm:
    """a' = (a - μ)/σ ∘ γ + β over the last axis; the biased variance, epsilon inside the root."""

    width: int
    bias: bool = True
    epsilon: float = 1e-5

    def slots(self) -> dict[str, Slot]:
        gamma = {"gamma": Slot((self.width,), mean=1.0)}
        return gamma | {"beta": Slot((self.width,))} if self.bias else gamma

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, layernorm.Saved]:
        return layernorm.forward(a, p["gamma"], p.get("beta"), self.epsilon, run)

    def backward(self, p: Tree, Delta: Tensor, saved: layernorm.Saved, grads: Gradients, run: Run) -> Tensor:
        return layernorm.backward(Delta, saved, p["gamma"], grads, run)
