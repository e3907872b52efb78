"""Steps made of trainings with a label each: those that the verdict needs, and those shown beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from handgrad.lab.rungs import in_order
from handgrad.lab.steps import FAILS, HOLDS, OPEN, Drawing, Finding, Number, Result, Trial
from handgrad.lab.trained.training import Training, found, number, trials

MARGIN = 0.05
Found = Mapping[str, list[Result]]  # label -> the results of its seeds


@dataclass(frozen=True)
class Labelled:
    """`judged` gets the results by label, once every label of `needed` has one.

    cases      (label, training), most telling first
    by         what is needed of each: "accuracy" or "loss_nats"
    later      labels whose trials wait until all seeds of the others are done
    """

    name: str
    question: str
    claim: str
    formula: str
    cases: tuple[tuple[str, Training], ...]
    needed: tuple[str, ...]
    judged: Callable[[Found], Finding] = field(repr=False)
    by: str = "accuracy"
    later: tuple[str, ...] = ()

    @property
    def rungs(self) -> Sequence[str]:
        return [one.name for one in in_order(training.name for _, training in self.cases)]

    def trials(self) -> Sequence[Trial]:
        first = [one for label, training in self.cases if label not in self.later for one in training.seeds()]
        last = [one for label, training in self.cases if label in self.later for one in training.seeds()]
        return [*trials(first), *trials(last)]

    def judge(self, results: Mapping[str, Result]) -> Finding:
        of = {label: found(results, training) for label, training in self.cases}
        missing = [label for label in self.needed if number(label, of[label], self.by) is None]
        return Finding(OPEN, f"Not measured: {', '.join(missing)}.") if missing else self.judged(of)


def verdict(holds: bool) -> str:
    return HOLDS if holds else FAILS


def sure(label: str, results: Sequence[Result], of: str = "accuracy") -> Number:
    """The mean over the seeds of what is known to have one."""
    found = number(label, results, of)
    assert found is not None, f"no result of {label} has {of}"
    return found


def shown(of: Found, label: str, what: str = "accuracy", unit: str = "") -> list[Number]:
    """One number for every label that has it; `label` is written with {} where the label stands."""
    made = [number(label.format(name), results, what) for name, results in of.items()]
    return [replace(x, unit=unit or x.unit) for x in made if x is not None]


def counts(of: Found) -> list[Number]:
    return [Number(f"parameters: {name}", rows[0]["stack_parameters"]) for name, rows in of.items() if rows]


def paired(label: str, new: Sequence[Result], old: Sequence[Result], of: str = "loss_nats") -> Number | None:
    """new - old over the seeds that both have: equal seeds saw equal data, so their difference is steadier.

    >>> old, new = ([{"seed": s, "loss_nats": x + s, "diverged": ""} for s in (0, 1, 2)] for x in (2.0, 1.5))
    >>> paired("less", new, old).text()
    'less -0.5 (-0.5 to -0.5, n = 3)'
    """
    before = {result["seed"]: result[of] for result in old}
    ends = [(result[of], before[result["seed"]]) for result in new if result["seed"] in before]
    values = [a - b for a, b in ends if a is not None and b is not None]
    return Number.over(label, values) if values else None


def bars(title: str, of: Found, what: str = "accuracy", unit: str = "", x: str = "") -> Drawing:
    """What every label came to, with its interval where it has one."""
    there = {name: n for name, rows in of.items() if (n := number(name, rows, what)) is not None}
    series = {
        what.replace("_", " "): {
            "x": list(there),
            "y": [n.value for n in there.values()],
            "low": [n.value if n.low is None else n.low for n in there.values()],
            "high": [n.value if n.high is None else n.high for n in there.values()],
        }
    }
    return Drawing(title, x, unit or what.replace("_", " "), series, "bars")


def percent(x: Number) -> str:
    """
    >>> percent(Number.over("", [0.25, 0.75]))
    '50% (-268% to 368%)'
    """
    return f"{x.value:.0%}" + ("" if x.low is None or x.high is None else f" ({x.low:.0%} to {x.high:.0%})")


def nats(x: Number) -> str:
    return f"{x.value:.3f}" + ("" if x.low is None or x.high is None else f" ({x.low:.3f} to {x.high:.3f})") + " nats"
