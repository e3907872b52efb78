"""A layer computed in half precision on numbers that are rounded just before it needs them, and dropped after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from handgrad.core.gradients import Gradients
from handgrad.core.layer import Feature, Layer, Saved
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run


@dataclass(frozen=True)
class Narrowed:
    """f on its parameters in `dtype`: what a shadow of all parameters gives, bit for bit, without holding it.

    Each pass reads the parameters once more. The gradient is of the parameters, as ever.
    """

    f: Layer
    dtype: torch.dtype

    def slots(self) -> dict[str, Slot]:
        return self.f.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        return self.f.forward(narrow(p, self.dtype), a, run)

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        return self.f.backward(narrow(p, self.dtype), Delta, saved, grads, run)


def narrow(p: Tree, dtype: torch.dtype) -> Tree:
    """
    >>> narrow({"up": {"w": torch.ones(1)}}, torch.bfloat16)
    {'up': {'w': tensor([1.], dtype=torch.bfloat16)}}
    """
    return {name: narrow(x, dtype) if isinstance(x, dict) else x.to(dtype) for name, x in p.items()}
