"""The oracle: torch's autograd, run through the very forward pass that the hand-written backward belongs to.

Explicit forwards are plain torch, so autograd differentiates them as they stand. Every signal x that the forward pass
shows is compared with the Delta_x that the backward pass shows at the same path, then every parameter's gradient, then
the error that leaves below. What autograd cannot tell: whether the *forward* pass is the one that was meant; for that
each case has an independent reference (`check/cases.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from handgrad.check.report import LawBroken, Report, Row
from handgrad.check.tolerance import FLOAT64
from handgrad.core.gradients import Accumulate
from handgrad.core.layer import Layer
from handgrad.core.params import Buffer
from handgrad.core.run import Run


@dataclass
class Probe:
    """Shown everything: keeps the forward signals with their autograd gradients, and the Deltas in their order."""

    forward: dict[str, Tensor] = field(default_factory=dict)
    events: dict[str, Tensor | None] = field(default_factory=dict)

    def wants(self, path: str) -> bool:
        return True

    def see(self, path: str, x: Any) -> Any:
        if is_error(path):
            self.events[path] = x
        else:
            if isinstance(x, Tensor) and x.requires_grad:
                x.retain_grad()
            self.forward[path] = x
        return x

    def again(self) -> Passing:
        return Passing()


class Passing:
    """The second forward of a recomputed layer: explicit like the first, and already compared."""

    def wants(self, path: str) -> bool:
        return True

    def see(self, path: str, x: Any) -> Any:
        return x

    def again(self) -> Passing:
        return self


@dataclass(frozen=True)
class Noting:
    """An `Accumulate` that also notes, among the Deltas, when each gradient arrives."""

    only_sums: ClassVar[bool] = True
    inner: Accumulate
    events: dict[str, Tensor | None]
    tied: Mapping[str, str]
    path: str = ""

    def __truediv__(self, part: str) -> Noting:
        return Noting(self.inner / part, self.events, self.tied, f"{self.path}{part}.")

    def noted(self, name: str) -> Accumulate:
        slot = self.tied.get(self.path + name, self.path + name)
        self.events.pop(slot, None)  # a slot that is used twice is complete at its last arrival
        self.events[slot] = None
        return self.inner

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        self.noted(name).outer(name, a, Delta)

    def total(self, name: str, Delta: Tensor) -> None:
        self.noted(name).total(name, Delta)

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        self.noted(name).rows(name, ids, Delta)

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        self.noted(name).scaled(name, x, Delta)

    def finished(self) -> None:
        """Noted as it comes."""


def is_error(path: str) -> bool:
    return path.rpartition(".")[2].startswith("Delta_")


def compare(
    layer: Layer,
    p: Buffer,
    a: Any,
    Delta: Tensor,
    run: Run | None = None,
    zeros: tuple[str, ...] = (),
    tolerance: float = FLOAT64,
) -> Report:
    """Every Delta_x and every gradient of `layer` at parameters p and input a, against autograd.

    zeros names the gradients that must vanish: they are held to `tolerance` times the norm of the whole gradient.

    >>> import handgrad as hg, torch
    >>> f = hg.Linear(3, 2, std=1.0)
    >>> p = hg.Layout(f.slots()).draw(seed=1, dtype=torch.float64)
    >>> print(compare(f, p, torch.randn(2, 5, 3).double(), torch.randn(2, 5, 2).double()).ok)
    True
    """
    probe = Probe()
    run = replace(run or Run(), signals=probe)
    theta = p.like(p.flat.detach().clone().requires_grad_())
    a = through(a, lambda x: x.detach().clone().requires_grad_() if x.is_floating_point() else x)
    with torch.enable_grad():
        y, saved = layer.forward(theta.tree, a, run)
        (y * Delta).sum().backward()

    g = p.layout.zeros(p.flat.dtype, p.flat.device)
    with torch.no_grad():
        receiver = Noting(Accumulate(g.tree), probe.events, p.layout.tied)
        below = layer.backward(p.tree, Delta, saved, receiver, run)
    oracle = p.like(theta.flat.grad if theta.flat.grad is not None else torch.zeros_like(p.flat))

    rows = []
    whole = float(oracle.flat.norm())
    for path, hand in probe.events.items():
        if hand is None:
            if path in p.layout.slots:
                rows.append(judged(path, g[path], oracle[path], tolerance, whole if path in zeros else None))
        elif not path.rpartition(".")[2].startswith("Delta_from_"):
            rows.append(judged(path, hand, gradient_at(probe, path), tolerance))
    for name in p:  # what backward never handed over
        if name not in probe.events:
            rows.append(judged(name, g[name], oracle[name], tolerance, whole if name in zeros else None))
    inputs, belows = (a, below) if isinstance(a, tuple) else ((a,), (below,))
    for i, (x, D) in enumerate(zip(inputs, belows, strict=True)):
        if isinstance(x, Tensor) and x.is_floating_point():
            rows.append(judged(f"Delta below{f' {i}' if len(inputs) > 1 else ''}", D, x.grad, tolerance))
    return Report(tuple(rows), tolerance)


def gradient_at(probe: Probe, path: str) -> Tensor:
    folder, dot, name = path.rpartition(".")
    x = probe.forward.get(folder + dot + name.removeprefix("Delta_"))
    if x is None:
        raise LawBroken(f"backward shows {path}, but forward shows no {name.removeprefix('Delta_')} there")
    if x.grad is None:
        raise LawBroken(
            f"autograd gave {path.replace('Delta_', '')} no gradient: forward does not use what show returned"
        )
    return x.grad


def judged(signal: str, hand: Tensor | None, oracle: Tensor, tolerance: float, whole: float | None = None) -> Row:
    if hand is None or hand.shape != oracle.shape:
        found = "nothing" if hand is None else str(tuple(hand.shape))
        return Row(signal, float("inf"), 0.0, False, f"shape {found}, oracle {tuple(oracle.shape)}")
    size = float(oracle.norm())
    if whole is not None:
        error = max(float(hand.norm()), size) / whole
        return Row(signal, error, size, error <= tolerance, "must vanish")
    if size == 0:
        return Row(signal, float("nan"), 0.0, False, "the oracle is 0 here, so nothing is compared")
    error = float((hand - oracle).norm()) / size
    return Row(signal, error, size, error <= tolerance, "" if error == error else "not finite")


def through(a: Any, f: Any) -> Any:
    """f on every tensor of a feature map or a tuple of them."""
    return tuple(through(x, f) for x in a) if isinstance(a, tuple) else f(a) if isinstance(a, Tensor) else a
