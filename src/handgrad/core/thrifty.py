"""A chain that does not keep what is cheap to form again.

In a chain … c, d … with c cheap (a norm, an activation), d usually keeps c's output, one of the factors of its
gradient, and c keeps things of that size itself. Here the chain keeps c's *input* and nothing else of c, leaves a gap
where d kept c's output, and forms both again just before d's backward needs them. The products are not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from handgrad.core.combine import Chain, inside
from handgrad.core.gradients import Gradients
from handgrad.core.layer import Feature, Layer, Saved
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run


class Gap:
    """Where a saved tensor was taken out. Each chain has gaps of its own, since a chain may stand inside another."""


@dataclass(frozen=True)
class Thrifty:
    """The same map as `chain`, with the outputs of its `cheap` parts formed again instead of kept.

    a' and Δ are those of the chain, bit for bit. The last part of a chain is never cheap: nobody here keeps its output.
    """

    chain: Chain
    cheap: tuple[str, ...]

    def slots(self) -> dict[str, Slot]:
        return self.chain.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        saved: dict[str, Any] = {}
        gap: Gap | None = None  # stands for a, where a is the output of a cheap part
        for name, f in self.chain.parts.items():
            below = a
            a, kept = f.forward(inside(p, name), a, run / name)
            a = run.show(name, a)
            if gap is not None:
                kept = exchanged(kept, below, gap)
            gap = Gap() if name in self.cheap else None
            saved[name] = kept if gap is None else (gap, below)
        return a, saved

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        names = list(self.chain.parts)
        again: dict[str, Any] = {}
        for name, under in zip(reversed(names), [*reversed(names[:-1]), None], strict=True):
            kept = again.pop(name) if name in again else saved.pop(name)
            if under in self.cheap:
                gap, below = saved.pop(under)
                y, again[under] = self.chain.parts[under].forward(inside(p, under), below, run.again() / under)
                y = run.again().show(under, y)
                kept = exchanged(kept, gap, y)
            Delta = run.show(f"Delta_{name}", Delta)
            receiver = grads / name
            Delta = self.chain.parts[name].backward(inside(p, name), Delta, kept, receiver, run / name)
            receiver.finished()
            kept = y = None  # nothing but Delta goes further down
        return Delta


def exchanged(saved: Any, old: Any, new: Any) -> Any:
    """The same containers, with `new` wherever they hold this very `old`."""
    if isinstance(saved, torch.Tensor | Gap):
        return new if saved is old else saved
    if isinstance(saved, tuple) and hasattr(saved, "_fields"):
        return type(saved)(*(exchanged(x, old, new) for x in saved))
    if isinstance(saved, tuple | list):
        return type(saved)(exchanged(x, old, new) for x in saved)
    if isinstance(saved, dict):
        return {name: exchanged(x, old, new) for name, x in saved.items()}
    return saved


def rewritten(layer: Any, by: Callable[[Layer], Layer]) -> Any:
    """The same tree of layers with `by` applied to each, the innermost first.

    Layers are found in the fields of layers, and in tuples and mappings there.
    """
    if isinstance(layer, tuple):
        return tuple(rewritten(part, by) for part in layer)
    if isinstance(layer, Mapping):
        return {name: rewritten(part, by) for name, part in layer.items()}
    if not is_dataclass(layer) or isinstance(layer, type) or not isinstance(layer, Layer):
        return layer
    changes = {}
    for field in fields(layer):
        old = getattr(layer, field.name)
        if isinstance(old, (tuple, Mapping, Layer)):
            new = rewritten(old, by)
            if new is not old and new != old:
                changes[field.name] = new
    return by(replace(layer, **changes) if changes else layer)
