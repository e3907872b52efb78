"""The verdict of a comparison: one row a signal, in the order in which the backward pass computes them."""

from __future__ import annotations

from dataclasses import dataclass

from handgrad.core.errors import HandgradError


class LawBroken(HandgradError, AssertionError):
    """A layer that does not do what a layer must."""


@dataclass(frozen=True)
class Row:
    """One signal or gradient: `error` is ‖hand - oracle‖/‖oracle‖; for a gradient that must be 0, ‖hand‖ over all."""

    signal: str
    error: float
    size: float
    ok: bool
    note: str = ""

    def __str__(self) -> str:
        return f"{'ok   ' if self.ok else 'WRONG'}  {self.signal:44} {self.error:9.1e}  {self.note}".rstrip()


@dataclass(frozen=True)
class Report:
    """`print(report)` shows the table; `first_wrong` is where to look."""

    rows: tuple[Row, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        return bool(self.rows) and all(row.ok for row in self.rows)

    @property
    def first_wrong(self) -> str | None:
        """The first signal, in the order of the backward pass, that is not what the oracle says."""
        return next((row.signal for row in self.rows if not row.ok), None)

    def __str__(self) -> str:
        end = "all equal" if self.ok else f"first wrong: {self.first_wrong}"
        return "\n".join([*map(str, self.rows), f"{len(self.rows)} compared at {self.tolerance:g}; {end}"])

    def require(self) -> Report:
        if not self.rows:
            raise LawBroken("nothing was compared")
        if not self.ok:
            raise LawBroken(f"{self.first_wrong} is wrong\n{self}")
        return self
