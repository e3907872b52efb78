"""A layer whose two maps are each made into one compiled function by torch.compile.

The layer's own code is traced on tensors of the right shapes, so what is compiled is that code and nothing else. Only
what lies between its products is fused; the products stay the library's. The gradient's factors leave the compiled
function as they are, and are handed to the receiver outside of it.

A function is made for one set of shapes, strides and dtypes, and is called with no others. What forward saved stays a
list of tensors until somebody asks for the tree.

A pass that somebody watches or that fills a cache runs as written. Nothing random is drawn in a compiled pass: a layer
with dropout must not be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.layer import Feature, Layer, Saved
from handgrad.core.params import Slot, Tree
from handgrad.core.rule import Pair
from handgrad.core.run import Run, widened

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Compiled:
    """The same map as f. Equal blocks should share one `Compiled`: they then share its functions."""

    f: Layer
    made: dict[Any, Made] = field(default_factory=dict, compare=False, repr=False)

    def slots(self) -> dict[str, Slot]:
        return self.f.slots()

    def forward(self, p: Tree, a: Feature, run: Run) -> tuple[Feature, Saved]:
        if run.signals is not None or run.cache is not None or not at_start(run.position):
            return self.f.forward(p, a, run)

        def up(p: Tree, a: Feature) -> Any:
            return self.f.forward(p, a, bare(run))

        given = list(tensors((p, a)))
        made = self._made(("forward", run.implementation, *map(described, given)), up, (p, a))
        y, saved = made(given)
        return made.first.filled(y), Kept(saved, made.second)

    def backward(self, p: Tree, Delta: Feature, saved: Saved, grads: Gradients, run: Run) -> Any:
        if run.signals is not None or not isinstance(saved, Kept):
            return self.f.backward(p, Delta, saved.tree() if isinstance(saved, Kept) else saved, grads, run)
        sums = getattr(grads, "only_sums", False)
        calls: list[Call] = []

        def down(p: Tree, Delta: Feature, kept: Saved) -> Any:
            handed: Tensors = []
            calls.clear()
            return self.f.backward(p, Delta, kept, Handing(handed, calls, sums), bare(run)), handed

        given = list(tensors((p, Delta)))
        key = ("backward", run.implementation, sums, id(saved.shape), *map(described, given))
        made = self._made(key, down, (p, Delta, saved), calls)
        below, handed = made(given + saved.tensors)
        saved.tensors.clear()
        factors = iter(handed)
        for path, how, name, n in made.calls:
            receiver = grads
            for part in path:
                receiver = receiver / part
            getattr(receiver, how)(name, *islice(factors, n))
        return made.first.filled(below)

    def _made(self, key: Any, f: Callable[..., Any], given: tuple[Any, ...], calls: list[Call] | None = None) -> Made:
        if key not in self.made:
            self.made[key] = Made.of(f, given, [] if calls is None else calls)
        return self.made[key]


@dataclass(frozen=True)
class Shape:
    """A tree without its tensors."""

    spec: TreeSpec
    others: dict[int, Any]  # what is no tensor among the leaves

    @classmethod
    def of(cls, tree: Any) -> tuple[Shape, Tensors]:
        leaves, spec = tree_flatten(tree, is_leaf=lambda x: isinstance(x, Pair))  # a pair is known by its identity
        others = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
        return cls(spec, others), [x for x in leaves if isinstance(x, torch.Tensor)]

    @property
    def n_tensors(self) -> int:
        return self.spec.num_leaves - len(self.others)

    def filled(self, found: Tensors) -> Any:
        """The tree with these tensors, in order."""
        if self.spec.is_leaf() and not self.others:
            return found[0]
        filling, n = iter(found), self.spec.num_leaves
        return tree_unflatten([self.others[i] if i in self.others else next(filling) for i in range(n)], self.spec)


@dataclass(frozen=True)
class Kept:
    """What a compiled forward pass saved."""

    tensors: Tensors
    shape: Shape

    def tree(self) -> Saved:
        return self.shape.filled(self.tensors)


@dataclass(frozen=True)
class Made:
    """A compiled function from tensors to the tensors of a pair of trees."""

    function: Callable[..., Any]
    first: Shape
    second: Shape
    calls: list[Call]  # what is done with those of the second, for a backward pass

    @classmethod
    def of(cls, f: Callable[..., Any], given: tuple[Any, ...], calls: list[Call]) -> Made:
        trees = [x.tree() if isinstance(x, Kept) else x for x in given]
        shape, found = Shape.of(trees)
        shapes: list[Shape] = []

        def tensors_only(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            (first, some), (second, others) = map(Shape.of, f(*shape.filled(list(xs))))
            shapes[:] = first, second
            return (*some, *others)

        graph = make_fx(tensors_only, tracing_mode="real")(*found)
        try:
            function = torch._inductor.compile(graph, [*found])
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"torch.compile failed on this machine ({reason}); leave --compile out") from None
        first, second = shapes
        return cls(function, first, second, calls)

    def __call__(self, given: Tensors) -> tuple[Tensors, Tensors]:
        results = list(self.function(*given))
        n = self.first.n_tensors
        return results[:n], results[n:]


Call = tuple[tuple[str, ...], str, str, int]  # path, method, name, number of factors


@dataclass(frozen=True)
class Handing:
    """Writes down what is handed over, for a receiver outside. `sums`: that receiver only adds up, so sums will do."""

    handed: Tensors
    calls: list[Call]
    sums: bool = False
    path: tuple[str, ...] = ()

    def __truediv__(self, part: str) -> Handing:
        return Handing(self.handed, self.calls, self.sums, (*self.path, part))

    def outer(self, name: str, a: torch.Tensor, Delta: torch.Tensor) -> None:
        self._write("outer", name, a, Delta)

    def total(self, name: str, Delta: torch.Tensor) -> None:
        self._write("total", name, summed(Delta) if self.sums else Delta)

    def rows(self, name: str, ids: torch.Tensor, Delta: torch.Tensor) -> None:
        self._write("rows", name, ids, Delta)

    def scaled(self, name: str, x: torch.Tensor, Delta: torch.Tensor) -> None:
        if self.sums:
            self._write("total", name, summed(widened(x) * widened(Delta)))
        else:
            self._write("scaled", name, x, Delta)

    def finished(self) -> None:
        """The receiver outside is told by whoever holds this layer."""

    def _write(self, how: str, name: str, *factors: torch.Tensor) -> None:
        self.handed.extend(factors)
        self.calls.append((self.path, how, name, len(factors)))


def summed(x: torch.Tensor) -> torch.Tensor:
    return widened(x).flatten(0, -2).sum(0, keepdim=True)  # (1, m)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested mappings and sequences, in the order of `Shape.of`."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from tensors(part)
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from tensors(part)


def bare(run: Run) -> Run:
    """The same way of running anywhere in the network: with nobody watching, a path means nothing."""
    return Run(implementation=run.implementation)


def at_start(position: int | torch.Tensor) -> bool:
    return isinstance(position, int) and position == 0


def described(x: torch.Tensor) -> Any:
    return x.shape, x.stride(), x.dtype, x.device
