"""Positions, norms, gates, low-rank updates and losses once more, by plain loops or library functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from handgrad.check.references import Named, attention, known, linear, norm
from handgrad.core.params import generator_of


def rotary(x: Tensor, first: int, interleaved: bool, omega: tuple[float, ...] | None = None) -> Tensor:
    """Each pair as a complex number times exp(i·angle), position by position."""
    width = x.shape[-1]
    omega = omega or tuple(math.exp(-math.log(10_000.0) * 2 * i / width) for i in range(width // 2))
    parts = torch.zeros_like(x)
    for t in range(x.shape[-2]):
        for i in range(width // 2):
            one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + width // 2)
            z = torch.complex(x[..., t, one], x[..., t, two])
            angle = torch.tensor((first + t) * omega[i], dtype=torch.float64)
            z = z * torch.polar(torch.ones_like(angle), angle)
            parts[..., t, one], parts[..., t, two] = z.real, z.imag
    return parts


def sinusoidal(a: Tensor, first: int, base: float = 10_000.0) -> Tensor:
    """The table entry by entry."""
    width, out = a.shape[-1], a.clone()
    for t in range(a.shape[-2]):
        for j in range(width):
            angle = (first + t) / base ** ((j - j % 2) / width)
            out[..., t, j] += math.sin(angle) if j % 2 == 0 else math.cos(angle)
    return out


def alibi(raw: Tensor, slopes: list[float], first: int) -> Tensor:
    out = raw.clone()
    for h, slope in enumerate(slopes):
        for i in range(raw.shape[-2]):
            for j in range(min(first + i, raw.shape[-1])):
                out[:, h, i, j] -= slope * (first + i - j)
    return out


def gated(f: Callable[[Tensor], Tensor]) -> Callable[[Named, Tensor], Tensor]:
    def reference(p: Named, a: Tensor) -> Tensor:
        q = known(p)
        return linear(q, "down.", f(linear(q, "gate.", a)) * linear(q, "up.", a))

    return reference


def post_norm(p: Named, a: Tensor, heads: int) -> Tensor:
    p = known(p)
    h = norm(p, "norm_1.", a + attention(p, "attention.", a, heads, True))
    return norm(p, "norm_2.", h + linear(p, "mlp.down.", F.relu(linear(p, "mlp.up.", h))))


def low_rank(p: Named, a: Tensor, s: float, rate: float = 0.0, seed: int = 0) -> Tensor:
    """One dense matrix w + s A B; with dropout, on the update's input alone, the mask is drawn again."""
    p = known(p)
    base = F.linear(a, p["base.w"].mT, p.get("base.b"))
    if rate:
        kept = torch.rand(a.shape, generator=generator_of(seed, "lora.")) >= rate
        a = a.masked_fill(~kept, 0.0) / (1 - rate)
    return base + F.linear(a, torch.einsum("ir,ro->oi", p["lora.A"], p["lora.B"]) * s)


def smoothed(logits: Tensor, y: Tensor, s: float) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=-1, label_smoothing=s)


def smoothed_where_tokens_exist(a: Any, y: Tensor, s: float, exists: Tensor) -> Tensor:
    """Row by row, each with its own, shorter vocabulary."""
    total, n = torch.zeros((), dtype=torch.float64), 0
    for row, target in zip(a.flatten(0, -2), y.flatten(), strict=True):
        if target >= 0:
            at = int(exists[: int(target)].sum())
            total = total + F.cross_entropy(row[exists][None], torch.tensor([at]), label_smoothing=s)
            n += 1
    return total / n


def z_loss(logits: Tensor, y: Tensor, z: float, n: int) -> Tensor:
    """By exp, sum and log, row by row."""
    total = torch.zeros((), dtype=torch.float64)
    for row, target in zip(logits.flatten(0, -2), y.flatten(), strict=True):
        if target >= 0:
            total = total + row.exp().sum().log() ** 2
    return z * total / n
