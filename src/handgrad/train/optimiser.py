"""AdamW, SGD and clipping, as vector operations on flat buffers.

m ← β1 m + (1 - β1) g                    mean of the gradient
v ← β2 v + (1 - β2) g ∘ g                mean of its square
p ← p - lr · weight_decay · p            matrices only: the slice [:n_decayed] of the flat buffer
p ← p - lr · m̂ / (√v̂ + ε)                m̂ = m/(1 - β1^t),  v̂ = v/(1 - β2^t): both means start at 0, and that is undone

SGD has one moment, which is a sum: m ← β1 m + g, and p ← p - lr · m after the same decay.

All parameters are one vector, so tied parameters are stepped and counted once, and the gaps of the layout, whose
gradient is 0, stay 0. The formulas below are the specification. torch's fused operator does the same in one pass over
memory; it is private to torch, used in this file only, and only where a probe finds that it agrees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, sqrt
from typing import Any

import torch
from torch import Tensor

from handgrad.train.config import TrainConfig

EPSILON = 1e-8
PIECE = 1 << 12  # elements of one sum of squares
SHORT = 1 << 16  # elements whose squares one float32 sum takes without loss


@dataclass
class State:
    """The two moments, and how many updates they have seen. `update_all` writes into it; SGD has an empty v."""

    m: Tensor
    v: Tensor
    step: int = 0

    @classmethod
    def zeros(cls, p_flat: Tensor, optimiser: str = "adamw") -> State:
        return cls(torch.zeros_like(p_flat), torch.zeros_like(p_flat[: 0 if optimiser == "sgd" else None]))


def update_all(p_flat: Tensor, g_flat: Tensor, state: State, lr: float, config: TrainConfig, n_decayed: int) -> None:
    """One update of p_flat ~ (N,) from its gradient g_flat ~ (N,), in place; `state` moves on by one.

    >>> p, g = torch.ones(2, dtype=torch.float64), torch.full((2,), 0.5, dtype=torch.float64)
    >>> update_all(p, g, State.zeros(p), lr=0.1, config=TrainConfig(weight_decay=0.01), n_decayed=1)
    >>> [round(x, 9) for x in p.tolist()]
    [0.899000002, 0.900000002]
    """
    state.step += 1
    for where, decayed in ((slice(0, n_decayed), True), (slice(n_decayed, None), False)):
        if (p := p_flat[where]).numel():
            update_slice(p, g_flat[where], state, where, lr, config, decayed)


def update_slice(
    p: Tensor, g: Tensor, state: State, where: slice, lr: float, config: TrainConfig, decayed: bool
) -> None:
    """The update number `state.step` of one piece of the flat vector: p and g of the elements `where`, p in place."""
    decay = config.weight_decay if decayed else 0.0
    if config.optimiser == "sgd":
        return sgd(p, g, state.m[where], lr, config.beta1, decay)
    update = fused if uses_fused(config, p.device.type) else explicit
    update(p, g, state.m[where], state.v[where], state.step, lr, config.beta1, config.beta2, decay)


def sgd(p: Tensor, g: Tensor, m: Tensor, lr: float, momentum: float, weight_decay: float) -> None:
    """p, m in place.

    >>> p, m = torch.ones(1), torch.full((1,), 2.0)
    >>> sgd(p, torch.ones(1), m, lr=0.1, momentum=0.5, weight_decay=0.0)
    >>> m.item(), round(p.item(), 6)
    (2.0, 0.8)
    """
    m.mul_(momentum).add_(g)
    if weight_decay:
        p.mul_(1 - lr * weight_decay)
    p.add_(m, alpha=-lr)


def explicit(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, beta1: float, beta2: float, weight_decay: float
) -> None:
    """The formulas as written, in place; t counts updates from 1."""
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = v.sqrt().div_(sqrt(1 - beta2**t)).add_(EPSILON)  # √v̂ + ε
    if weight_decay:
        p.mul_(1 - lr * weight_decay)
    p.addcdiv_(m, root, value=-lr / (1 - beta1**t))


def fused(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, beta1: float, beta2: float, weight_decay: float
) -> None:
    """The same by torch's operator."""
    how: dict[str, Any] = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "eps": EPSILON}
    count = torch.full((), float(t), device=p.device)
    torch._fused_adamw_([p], [g], [m], [v], [], [count], **how, amsgrad=False, maximize=False)


def uses_fused(config: TrainConfig, device_type: str) -> bool:
    """Whether the update of AdamW runs torch's operator: unless "explicit" is asked for, where it exists and agrees."""
    as_planned_for = "cpu" if device_type == "meta" else device_type  # a plan counts what a CPU would do
    return config.implementation != "explicit" and fused_agrees(as_planned_for)


@lru_cache
def fused_agrees(device_type: str) -> bool:
    """Whether torch has the operator on this kind of device, and two steps of it are the formulas' to 1e-12."""
    p = torch.linspace(-1, 1, 37, dtype=torch.float64, device=device_type)
    ends = []
    for update in (explicit, fused):
        q, m, v = p.clone(), torch.zeros_like(p), torch.zeros_like(p)
        try:
            for t in (1, 2):
                update(q, q.cos() * t, m, v, t, 0.1, 0.9, 0.99, 0.1)
        except (AttributeError, TypeError, RuntimeError):
            return False
        ends.append(torch.cat([q, m, v]))
    return bool((ends[0] - ends[1]).norm() <= 1e-12 * ends[0].norm())


def clip(g_flat: Tensor, max_norm: float, parts: Iterable[Tensor] | None = None) -> float:
    """Scale the gradient, in place, to `max_norm` where its norm is larger; 0 is off. The norm from before is returned.

    A norm that is not finite is returned as it is and nothing is scaled: the caller has to stop. With the `parts` that
    g_flat consists of, the norm is, to the last bit, that of a gradient that comes part by part.

    >>> g = torch.tensor([3.0, 4.0])
    >>> clip(g, 1.0), g
    (5.0, tensor([0.6000, 0.8000]))
    """
    norm = norm_of(g_flat) if parts is None else sqrt(fsum(norm_of(g.flatten()) ** 2 for g in parts))
    if (scale := shrinking(norm, max_norm)) != 1.0:
        g_flat.mul_(scale)
    return norm


def clip_each(parts: Iterable[Tensor], max_norm: float) -> None:
    """Scale each part, in place, to `max_norm` where its own norm is larger."""
    for g in parts:
        if (scale := shrinking(norm_of(g.flatten()), max_norm)) != 1.0:
            g.mul_(scale)


def shrinking(norm: float, max_norm: float) -> float:
    """What to multiply a gradient of this norm by.

    >>> shrinking(4.0, 1.0), shrinking(0.5, 1.0), shrinking(4.0, 0.0)
    (0.25, 1.0, 1.0)
    """
    return max_norm / norm if 0 < max_norm < norm < float("inf") else 1.0


def norm_of(x: Tensor) -> float:
    """The norm of a long vector, piece by piece: one float32 sum over 10⁸ squares is off by a hundredth.

    >>> norm_of(torch.full((1 << 24,), 0.5))
    2048.0
    """
    if len(x) <= SHORT:
        return float(torch.linalg.vector_norm(x))
    whole = len(x) // PIECE * PIECE
    norms = torch.linalg.vector_norm(x[:whole].view(-1, PIECE), dim=1)
    rest = torch.linalg.vector_norm(x[whole:])
    return float(torch.linalg.vector_norm(torch.cat([norms, rest[None]]).double()))
