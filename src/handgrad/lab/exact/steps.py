"""Dependent steps: which units a number had to wait for, followed through a real pass, number by number."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from handgrad.core.errors import HandgradError
from handgrad.core.gradients import Accumulate
from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.core.run import Run
from handgrad.lab.exact.common import Exact, drawn, normal, slope, verdict
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial

aten = torch.ops.aten
JOINS = (aten.stack, aten.cat, aten.clone)  # beside views: they move numbers, and compute none
NEW = (aten.new_zeros, aten.new_empty, aten.new_ones, aten.new_full, aten.zeros_like, aten.empty_like, aten.ones_like)
UNITS = {"rnn": ("*.h",), "lstm": ("*.h",), "memory": ("*.h",), "tanh_softmax": ("0", "1")}
UNITS["transformer"] = ("stack.?",)
RECURRENT = ("rnn", "lstm", "memory")
TIMED = ("memory", "tanh_softmax", "rnn", "transformer")  # the first two read alike, with and without recurrence
LAYERS, TOKENS, LONG = 2, (2, 4, 8, 16, 32, 64), (8, 32, 128, 512)
REPEATS = 3


class Chains(TorchDispatchMode):
    """Keeps, for every number of a pass, the longest chain of units that it waited for.

    A unit is a signal whose path matches; a number that is moved keeps its chain, one that is computed has the longest
    of those it was computed from: its row and column in a product, its row in a softmax. Chains lie beside the memory
    of the numbers, so views need nothing, and what is written in place is followed.
    """

    def __init__(self, units: tuple[str, ...]) -> None:
        super().__init__()
        self.units = units
        self.beside: dict[int, tuple[Any, Tensor]] = {}  # held until the end, so that no memory is used twice

    def wants(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.units)

    def see(self, path: str, x: Tensor) -> Tensor:
        if self.wants(path):
            with _disable_current_modes():
                self.of(x).add_(1)
        return x

    def again(self) -> Chains:
        return self

    def of(self, x: Any) -> Any:
        """The chains of x, as a view: what is written there is known of x, and of all views of it."""
        if isinstance(x, list | tuple):
            return [self.of(one) for one in x]
        if not isinstance(x, Tensor):
            return x
        storage = x.untyped_storage()
        if storage._cdata not in self.beside:
            n = storage.nbytes() // x.element_size()
            self.beside[storage._cdata] = storage, torch.zeros(n, dtype=torch.int64)
        return self.beside[storage._cdata][1].as_strided(x.shape, x.stride(), x.storage_offset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and isinstance(result, Tensor):
            self.of(result).copy_(self.chain(func, [self.of(x) for x in args]))
        elif not func.is_view and isinstance(result, list | tuple):
            raise HandgradError(f"{func} gives several tensors, and how their units depend on each other is not known")
        return result

    def chain(self, func: Any, given: list[Any]) -> Tensor:
        op, tensors = func.overloadpacket, [x for x in given if isinstance(x, Tensor)]
        if op in NEW:  # of the tensor that is named, the shape alone is read
            return torch.tensor(0)
        if op in JOINS:
            moved: Tensor = op(*given)
            return moved
        if op is aten.copy_:
            return tensors[1]
        if op in (aten.mm, aten.bmm):
            return torch.maximum(tensors[0].amax(-1, keepdim=True), tensors[1].amax(-2, keepdim=True))
        if op is aten._softmax:
            return tensors[0].amax(given[1], keepdim=True)
        if torch.Tag.pointwise in func.tags and tensors:
            return joint(tensors)
        return max((x.max() for x in tensors if x.numel()), default=torch.tensor(0))


def joint(chains: list[Tensor]) -> Tensor:
    longest, *rest = chains
    for one in rest:
        longest = torch.maximum(longest, one)
    return longest


def counted(layer: Layer, width: int, tokens: int, units: tuple[str, ...]) -> int:
    """The longest chain of units in a forward pass over so many tokens.

    >>> counted(rung("rnn").build(Sizes(width=3)), 3, 4, ("*.h",))
    5
    """
    p, a = drawn(layer, 0), normal((1, tokens, width), 0)
    with Chains(units) as chains:
        y, _ = layer.forward(p.tree, a, Run(signals=chains))
    return int(chains.of(y).max())


def count(say: Say) -> Result:
    found: Result = {}
    for i, (name, units) in enumerate(UNITS.items()):
        say(f"chains of {name}", i / len(UNITS))
        sizes = [Sizes(width=4, context=T, functions=2, hidden=3, layers=LAYERS) for T in TOKENS]
        found[name] = [counted(rung(name).build(s), 4, s.context, units) for s in sizes]
    return found


def clock(say: Say) -> Result:
    """Milliseconds of a forward and backward pass over one sequence: the fastest of REPEATS, taken in turns."""
    found: Result = {name: [] for name in TIMED}
    for i, T in enumerate(LONG):
        say(f"{T} tokens", i / len(LONG))
        turns = [[seconds(rung(name).build(Sizes(context=T)), T) for name in TIMED] for _ in range(REPEATS)]
        for name, times in zip(TIMED, zip(*turns, strict=True), strict=True):
            found[name].append(1000 * min(times))
    return found


def seconds(layer: Layer, tokens: int) -> float:
    p = Layout(layer.slots()).draw(0)
    g, a = p.layout.zeros(), normal((1, tokens, 64), 0).float()
    start = time.perf_counter()
    y, saved = layer.forward(p.tree, a, Run())
    layer.backward(p.tree, torch.ones_like(y), saved, Accumulate(g.tree), Run())
    return time.perf_counter() - start


def judged(chains: Result, clocks: Result) -> Finding:
    right = {name: [LAYERS + (T - 1) if name in RECURRENT else LAYERS for T in TOKENS] for name in UNITS}
    wrong = [name for name in UNITS if chains[name] != right[name]]
    at = TOKENS.index(4)
    slower = clocks["memory"][-1] / clocks["tanh_softmax"][-1]
    ratios = [(T, a / b) for T, a, b in zip(LONG, clocks["memory"], clocks["tanh_softmax"], strict=True)]
    plain = clocks["rnn"][-1] / clocks["transformer"][-1]
    because = (
        f"Two layers over 4 tokens: {chains['rnn'][at]} dependent steps with the recurrence, "
        f"{chains['tanh_softmax'][at]} without; over {TOKENS[-1]} tokens {chains['rnn'][-1]} and "
        f"{chains['tanh_softmax'][-1]}. {'Not as said: ' + ', '.join(wrong) + '. ' if wrong else ''}"
        f"On this machine {LONG[-1]} tokens take an RNN that reads all its earlier states {slower:.1f} times as long "
        f"as units that read the layer below in the same way, and {ratios[-2][0]} tokens {ratios[-2][1]:.1f} times."
    )
    numbers = [
        Number(f"steps of {rung(name).title}, {TOKENS[i]} tokens", chains[name][i])
        for i in (at, len(TOKENS) - 1)
        for name in UNITS
    ]
    numbers += [Number(f"{rung(name).title}, {LONG[-1]} tokens", clocks[name][-1], "ms") for name in TIMED]
    numbers += [Number(f"time with recurrence, of that without, {T} tokens", ratio, "times") for T, ratio in ratios]
    numbers += [Number(f"power of T in the time of {rung(name).title}", slope(LONG, clocks[name])) for name in TIMED]
    lines = {rung(name).title: {"x": list(TOKENS), "y": chains[name]} for name in UNITS}
    times = {rung(name).title: {"x": list(LONG), "y": clocks[name]} for name in clocks}
    drawings = (
        Drawing("Dependent steps of two layers", "tokens", "longest chain of units", lines, log="xy"),
        Drawing("Time forward and backward, one sequence", "tokens", "ms", times, log="xy"),
    )
    notes = (
        "All places of one layer count as one step: a machine with few cores computes them one after another too.",
        f"The plain two-layer RNN, which reads no earlier state, takes {plain:.2f} times as long as the Transformer "
        f"over {LONG[-1]} tokens here, at equal width: fewer dependent steps are a gain where enough can be done at "
        "once.",
    )
    return Finding(verdict(not wrong and slower > 1), because, numbers, drawings, notes)


DEPENDENT = Exact(
    "steps",
    "Why drop the recurrence?",
    "With a recurrence every place of a layer waits for the place before it: two layers over T tokens take T + 1 "
    "dependent steps. Where units read the layer below only, they take 2, however long the text is.",
    r"n_{\mathrm{recurrent}} = L + (T - 1) \qquad n_{\mathrm{parallel}} = L",
    tuple(UNITS),
    (
        Trial(f"steps: chains of two layers, T {TOKENS}", 3.0, count),
        Trial(f"steps: time of two layers, T {LONG}, fastest of {REPEATS}", 8.0, clock),
    ),
    judged,
)
