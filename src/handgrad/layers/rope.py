"""Fixed positions: rotary on queries and keys, sinusoidal on the stream, ALiBi on scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.layers.frequencies import Plain, Scaling
from handgrad.rules.alibi import ALIBI, slopes
from handgrad.rules.rope import HALF_SPLIT, ROPE, Pairing
from handgrad.rules.sinusoidal import SINUSOIDAL, table


@dataclass(frozen=True)
class Rotary:
    """x̃_t = x_t R_t for queries or keys x ~ (B, H, T, width) or (B, T, width), positions counted from `run.position`.

    Apply it to q and to k after the heads are cut and before k enters a cache.

    >>> f = Rotary(4)
    >>> f.forward({}, torch.ones(1, 1, 4), Run(position=1))[0]
    tensor([[[-0.3012,  0.9900,  1.3818,  1.0099]]])
    """

    width: int
    scaling: Scaling = field(default_factory=Plain)
    pairing: Pairing = HALF_SPLIT

    def __post_init__(self) -> None:
        if self.width % 2 or self.width < 2:
            raise ConfigError(
                f"a head of width {self.width} cannot be cut into pairs: rotary positions turn 2 features at a time; "
                f"choose heads of width {max(self.width - 1, 2)} or {self.width + 1}"
            )

    @property
    def omega(self) -> Tensor:
        return torch.tensor(self.scaling.frequencies(self.width), dtype=torch.float64)

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, x: Tensor, run: Run) -> tuple[Tensor, Any]:
        if x.shape[-1] != self.width:
            raise ShapeError(
                f"rotary positions were made for heads of width {self.width}, found {x.shape[-1]}: "
                "the width decides the angles"
            )
        phi = self.phi(positions(run.position, x.shape[-2]).to(x.device))
        phi = phi.unsqueeze(-3) if x.ndim > phi.ndim else phi  # (B, T, D/2) -> (B, 1, T, D/2): for every head
        return ROPE.forward(x, phi, self.pairing, run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        return ROPE.backward(Delta, saved, run)

    def phi(self, t: Tensor) -> Tensor:
        """φ = t·ω_i ~ (..., T, width/2), in float64: at position 10,000 an angle in float32 is up to 5e-4 off."""
        return t[..., None] * self.omega.to(t.device)


@dataclass(frozen=True)
class Sinusoidal:
    """a' = a + S for a ~ (B, T, width); no context is too long for it."""

    width: int
    base: float = 10_000.0

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        return SINUSOIDAL.forward(a, table(positions(run.position, a.shape[-2]), self.width, self.base), run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        return SINUSOIDAL.backward(Delta, saved, run)


@dataclass(frozen=True)
class Alibi:
    """biased = raw + slope_h (β - α), for scores ~ (B, heads, T, S); the last key is the last query's own token."""

    heads: int

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, raw: Tensor, run: Run) -> tuple[Tensor, Any]:
        return ALIBI.forward(raw, slopes(self.heads), run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        return ALIBI.backward(Delta, saved, run)


def positions(first: int | Tensor, T: int) -> Tensor:
    """Positions ~ (T,) from `first` on, or (B, T) where each sample has a first one of its own."""
    if isinstance(first, int):
        return torch.arange(first, first + T)
    return first[..., None] + torch.arange(T, device=first.device)


def to_half_split(w: Tensor, heads: int) -> Tensor:
    """w_q or w_k ~ (n_in, heads·D), or b_q or b_k ~ (heads·D,), of a model with interleaved pairs, for half-split ones.

    The features of each head change places, the same way in q and k, so every q·k stays as it was.
    """
    return w.unflatten(-1, (heads, -1, 2)).transpose(-1, -2).flatten(-3)


def to_interleaved(w: Tensor, heads: int) -> Tensor:
    """The way back: `to_interleaved(to_half_split(w, heads), heads)` is w."""
    return w.unflatten(-1, (heads, 2, -1)).transpose(-1, -2).flatten(-3)
