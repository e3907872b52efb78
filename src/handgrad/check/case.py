"""A case: one layer in one situation, with small prime sizes, random parameters, and an independent reference.

    B = 2 samples, T = 5 tokens, H = 3 heads, D = 7 features a head, C = 21 = H·D width, V = 11 vocabulary

All law tests run over the table of cases (`check/cases/`). `reference` computes the same forward pass with torch's own
library functions, since an oracle that differentiates our forward cannot know that the forward is the one meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from handgrad.core import Buffer, Layer, Layout, Rule, Run
from handgrad.core.params import Slot, Tree, generator_of

B, T, H, D, V = 2, 5, 3, 7, 11
C = H * D

stream = ((B, T, C),)
heads = ((B, H, T, D), (B, H, T, D), (B, H, T, D + 4))
ids = ((3, 1, 3, 0, 10), (1, 1, 9, 2, 3))


@dataclass(frozen=True)
class Applied:
    """A rule as a layer: its tensor inputs are the feature map, its other arguments are fixed."""

    rule: Rule
    constants: tuple[Any, ...] = ()

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Any, run: Run) -> tuple[Tensor, Any]:
        return self.rule.forward(*(a if isinstance(a, tuple) else (a,)), *self.constants, run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Any, run: Run) -> Any:
        return self.rule.backward(Delta, saved, run)


@dataclass(frozen=True)
class Case:
    """One layer in one situation.

    shapes      of the random inputs, or `ids` (a list of rows) for token ids
    reference   (p, a) -> the same output by torch's library functions
    rule        the rule module that this case is the first test of
    causal      no output at t reads an input after t
    samplewise  each sample's output is the one it has alone
    blind       the output depends on the input's shape alone
    zeros       gradients that must vanish
    run         how it is run
    """

    name: str
    layer: Layer
    shapes: tuple[tuple[int, ...], ...] = ()
    reference: Callable[[Buffer, Any], Tensor] | None = None
    rule: str = ""
    ids: tuple[tuple[int, ...], ...] = ()
    causal: bool = False
    samplewise: bool = True
    blind: bool = False
    zeros: tuple[str, ...] = ()
    run: Run = field(default_factory=Run)
    tied: dict[str, str] = field(default_factory=dict)

    def draw(self, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Buffer, Any, Tensor]:
        """Random parameters (never their first values: γ = 1 and β = 0 hide missing factors), input and upstream Δ."""
        layout = Layout(self.layer.slots(), self.tied)
        p = layout.zeros(torch.float64)
        for name in p:
            p[name].copy_(normal(p[name].shape, seed, name) * 0.5)
        inputs = tuple(normal(shape, seed, f"input {i}") for i, shape in enumerate(self.shapes))
        a = torch.tensor(self.ids) if self.ids else inputs if len(inputs) > 1 else inputs[0]
        y, _ = self.layer.forward(p.tree, a, self.run)
        Delta = normal(y.shape, seed, "Delta")
        cast = lambda x: x.to(dtype) if x.is_floating_point() else x  # noqa: E731
        return (
            p.like(p.flat.to(dtype)),
            tuple(map(cast, a)) if isinstance(a, tuple) else cast(a),
            cast(Delta),
        )


def normal(shape: tuple[int, ...], seed: int, name: str) -> Tensor:
    return torch.randn(shape, generator=generator_of(seed, name), dtype=torch.float64)
