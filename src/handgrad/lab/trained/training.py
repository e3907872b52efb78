"""A training run as a trial of a step, and what several seeds of it come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import Any

from handgrad.lab.fit import Fit, key_of, train
from handgrad.lab.run import plain
from handgrad.lab.rung import Sizes, parameters
from handgrad.lab.rungs import rung
from handgrad.lab.steps import SHARE, Number, Result, Say, Trial
from handgrad.lab.tasks import Task
from handgrad.lab.tasks import settings as settings_of

SEEDS = (0, 1, 2)
WIDTH = 32
QUICK = Fit(steps=800)
More = Callable[[Any, "Training"], Result]


@dataclass(frozen=True)
class Training:
    """One rung on one task from one seed.

    seconds      what it takes, roughly
    elsewhere    other sizes of the task, (name, task), that the trained network is tried on
    more         measures something else of the trained network; named in the key by `about`
    """

    name: str
    task: Task
    sizes: Sizes
    fit: Fit
    seconds: float
    elsewhere: tuple[tuple[str, Task], ...] = ()
    more: More | None = None
    about: str = ""

    @property
    def key(self) -> str:
        tried = ", ".join(name for name, _ in self.elsewhere)
        others = [f"then {tried}"] if tried else []
        return " | ".join([key_of(rung(self.name), self.task, self.sizes, self.fit), *others, self.about]).rstrip(" |")

    def trial(self) -> Trial:
        settings = {"sizes": asdict(self.sizes), "fit": asdict(self.fit), **settings_of(self.task)}
        return Trial(self.key, self.seconds, self.work, plain(settings))

    def work(self, say: Say) -> Result:
        model, result = train(rung(self.name), self.task, self.sizes, self.fit, say, dict(self.elsewhere))
        return result | (self.more(model, self) if self.more is not None else {})

    def seeds(self, seeds: Sequence[int] = SEEDS) -> list[Training]:
        return [replace(self, fit=replace(self.fit, seed=seed)) for seed in seeds]


def trials(trainings: Sequence[Training]) -> list[Trial]:
    """Seed by seed, so that a budget cuts seeds before it cuts what is compared; equal ones once."""
    ordered = sorted(trainings, key=lambda one: one.fit.seed)
    return list({one.key: one.trial() for one in ordered}.values())


def found(results: Mapping[str, Result], training: Training, seeds: Sequence[int] = SEEDS) -> list[Result]:
    """The results of those seeds that are there."""
    return [results[one.key] for one in training.seeds(seeds) if one.key in results]


def number(label: str, results: Sequence[Result], of: str | Callable[[Result], float | None]) -> Number | None:
    """The mean over seeds with its interval; None where no seed has the value. A network that diverged counts with what
    it recalled before, 0 where that was not measured."""
    take = of if callable(of) else partial(value, of)
    values = [v for v in map(take, results) if v is not None]
    unit, within = (SHARE, (0.0, 1.0)) if of == "accuracy" else ("", (-inf, inf))
    return Number.over(label, values, unit, within) if values else None


def value(name: str, result: Result) -> float | None:
    return result.get(name) or 0.0 if result["diverged"] and name == "accuracy" else result.get(name)


def line(points: Sequence[tuple[float, Number | None]]) -> dict[str, list[float]]:
    """A series of a `Drawing`, without the points that were not measured."""
    there = [(x, y) for x, y in points if y is not None]
    return {
        "x": [x for x, _ in there],
        "y": [y.value for _, y in there],
        "low": [y.value if y.low is None else y.low for _, y in there],
        "high": [y.value if y.high is None else y.high for _, y in there],
    }


def stack_parameters(name: str, sizes: Sizes) -> int:
    return parameters(rung(name), sizes)
