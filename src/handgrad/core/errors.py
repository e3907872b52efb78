"""Errors for people: what was asked, what was found, why it matters, what to do; one or two plain lines.

Every error that a user can cause derives from `HandgradError` *and* from the builtin that a caller would expect, so
`except ValueError` keeps working. The command line prints the text alone and exits with status 2. An `assert` or any
other exception means that the fault is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HandgradError(Exception):
    """Root of the errors that a request or an input can cause.

    >>> issubclass(ShapeError, HandgradError) and issubclass(ShapeError, ValueError)
    True
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class ConfigError(HandgradError, ValueError):
    """An option or a configuration value that cannot be."""


class DataError(HandgradError, ValueError):
    """Text or token data that cannot be used as asked."""


class ShapeError(HandgradError, ValueError):
    """A tensor whose shape or type does not fit."""


class UnknownName(HandgradError, KeyError):
    """A name (signal, parameter, preset, ...) that does not exist here."""


class FileError(HandgradError, OSError):
    """A file that is missing, damaged, or cannot be written."""


class NumericError(HandgradError, ArithmeticError):
    """A value that is not finite where training or sampling needs finite ones."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """An `UnknownName` that lists the known names and puts the nearest first.

    >>> print(unknown("preset", "tinny", ["tiny", "gpt2-small"]))
    no preset named 'tinny'; did you mean 'tiny'? Known: gpt2-small, tiny
    """
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    shown = ", ".join(known[:20]) + (f", ... ({len(known)} in all)" if len(known) > 20 else "")
    return UnknownName(f"no {kind} named '{name}'{hint} Known: {shown}")
