"""Two parts that only the laboratory needs: matrices that are not learned, and positions in the size of the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.rules.sinusoidal import SINUSOIDAL, table


@dataclass(frozen=True)
class OneHot:
    """a' = Σ_j a_j E_j for a ~ (..., d·d), d pieces side by side; E_j ~ (d, d) is 0 but for a 1 at (j, j).

    The same place in the network as learned matrices V_j, the row blocks of a `Linear(d·d, d)`.

    >>> OneHot(2).forward({}, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), Run())[0]
    tensor([[1., 4.]])
    """

    width: int

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, None]:
        return a @ one_hot(self.width).to(a), None

    def backward(self, p: Tree, Delta: Tensor, saved: None, grads: Gradients, run: Run) -> Tensor:
        return Delta @ one_hot(self.width).to(Delta).mT  # of  a @ E


@lru_cache(maxsize=8)
def one_hot(d: int) -> Tensor:
    """E_1 … E_d as row blocks, (d·d, d)."""
    E = torch.zeros(d, d, d)
    j = torch.arange(d)
    E[j, j, j] = 1.0
    return E.flatten(0, 1)


@dataclass(frozen=True)
class Waves:
    """a' = a + √2·scale·S with the sinusoidal table S: in the mean square as large as tokens of that spread."""

    width: int
    scale: float

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        t = torch.arange(a.shape[-2], device=a.device) + run.position
        return SINUSOIDAL.forward(a, sqrt(2) * self.scale * table(t, self.width, 10_000.0), run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        return SINUSOIDAL.backward(Delta, saved, run)
