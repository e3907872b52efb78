"""Composition: the chain rule, read in reverse.

A part named `x` sits at the path `x.`, and its output is the signal `x`, whose error is `Delta_x`.
What forward saved is given up part by part on the way down, so that memory shrinks while backward runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.layer import Feature, Layer, Saved
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.roomy import moved
from handgrad.core.run import Run


@dataclass(frozen=True)
class Chain:
    """Named parts, one after the other.

    a' = f_n(… f_1(a))          forward
    Δ  = f_1*(… f_n*(Δ'))       backward: the parts in reverse, each with what it saved
    """

    parts: Mapping[str, Layer]

    def slots(self) -> dict[str, Slot]:
        return prefixed({name: f.slots() for name, f in self.parts.items()})

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        saved = {}
        for name, f in self.parts.items():
            a, saved[name] = f.forward(inside(p, name), a, run / name)
            a = run.show(name, a)
        return a, saved

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        for name, f in reversed(list(self.parts.items())):
            Delta = run.show(f"Delta_{name}", Delta)
            receiver = grads / name
            Delta = f.backward(inside(p, name), Delta, saved.pop(name), receiver, run / name)
            receiver.finished()
        return Delta


@dataclass(frozen=True)
class Sequence:
    """A chain whose parts share one path and bring their own, distinct names: a block is a sequence of residuals."""

    parts: tuple[Layer, ...]

    def slots(self) -> dict[str, Slot]:
        slots: dict[str, Slot] = {}
        for f in self.parts:
            if twice := slots.keys() & f.slots().keys():
                raise ConfigError(f"two parts of one sequence name the parameter {sorted(twice)[0]}; use a Chain")
            slots |= f.slots()
        return slots

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        saved = []
        for f in self.parts:
            a, kept = f.forward(p, a, run)
            saved.append(kept)
        return a, saved

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        for f in reversed(self.parts):
            Delta = f.backward(p, Delta, saved.pop(), grads, run)
        return Delta


@dataclass(frozen=True)
class Residual:
    """a' = a + f(a), hence Δ = Δ' + f*(Δ'). The sum is shown as the signal `name`."""

    name: str
    f: Layer

    def slots(self) -> dict[str, Slot]:
        return self.f.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        y, saved = self.f.forward(p, a, run)
        return run.show(self.name, a + y), saved

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        Delta = run.show(f"Delta_{self.name}", Delta)
        return Delta + self.f.backward(p, Delta, saved, grads, run)


@dataclass(frozen=True)
class Fork:
    """Branches leave one input and give one output each; going back they meet there again.

    (a'_1, …, a'_n) = (f_1(a), …, f_n(a))
    Δ = f_1*(Δ'_1) + … + f_n*(Δ'_n)          each term is shown as `Delta_from_<branch>`
    """

    branches: Mapping[str, Layer]

    def slots(self) -> dict[str, Slot]:
        return prefixed({name: f.slots() for name, f in self.branches.items()})

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[tuple[Feature, ...], Saved]:
        outputs, saved = [], {}
        for name, f in self.branches.items():
            y, saved[name] = f.forward(inside(p, name), a, run / name)
            outputs.append(run.show(name, y))
        return tuple(outputs), saved

    def backward(self, p: Tree, Deltas: tuple[Feature, ...], saved: Saved, grads: Gradients, run: Run) -> Any:
        below: Any = None
        for (name, f), Delta in zip(self.branches.items(), Deltas, strict=True):
            Delta = run.show(f"Delta_{name}", Delta)
            term: Any = f.backward(inside(p, name), Delta, saved[name], grads / name, run / name)
            if term is not None:
                term = run.show(f"Delta_from_{name}", term)
                below = term if below is None else below + term
        return below


@dataclass(frozen=True)
class Sum:
    """The outputs of a fork added up: a' = Σ f_i(a); every branch receives the whole Δ', not a share of it."""

    fork: Fork

    def slots(self) -> dict[str, Slot]:
        return self.fork.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        (first, *others), saved = self.fork.forward(p, a, run)
        for y in others:
            first = first + y
        return first, saved

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        return self.fork.backward(p, (Delta,) * len(self.fork.branches), saved, grads, run)


@dataclass(frozen=True)
class Gate:
    """Two branches of one input multiplied: a' = f(a) ∘ g(a). The product is shown as the signal `name`.

    Δ_f = Δ' ∘ g(a)     Δ_g = Δ' ∘ f(a)     Δ = f*(Δ_f) + g*(Δ_g)          the product rule
    """

    name: str
    fork: Fork

    def slots(self) -> dict[str, Slot]:
        return self.fork.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        (f, g), saved = self.fork.forward(p, a, run)
        return run.show(self.name, f * g), (saved, f, g)

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        saved_fork, f, g = saved
        Delta = run.show(f"Delta_{self.name}", Delta)
        Deltas = (Delta * g, Delta * f)  # of  f * g, by f and by g
        return self.fork.backward(p, Deltas, saved_fork, grads, run)


@dataclass(frozen=True)
class Recompute:
    """f with less memory: only the input is kept, and backward computes the forward pass again.

    Costs one more forward of f. Dropout draws the same mask the second time, because randomness has no state.
    """

    f: Layer

    def slots(self) -> dict[str, Slot]:
        return self.f.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        return moved(self.f.forward(p, a, run)[0]), a

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        _, saved = self.f.forward(p, saved, run.again())
        return self.f.backward(p, Delta, saved, grads, run)


def inside(p: Tree, name: str) -> Tree:
    """The parameters of one part; empty for a part that has none."""
    part = p.get(name, {})
    assert isinstance(part, dict), f"{name} is a parameter, not a part"
    return part
