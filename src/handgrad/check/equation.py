"""One row of the registry: an equation of the catalogue, and the three places where it lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Equation:
    """An equation: its formulas, and where its code, its explanation and its numeric check are.

    id         the catalogue's name in lower case with dashes
    section    the catalogue's heading
    forward    the forward formula, in the signs of docs/notation.md
    backward   the formula that transposes it, or what must hold where nothing is transposed
    code       "module:name" of the function or class that computes it
    page       "file#anchor" below docs/
    check      "LAW:CASE": one law of check/laws.py (or `case` for oracle, reference and adjoint) on a case of
               check/cases; or "module:function", a function without arguments that raises `LawBroken`; or several
               of these with " + " between them
    optional   the catalogue marks it so

    >>> Equation("raw", "heads", "q kᵗ", "Δ k", "handgrad.rules.attend:backward", "a.md#eq-raw", "case:attend").file
    'a.md'
    """

    id: str
    section: str
    forward: str
    backward: str
    code: str
    page: str
    check: str
    optional: bool = False

    @property
    def file(self) -> str:
        return self.page.partition("#")[0]

    @property
    def checks(self) -> list[str]:
        return self.check.split(" + ")

    @property
    def anchor(self) -> str:
        return self.page.partition("#")[2]


def section(name: str) -> Callable[..., Equation]:
    """Makes the rows of one section; a row names its page without the anchor, which is eq- and its id.

    >>> section("data and loss")("shift", "a", "b", "m:f", "rules/loss.md", "case:x").page
    'rules/loss.md#eq-shift'
    """

    def row(id: str, forward: str, backward: str, code: str, page: str, check: str, **more: Any) -> Equation:
        anchored = page if "#" in page else f"{page}#eq-{id}"
        return Equation(id, name, forward, backward, code, anchored, check, **more)

    return row
