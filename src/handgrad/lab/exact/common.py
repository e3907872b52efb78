"""What the exact steps share: random numbers with seeds, a pass, a distance, and a step made of one function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from handgrad.core.layer import Layer
from handgrad.core.params import Buffer, Layout, generator_of
from handgrad.core.run import Run
from handgrad.core.signals import Watch
from handgrad.lab.steps import FAILS, HOLDS, OPEN, Finding, Number, Result, Trial

SEEDS = (0, 1, 2, 3, 4)
SAME = 1e-12  # two forms of one computation in float64


@dataclass(frozen=True)
class Exact:
    """A step whose trials are quick and need no training; `judged` gets the results of all of them, in their order."""

    name: str
    question: str
    claim: str
    formula: str
    rungs: Sequence[str]
    work: tuple[Trial, ...]
    judged: Callable[..., Finding]

    def trials(self) -> Sequence[Trial]:
        return self.work

    def judge(self, results: Mapping[str, Result]) -> Finding:
        missing = [trial.key for trial in self.work if trial.key not in results]
        if missing:
            return Finding(OPEN, f"Not measured: {'; '.join(missing)}.")
        return self.judged(*(results[trial.key] for trial in self.work))


def verdict(holds: bool) -> str:
    return HOLDS if holds else FAILS


def normal(shape: Sequence[int], seed: int, name: str = "tokens") -> Tensor:
    """Standard normal numbers in float64: the same for the same seed and name."""
    return torch.randn(tuple(shape), generator=generator_of(seed, name), dtype=torch.float64)


def drawn(layer: Layer, seed: int, **given: Tensor) -> Buffer:
    """First parameters of a layer in float64, but for those given by name (dots as `__`)."""
    p = Layout(layer.slots()).draw(seed, torch.float64)
    for name, value in given.items():
        p[name.replace("__", ".")] = value
    return p


def output(layer: Layer, p: Buffer, a: Tensor) -> Tensor:
    y: Tensor = layer.forward(p.tree, a, Run())[0]
    return y


def signal(layer: Layer, p: Buffer, a: Tensor, path: str) -> Tensor:
    """One signal of a forward pass."""
    seen = Watch((path,))
    layer.forward(p.tree, a, Run(signals=seen))
    return seen[path]


def off(found: Tensor, right: Tensor) -> float:
    """The largest difference, against the largest number.

    >>> off(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    0.5
    """
    return float((found - right).abs().max() / right.abs().max())


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The power p of y ~ x^p: a straight line through the logarithms.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    lx, ly = [log(v) for v in x], [log(v) for v in y]
    mx, my = sum(lx) / len(lx), sum(ly) / len(ly)
    return sum((a - mx) * (b - my) for a, b in zip(lx, ly, strict=True)) / sum((a - mx) ** 2 for a in lx)


def band(x: Sequence[Any], rows: Sequence[Sequence[float]]) -> dict[str, list[Any]]:
    """A line with its 95 % interval: `rows[i]` are the values of all seeds at x[i]."""
    n = [Number.over("", list(row)) for row in rows]
    low, high = ([one.value if v is None else v for one in n for v in [getattr(one, end)]] for end in ("low", "high"))
    return {"x": list(x), "y": [one.value for one in n], "low": low, "high": high}
