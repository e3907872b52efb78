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

    Laws, each asserted for every layer over the table of cases in `check/cases/` (`check/laws.py` holds them):

    oracle        every shown Delta_x is dL/dx, and every gradient dL/dw, of *this very forward*
    reference     the forward pass is the one that was meant: an independent computation gives the same
    adjoint       <Delta, J v> = <Jᵗ Delta, v> for random v and Delta
    linearity     backward(αΔ + βΔ') = α backward(Δ) + β backward(Δ')
    accumulation  two backward passes into one receiver give twice the gradient
    purity        no tensor is written to: not p, not a, not Delta, not what was saved (its containers are used up)
    causality     where the layer is causal, Delta at position t reaches positions <= t only
    batch         each sample's output and error signal are those it has alone
    recompute     Recompute(f) = f
    agreement     fused = explicit
    """

    def slots(self) -> dict[str, Slot]: ...

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]: ...

    def backward(
        self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None: ...
