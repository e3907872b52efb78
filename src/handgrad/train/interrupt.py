"""Ctrl-C, twice: the first asks for a stop after the current step, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Within the block, the yielded function tells whether Ctrl-C was pressed. Pressed again, KeyboardInterrupt.

    A job that a script started in the background ignores the signal by inheritance; here it is heard all the same,
    since stopping loses nothing. Outside the main thread nothing is installed, because Python cannot. What was set
    before is put back in every case.
    """
    pressed = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    # None is a handler that another language installed: Python could not put it back.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: pressed > 0
    finally:
        signal.signal(signal.SIGINT, before)
