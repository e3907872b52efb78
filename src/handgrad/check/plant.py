"""Mistakes planted on purpose: each changes one line of a rule, and the checks must see it *at the right signal*.

A suite that was never run against broken code proves nothing. `where` is the first wrong signal in the order of the
backward pass; "forward" means that the independent reference sees it (autograd differentiates whatever forward is
there); "purity", "accumulation" and "recompute" are the laws of those names.

A mistake is planted by compiling the changed source of that one function and lending it its code: no file is written,
and the function is itself again afterwards. Only source of this package is ever compiled.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from handgrad.check import laws
from handgrad.check.cases import case
from handgrad.check.oracle import compare
from handgrad.check.report import LawBroken


@dataclass(frozen=True)
class Mistake:
    """In `function`, `line` becomes `wrong`; run on the case named `on`, it must first be seen at `where`."""

    what: str
    function: Callable[..., Any]
    line: str
    wrong: str
    on: str
    where: str

    @property
    def rule(self) -> str:
        return self.function.__module__.rpartition(".")[2]


@contextmanager
def planted(mistake: Mistake) -> Iterator[None]:
    function = mistake.function
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mistake.line) != 1:
        raise LawBroken(
            f"'{mistake.line}' stands {source.count(mistake.line)} times in {function.__qualname__}, not once"
        )
    scope = dict(function.__globals__)
    changed = compile(
        source.replace(mistake.line, mistake.wrong),
        "<planted mistake>",
        "exec",
        __future__.annotations.compiler_flag,
        True,
    )
    exec(changed, scope)  # noqa: S102  our own source, one line changed
    right = function.__code__
    function.__code__ = scope[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right


def found(mistake: Mistake) -> str | None:
    """Where the checks see the mistake first; None if they do not."""
    with planted(mistake):
        try:
            return seen(mistake.on)
        except LawBroken as broken:
            return f"broken: {broken}"


def seen(on: str) -> str | None:
    at = case(on)
    p, a, Delta = at.draw(1)
    for law in (laws.reference, laws.purity):
        try:
            law(at)
        except LawBroken:
            return "forward" if law is laws.reference else law.__name__
    report = compare(at.layer, p, a, Delta, at.run, at.zeros)
    if report.first_wrong:
        return report.first_wrong
    for law in (laws.accumulation, laws.recompute, laws.agreement):
        try:
            law(at)
        except LawBroken:
            return law.__name__
    return None
