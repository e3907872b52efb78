"""Rotary positions (RoPE): the features of a query or key are taken in pairs, and each pair is turned by an angle that
grows with the token's position, so that the agreement of two tokens depends on their distance alone.

forward      x̃_t = x_t R_t,   R_t block-diagonal, one turn for each pair i, by the angle φ = t·ω_i:
             first~ = first cos φ - second sin φ         second~ = second cos φ + first sin φ
backward     Δ_t = Δ̃_t R_tᵗ: the same turn by the angle -φ
             Δ_first = Δ_first~ cos φ + Δ_second~ sin φ     Δ_second = Δ_second~ cos φ - Δ_first~ sin φ
from         Δ̃·(dx R) = (Δ̃ Rᵗ)·dx,   and R Rᵗ = 1, hence ‖x̃‖ = ‖x‖;   R_m R_nᵗ = R_{m-n}
shapes       x, x̃, Δ̃, Δ ~ (..., T, D)   φ ~ (T, D/2), or with leading axes that broadcast; D even
             interleaved: pair i is (2i, 2i+1)          half-split: pair i is (i, i + D/2)
cost         3·N·D FLOPs either way; saves cos φ and sin φ, nothing of x. Turned in float32 at least
source       docs/equations.md, row "rotary (RoPE)"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run, widened


@dataclass(frozen=True)
class Pairing:
    """Which two features are a pair: `cut` gives (first, second), each half as wide; `join` is its inverse, and its
    transpose, since it only moves features."""

    name: str
    cut: Callable[[Tensor], tuple[Tensor, Tensor]]
    join: Callable[[Tensor, Tensor], Tensor]


def cut_interleaved(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0::2], x[..., 1::2]


def join_interleaved(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), -1).flatten(-2)


def cut_half_split(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def join_half_split(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second), -1)


INTERLEAVED = Pairing("interleaved", cut_interleaved, join_interleaved)
HALF_SPLIT = Pairing("half-split", cut_half_split, join_half_split)
PAIRINGS = {pairing.name: pairing for pairing in (INTERLEAVED, HALF_SPLIT)}


class Saved(NamedTuple):
    cos: Tensor  # (T, D/2)  cheaper to keep than to form again, and shared by all heads
    sin: Tensor  # (T, D/2)
    pairing: Pairing


def forward(x: Tensor, phi: Tensor, pairing: Pairing, run: Run) -> tuple[Tensor, Saved]:
    first, second = pairing.cut(widened(x))
    cos, sin = phi.cos().to(first.dtype), phi.sin().to(first.dtype)
    turned = pairing.join(first * cos - second * sin, second * cos + first * sin)
    return turned.to(x.dtype), Saved(cos, sin, pairing)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    cos, sin, pairing = saved
    D_first, D_second = pairing.cut(widened(Delta))  #        of  join
    Delta_first = D_first * cos + D_second * sin  #           of  first * cos, and of  first * sin
    Delta_second = D_second * cos - D_first * sin  #          of  second * cos, and of  - second * sin
    return pairing.join(Delta_first, Delta_second).to(Delta.dtype)  # of  cut


ROPE = Rule("rope", Pair(forward, backward))
