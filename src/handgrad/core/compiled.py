"""A layer whose two maps are each made into one compiled function by torch.compile.

The layer's own code is traced on tensors of the right shapes, so what is compiled is that code and nothing else. Only
what lies between its products is fused; the products stay the library's. The gradient's factors leave the compiled
function as they are, and are handed to the receiver outside of it.

A pass that somebody watches or that fills a cache runs as written. Nothing random is drawn in a compiled pass: a layer
with dropout must not be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.layer import Feature, Layer, Saved
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run

Function = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Compiled:
    """The same map as f. Equal blocks should share one `Compiled`: they then share its functions."""

    f: Layer
    made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def slots(self) -> dict[str, Slot]:
        return self.f.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        if run.signals is not None or run.cache is not None or not at_start(run.position):
            return self.f.forward(p, a, run)
        given, spec = tree_flatten((p, a))

        def up(*xs: Any) -> Any:
            p, a = tree_unflatten(xs, spec)
            return self.f.forward(p, a, bare(run))

        result: tuple[Feature, Saved] = self._made("forward", given, run, up)(given)
        return result

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        if run.signals is not None:
            return self.f.backward(p, Delta, saved, grads, run)
        given, spec = tree_flatten((p, Delta, saved))

        def both(*xs: Any) -> Any:
            handed: list[Any] = []
            p, Delta, saved = tree_unflatten(xs, spec)
            return self.f.backward(p, Delta, saved, Handing(handed), bare(run)), handed

        below, handed = self._made("backward", given, run, both)(given)
        for path, how, name, factors in handed:
            receiver = grads
            for part in path:
                receiver = receiver / part
            getattr(receiver, how)(name, *factors)
        return below

    def _made(self, which: str, given: list[Any], run: Run, f: Callable[..., Any]) -> Made:
        key = (which, run.implementation, *map(described, given))
        if key not in self.made:
            self.made[key] = Made.of(f, given)
        made: Made = self.made[key]
        return made


@dataclass(frozen=True)
class Made:
    """A compiled function of the tensors among some values; what is no tensor was the same when it was traced."""

    function: Function
    spec: TreeSpec
    others: dict[int, Any]  # what is no tensor among the results

    @classmethod
    def of(cls, f: Callable[..., Any], given: list[Any]) -> Made:
        """`f` of one value for each in `given`."""
        found: list[Any] = []

        def tensors_only(xs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            filling = iter(xs)
            results = tree_flatten(f(*(next(filling) if isinstance(x, torch.Tensor) else x for x in given)))
            found[:] = [results[1], {i: x for i, x in enumerate(results[0]) if not isinstance(x, torch.Tensor)}]
            return tuple(x for x in results[0] if isinstance(x, torch.Tensor))

        graph = make_fx(tensors_only, tracing_mode="real")([x for x in given if isinstance(x, torch.Tensor)])
        return cls(torch.compile(graph, dynamic=False), *found)

    def __call__(self, given: list[Any]) -> Any:
        try:
            results = self.function([x for x in given if isinstance(x, torch.Tensor)])
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"torch.compile failed on this machine ({reason}); leave --compile out") from None
        filling = iter(results)
        n = self.spec.num_leaves
        return tree_unflatten([self.others[i] if i in self.others else next(filling) for i in range(n)], self.spec)


@dataclass(frozen=True)
class Handing:
    """Writes down what is handed over, for a receiver outside."""

    handed: list[Any]
    path: tuple[str, ...] = ()

    def __truediv__(self, part: str) -> Handing:
        return Handing(self.handed, (*self.path, part))

    def outer(self, name: str, a: torch.Tensor, Delta: torch.Tensor) -> None:
        self.handed.append((self.path, "outer", name, (a, Delta)))

    def total(self, name: str, Delta: torch.Tensor) -> None:
        self.handed.append((self.path, "total", name, (Delta,)))

    def rows(self, name: str, ids: torch.Tensor, Delta: torch.Tensor) -> None:
        self.handed.append((self.path, "rows", name, (ids, Delta)))

    def scaled(self, name: str, x: torch.Tensor, Delta: torch.Tensor) -> None:
        self.handed.append((self.path, "scaled", name, (x, Delta)))

    def finished(self) -> None:
        """The receiver outside is told by whoever holds this layer."""


def bare(run: Run) -> Run:
    """The same way of running anywhere in the network: with nobody watching, a path means nothing."""
    return Run(implementation=run.implementation)


def at_start(position: int | torch.Tensor) -> bool:
    return isinstance(position, int) and position == 0


def described(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), tuple(x.stride()), x.dtype, x.device.type
    return x
