"""Fields of somebody else's configuration, each checked as it is taken: its name, what was found, what must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from handgrad.core.errors import FileError
from handgrad.models.stored import short

MISSING = object()


@dataclass(frozen=True)
class Fields:
    """A table out of the file `where`. Every method raises FileError for a value of another kind.

    >>> Fields({"n": 3}, "config.json").whole("n")
    3
    >>> Fields({"n": "x"}, "config.json").whole("n")
    Traceback (most recent call last):
    handgrad.core.errors.FileError: config.json: n is the text 'x', and must be a whole number
    """

    table: Mapping[str, Any]
    where: str

    def get(self, name: str, default: Any = MISSING) -> Any:
        """The value; null and absent are the same, as they are where these files come from."""
        if (value := self.table.get(name)) is not None:
            return value
        if default is MISSING:
            raise FileError(f"{self.where} has no {name}, and a model cannot be built without it")
        return default

    def whole(self, name: str, default: Any = MISSING) -> int:
        value = self.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return self.expected(name, value, type(value) is int, "a whole number")

    def number(self, name: str, default: Any = MISSING) -> float:
        value = self.get(name, default)
        right = type(value) in (int, float) and abs(value) < 2**63 and isfinite(value)
        return float(self.expected(name, value, right, "a number"))

    def flag(self, name: str, default: Any = MISSING) -> bool:
        value = self.get(name, default)
        return self.expected(name, value, type(value) is bool, "true or false")

    def text(self, name: str, default: Any = MISSING) -> str:
        value = self.get(name, default)
        return self.expected(name, value, isinstance(value, str), "text")

    def expected(self, name: str, value: Any, right: bool, what: str) -> Any:
        if not right:
            given = f"the text {short(value, quoted=True)}" if isinstance(value, str) else short(value)
            raise FileError(f"{self.where}: {name} is {given}, and must be {what}")
        return value

    def refuse(self, name: str, value: Any, why: str) -> FileError:
        return FileError(f"{self.where}: {name} is {short(value)}, {why}")
