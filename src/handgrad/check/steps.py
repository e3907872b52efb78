"""How many steps of a forward pass must follow one another: counted on the graph of the real computation.

Every tensor that a pass forms knows the tensors that it was formed from. The longest path through that graph is what no
number of processors can shorten. Counted are *units* (the signals named, such as the state of a recurrent cell or the
output of an attention layer; all tokens of one tensor are one step) and plain *operations*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor

from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.core.run import Run


class Steps(NamedTuple):
    units: int
    operations: int


@dataclass
class Marks:
    """Keeps, of every signal that is a unit, the node of the graph that formed it."""

    patterns: tuple[str, ...]
    nodes: list[Any] = field(default_factory=list)

    def wants(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)

    def see(self, path: str, x: Any) -> Any:
        if isinstance(x, Tensor) and self.wants(path):
            self.nodes.append(x.grad_fn)
        return x

    def again(self) -> Marks:
        return self


def steps(layer: Layer, width: int, tokens: int, units: tuple[str, ...]) -> Steps:
    """The longest chains of `layer` on one sample of `tokens` tokens; `units` are globs over the paths of signals.

    >>> from handgrad.layers.recurrent import rnn
    >>> steps(rnn(3, 2), 3, tokens=4, units=("*.h",)).units
    4
    """
    p = Layout(layer.slots()).draw(seed=0, dtype=torch.float64)
    theta = p.like(p.flat.requires_grad_())
    marks = Marks(units)
    a = torch.ones(1, tokens, width, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        y, _ = layer.forward(theta.tree, a, Run(signals=marks))
    count = set(marks.nodes)
    return Steps(longest(y.grad_fn, lambda node: node in count), longest(y.grad_fn, lambda node: True))


def longest(last: Any, counts: Callable[[Any], bool]) -> int:
    """The most counted nodes on any path that ends at `last`; without recursion, since a scan's graph is deep."""
    depth: dict[Place, int] = {}
    stack: list[Place] = [(last, None)]
    while stack:
        place = stack[-1]
        above = before(place)
        if waiting := [one for one in above if one not in depth]:
            stack.extend(waiting)
            continue
        depth[stack.pop()] = int(counts(place[0])) + max((depth[one] for one in above), default=0)
    return depth[last, None]


Place = tuple[Any, int | None]  # a node of the graph, and which token of its tensor is meant; None: all of them


def before(place: Place) -> list[Place]:
    """What a node was formed from. Token t of tokens stacked is token t: it does not wait for the others."""
    node, token = place
    inputs = node.next_functions
    if token is not None and node.name() == "StackBackward0":
        inputs = inputs[token : token + 1]
    return [
        (one, i if one.name() == "UnbindBackward0" else token_of(node, token)) for one, i in inputs if one is not None
    ]


def token_of(node: Any, token: int | None) -> int | None:
    """Only taking tokens apart again says which one is meant; any other operation may need all of them."""
    return token if node.name() == "UnbindBackward0" else None
