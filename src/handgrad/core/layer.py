"""What a layer is: a pair of maps, and the laws that the tests hold it to."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run

Saved = Any
"""What backward needs from forward. Opaque to everybody but the layer that made it."""

Feature = Any
"""A feature map a ~ (B, T, ...), or a tuple of them where a layer has several inputs or outputs."""


@runtime_checkable
class Layer(Protocol):
    """Carries feature maps a up and error signals Delta = dL/da down. Frozen, without state, without a name.

    slots()                                     names -> shapes of the parameters, relative to this layer
    forward(p, a, run)                          -> (a', saved)
    backward(p, Delta, saved, grads, run)       -> Delta of a; None when nothing flows below (a is token ids)

    Laws, each asserted for every layer in `check/cases.py`:

    1. oracle        every shown Delta_x is dL/dx, and every gradient dL/dw, of *this very forward*
    2. adjoint       <Delta, J v> = <Jᵗ Delta, v> for random v and Delta
    3. linearity     backward(αΔ + βΔ') = α backward(Δ) + β backward(Δ')
    4. accumulation  two backward passes into one receiver give twice the gradient
    5. purity        p, a, Delta and saved are left as they were
    6. causality     where the layer is causal, Delta at position t reaches positions <= t only
    7. batch         each sample's output and error signal are those it has alone
    8. agreement     fused = explicit
    9. recompute     Recompute(f) = f
    """

    def slots(self) -> dict[str, Slot]: ...

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]: ...

    def backward(
        self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None: ...
