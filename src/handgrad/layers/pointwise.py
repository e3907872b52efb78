"""Layers without parameters: activations by their rule, and dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.rule import Rule
from handgrad.core.run import Run
from handgrad.rules import dropout
from handgrad.rules.gelu import GELU_ERF, GELU_TANH
from handgrad.rules.relu import RELU
from handgrad.rules.sigmoid import SIGMOID
from handgrad.rules.silu import SILU
from handgrad.rules.tanh import TANH

ACTIVATIONS = {rule.name: rule for rule in (GELU_TANH, GELU_ERF, RELU, SILU, TANH, SIGMOID)}


@dataclass(frozen=True)
class Pointwise:
    """a' = f(a), elementwise."""

    rule: Rule

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        return self.rule.forward(a, run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        return self.rule.backward(Delta, saved, run)


@dataclass(frozen=True)
class Dropout:
    """a' = a ∘ m/(1-rate) where `run.seed` is set; a' = a in evaluation."""

    rate: float

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, dropout.Saved]:
        return dropout.forward(a, self.rate, run)

    def backward(self, p: Tree, Delta: Tensor, saved: dropout.Saved, grads: Gradients, run: Run) -> Tensor:
        return dropout.backward(Delta, saved, run)
