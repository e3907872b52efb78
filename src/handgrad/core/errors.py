"""Errors for people: what was asked, what was found, why it matters, what to do; one or two plain lines.

Every error that a user can cause derives from `HandgradError` *and* from the builtin that a caller would expect, so
`except ValueError` keeps working. The command line prints the text alone and exits with status 2. An `assert` or any
other exception means that the fault is ours.

Messages quote what files and people wrote. Such a value is shown by `cut`; besides, whatever a message holds is shown
printable and within `MOST` characters, so that no file can write to a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 2000  # characters of a message


class HandgradError(Exception):
    """Root of the errors that a request or an input can cause.

    >>> issubclass(ShapeError, HandgradError) and issubclass(ShapeError, ValueError)
    True
    """

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else type(self).__name__
        return "\n".join(map(printable, shortened(text, MOST).split("\n")))


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


def shortened(text: str, most: int) -> str:
    """Its beginning and its end, where it is longer than `most` characters.

    >>> shortened("abcdefghij", 8)
    'abcde…ij'
    """
    n_last = most // 3
    return text if len(text) <= most else f"{text[: most - n_last - 1]}…{text[len(text) - n_last :]}"


def printable(text: str) -> str:
    """What a terminal would obey instead of showing it, line ends among it, in the spelling of Python.

    >>> print(printable("a" + chr(27) + "[31m" + chr(10) + chr(0x202e) + "ä b"))
    a\\x1b[31m\\n\\u202eä b
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(value: object, most: int = 80) -> str:
    """A value that somebody else wrote, as a message shows it."""
    return shortened(printable(shortened(str(value), most)), most)


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """An `UnknownName` that lists the known names and puts the nearest first.

    >>> print(unknown("preset", "tinny", ["tiny", "gpt2-small"]))
    no preset named 'tinny'; did you mean 'tiny'? Known: gpt2-small, tiny
    """
    name, known = cut(name), [cut(other) for other in sorted(known)]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    shown = ", ".join(known[:20]) + (f", ... ({len(known)} in all)" if len(known) > 20 else "")
    return UnknownName(f"no {kind} named '{name}'{hint} Known: {shown}")
