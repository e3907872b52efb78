"""The table of parameters and gradients: text for people, plain values for sorting, and totals that count ties once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from handgrad.inspect.data import ParameterRow
from handgrad.inspect.text import number

ROW_LIMIT = 2_000


@dataclass(frozen=True)
class Line:
    """One row as shown; `*_value` is what a sort compares, empty where there is no number.

    `only_rounding` marks a gradient that is 0 in exact arithmetic.
    """

    name: str
    shape: str
    formula: str
    count_value: str
    norm: str
    norm_value: str
    gradient_norm: str
    gradient_norm_value: str
    tied_to: str | None
    only_rounding: bool


@dataclass(frozen=True)
class Table:
    """The first ROW_LIMIT lines, and totals over all: numbers stored, and the norm of all of them together."""

    lines: list[Line]
    total_count: str
    total_norm: str
    total_gradient_norm: str
    tied: int
    left_out: int

    @property
    def only_rounding(self) -> bool:
        return any(line.only_rounding for line in self.lines)


def table(rows: Sequence[ParameterRow]) -> Table:
    """Rows in the given order. A total is over stored numbers: a tied row shares those of the row it names.

    >>> two = [ParameterRow("a", (2, 3), "aᵗ Δ", 6, 3.0, 0.3), ParameterRow("b", (3, 2), "Δᵗ a", 6, 3.0, 0.3, "a")]
    >>> made = table([*two, ParameterRow("c", (4,), "1ᵗ Δ", 4, 4.0, 0.4)])
    >>> made.total_count, made.total_norm, made.total_gradient_norm, made.tied
    ('10', '5', '0.5', 1)
    """
    ties = {row.name: row.tied_to for row in rows if row.tied_to is not None}
    stored: dict[str, ParameterRow] = {}
    for row in sorted(rows, key=lambda row: row.tied_to is not None):
        stored.setdefault(_slot(row.name, ties), row)
    return Table(
        lines=[_line(row) for row in rows[:ROW_LIMIT]],
        total_count=f"{sum(row.count for row in stored.values()):,}",
        total_norm=number(_together([row.norm for row in stored.values()])),
        total_gradient_norm=number(_together([row.gradient_norm for row in stored.values()])),
        tied=len(rows) - len(stored),
        left_out=max(0, len(rows) - ROW_LIMIT),
    )


def _slot(name: str, ties: Mapping[str, str]) -> str:
    """The parameter whose numbers `name` shares, through any chain of ties."""
    seen: set[str] = set()
    while name in ties and name not in seen:
        seen.add(name)
        name = ties[name]
    # a ring of ties has no first member: its smallest name stands for all of it
    return min(seen) if name in seen else name


def _together(norms: list[float]) -> float:
    if any(math.isnan(norm) for norm in norms):
        return math.nan
    return math.hypot(*norms)


def _line(row: ParameterRow) -> Line:
    return Line(
        name=row.name,
        shape=" × ".join(f"{size:,}" for size in row.shape) or "one number",
        formula=row.formula,
        count_value=str(row.count),
        norm=number(row.norm),
        norm_value=_value(row.norm),
        gradient_norm=number(row.gradient_norm),
        gradient_norm_value=_value(row.gradient_norm),
        tied_to=row.tied_to,
        # an offset of all keys shifts a query's scores alike, and softmax does not see a shift
        only_rounding=f".{row.name}".endswith(".key.b"),
    )


def _value(norm: float) -> str:
    return repr(float(norm)) if math.isfinite(norm) else ""
