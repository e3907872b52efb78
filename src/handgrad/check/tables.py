"""The table of planted mistakes: planting them one after the other, and the file that the docs show."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from handgrad.check.mistakes import MISTAKES
from handgrad.check.plant import Mistake, found
from handgrad.core.errors import FileError

COLUMNS = ("rule", "planted", "line", "wrong", "on", "expected", "seen", "ok")


@dataclass(frozen=True)
class Planted:
    """One mistake, where it must be seen first, and where it was; `seen` is empty when it was missed.

    rule       file of the function that was changed       planted    the mistake in words
    line       the code that was replaced                  wrong      what stood there instead
    on         the case it was run on                      expected, seen, ok
    """

    rule: str
    planted: str
    line: str
    wrong: str
    on: str
    expected: str
    seen: str

    @property
    def ok(self) -> bool:
        return self.seen == self.expected


def plant(mistake: Mistake) -> Planted:
    return Planted(
        mistake.rule, mistake.what, mistake.line, mistake.wrong, mistake.on, mistake.where, found(mistake) or ""
    )


def plant_all() -> Iterator[Planted]:
    return map(plant, MISTAKES)


def as_csv(rows: list[Planted]) -> str:
    """The table as text; `ok` is yes or NO.

    >>> print(as_csv([Planted("linear", "b forgotten", "y + b", "y", "linear", "forward", "forward")]), end="")
    rule,planted,line,wrong,on,expected,seen,ok
    linear,b forgotten,y + b,y,linear,forward,forward,yes
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) | {"ok": "yes" if row.ok else "NO"} for row in rows)
    return text.getvalue()


def from_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def write(path: Path, text: str) -> None:
    """The whole file or nothing of it. Raises FileError."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise FileError(f"cannot write {str(path)!r}: {error.strerror}; choose a folder that exists") from None
