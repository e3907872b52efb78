"""What a step of the argument is: a claim, trials that could refute it, and a judgement of what they gave.

A trial is one piece of work with one result, saved under its key as soon as it is done, so that a run can stop and go
on. A step says which trials it wants, most important first; a budget cuts from the end and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import mean, stdev
from typing import Any, Protocol

SHARE = "share"  # unit of a number from 0 to 1 that people read as a percentage
HOLDS, FAILS, OPEN, UNSURE = "holds", "does not hold here", "not measured", "not decided"
Result = dict[str, Any]  # what a trial gives: JSON's own types only
Say = Callable[[str, float], None]  # (what is being done, part done from 0 to 1)


@dataclass(frozen=True)
class Trial:
    """One piece of work.

    key        names its result for ever: everything that changes the result is in it, seed included
    seconds    what it takes on two cores, roughly
    work       does it
    settings   what its result says of itself: a saved one that says otherwise is done again
    """

    key: str
    seconds: float
    work: Callable[[Say], Result]
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Number:
    """A measured value; with an interval where it is a mean over seeds (95 %, Student's t). `against` says what it
    is to be compared with, number included; `each` are the values of the seeds.

    >>> Number.over("gain", [0.9, 1.0, 0.95]).text()
    'gain 0.95 (0.826 to 1.07, n = 3)'
    >>> Number.over("accuracy", [0.9, 1.0, 0.95], within=(0.0, 1.0)).text()
    'accuracy 0.95 (0.826 to 1, n = 3)'
    >>> Number("functions", 4096, "").text()
    'functions 4096'
    """

    label: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    n: int = 1
    against: str = ""
    each: tuple[float, ...] = ()

    @classmethod
    def over(
        cls, label: str, values: Sequence[float], unit: str = "", within: tuple[float, float] = (-inf, inf)
    ) -> Number:
        """The interval is cut off where the value cannot lie, as an accuracy cannot above 1."""
        n, middle = len(values), mean(values)
        if n < 2:
            return cls(label, middle, unit)
        half = T95[min(n - 1, len(T95)) - 1] * stdev(values) / sqrt(n)
        return cls(
            label, middle, unit, max(middle - half, within[0]), min(middle + half, within[1]), n, each=tuple(values)
        )

    def text(self) -> str:
        said = f"{self.label} {self.value:.4g}{f' {self.unit}' if self.unit else ''}"
        return said if self.low is None else f"{said} ({self.low:.3g} to {self.high:.3g}, n = {self.n})"


# Student's t, two-sided, by degrees of freedom; more than 30 count as 30
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
T95 += (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def above(more: Number, less: Number, margin: float) -> str:
    """HOLDS where the mean is `margin` above the other's and every seed above every seed of it; FAILS where the mean
    is not; UNSURE where seeds overlap.

    >>> above(Number.over("", [0.9, 1.0]), Number.over("", [0.2, 0.4]), 0.1)
    'holds'
    >>> above(Number.over("", [0.3, 1.0]), Number.over("", [0.2, 0.4]), 0.1)
    'not decided'
    """
    if more.value < less.value + margin:
        return FAILS
    return HOLDS if min(more.each or (more.value,)) > max(less.each or (less.value,)) else UNSURE


def worst_of(verdicts: Sequence[str]) -> str:
    """What a claim of several parts comes to."""
    return next((one for one in (FAILS, UNSURE) if one in verdicts), HOLDS)


@dataclass(frozen=True)
class Drawing:
    """A plot in words and data: lines of (x, y), or bars, or a field of values over a grid.

    kind       "lines", "bars" or "field"
    series     name -> {"x": [...], "y": [...], "low": [...], "high": [...]}; a field has "x", "y" and "z"
    log        axes that are logarithmic: "", "x", "y" or "xy"
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Mapping[str, Sequence[Any]]]
    kind: str = "lines"
    log: str = ""


@dataclass(frozen=True)
class Finding:
    """What a step's trials came to. `verdict` is HOLDS, FAILS, UNSURE or OPEN; `because` says it with numbers."""

    verdict: str
    because: str
    numbers: Sequence[Number] = ()
    drawings: Sequence[Drawing] = ()
    notes: Sequence[str] = field(default=())  # what was missing, what differs from the text, what the budget cut


class Step(Protocol):
    """A step of the argument.

    name       short and stable: "memory"
    question   "Why not an RNN?"
    claim      what the text says, in our words
    formula    the step's equation, as LaTeX of docs/ (shown by the report as MathML)
    rungs      the rungs that it compares, by name, the new one last
    """

    @property
    def name(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def claim(self) -> str: ...
    @property
    def formula(self) -> str: ...
    @property
    def rungs(self) -> Sequence[str]: ...
    def trials(self) -> Sequence[Trial]: ...
    def judge(self, results: Mapping[str, Result]) -> Finding: ...
