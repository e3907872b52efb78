"""A sign of life on a terminal, while something takes its time and has nothing to say."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from handgrad.cli.output import harmless

AFTER_S, EVERY_S = 1.0, 0.25


@contextmanager
def waiting(what: str, live: bool) -> Iterator[None]:
    """While the block runs, one line with `what` and the seconds gone by; nothing where nobody watches a terminal.

    It comes after AFTER_S and is wiped out at the end. Whoever prints within the block prints across it.

    >>> with waiting("loading", live=False):
    ...     print("done")
    done
    """
    if not live:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=shown, args=(what, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def shown(what: str, done: threading.Event) -> None:
    began = monotonic()
    if done.wait(AFTER_S):
        return
    width = max(shutil.get_terminal_size().columns - 12, 20)
    text = harmless(what).replace("\n", " ")
    text = text if len(text) <= width else text[: width - 1] + "…"
    with suppress(OSError, ValueError):
        while True:
            sys.stderr.write(f"\r{text} … {monotonic() - began:.0f} s")
            sys.stderr.flush()
            if done.wait(EVERY_S):
                break
        sys.stderr.write(f"\r{' ' * (width + 11)}\r")
        sys.stderr.flush()
