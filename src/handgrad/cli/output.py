"""What a command prints, and where: text for people, or one JSON object a line for programs.

With `--json`, standard output holds JSON lines and nothing else; every text goes to standard error. A console that
cannot show a character gets a stand-in for it, and never an error.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO


class NoOutput(Exception):
    """Standard output takes nothing: it is closed, or its disk is full."""


@dataclass(frozen=True)
class Output:
    """Where results and notices go.

    >>> Output(json=True).record({"step": 1, "path": Path("runs") / "a", "loss_nats": math.inf})
    {"step": 1, "path": "runs/a", "loss_nats": null}
    >>> Output(json=False).record({"step": 1})
    """

    json: bool = False

    def record(self, record: Mapping[str, Any]) -> None:
        """One object for programs; nothing for people."""
        if self.json:
            printed(as_json(record), "\n")

    def text(self, text: str = "", end: str = "\n") -> None:
        """A result for people."""
        if not self.json:
            printed(text, end)
            return
        with suppress(OSError):
            print(text, end=end, flush=True, file=sys.stderr)

    def note(self, text: str) -> None:
        """What happens on the way; never mixed into results. Lines are broken between words where a terminal ends."""
        text = harmless(text)
        if self.live:
            width = max(shutil.get_terminal_size().columns - 1, 20)
            text = "\n".join(textwrap.fill(line, width, break_long_words=False) for line in text.split("\n"))
        with suppress(OSError):  # nobody can be told that nobody can be told
            print(text, flush=True, file=sys.stderr)

    @property
    def live(self) -> bool:
        """Is somebody watching a terminal that can redraw a line?"""
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def harmless(text: str) -> str:
    """A notice without what a terminal obeys; it may quote files and libraries.

    >>> harmless("a" + chr(27) + "[31m")
    'a\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def printed(text: str, end: str) -> None:
    """Text on standard output, at once. Raises NoOutput; BrokenPipeError where a reader went away."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise no_output(error) from None


def no_output(error: OSError) -> NoOutput:
    return NoOutput(f"cannot write to standard output: {error.strerror or error}")


def opened_streams() -> None:
    """Give a program that was started with closed streams others: notes go nowhere, and results are refused.

    The numbers 0 to 2 are taken as well, so that no file of a run gets one of them and what a library prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def as_json(value: Any) -> str:
    """One line of ASCII, which every console can show; numbers that JSON cannot write become null."""
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.as_posix() if isinstance(value, Path) else value


def lenient(stream: TextIO) -> None:
    """From here on, a character that `stream` cannot show is replaced instead of raising UnicodeEncodeError."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def silence(stream: TextIO) -> None:
    """Nobody reads any more: what is still buffered goes nowhere, so that the interpreter can end without a word."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(7.4), duration(83), duration(3 * 3600 + 5 * 60)
    ('7 s', '1 min 23 s', '3 h 05 min')
    """
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return f"{s // 60} min {s % 60:02d} s" if s < 3600 else f"{s // 3600} h {s % 3600 // 60:02d} min"
