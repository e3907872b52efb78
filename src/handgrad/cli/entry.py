"""The console script: Ctrl-C is heard from here on, also while the commands and their libraries are being loaded."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def main() -> None:
    """Run the command line and leave with its exit status."""
    # A job that a script started in the background ignores the signal by inheritance, and goes on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, pressed)
    try:
        from handgrad.cli.main import main as run

        run()
    except KeyboardInterrupt:
        tell()
        sys.exit(130)


def pressed(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: at once while a library is being loaded, where an exception may be swallowed; else KeyboardInterrupt."""
    if loading(frame):
        tell()
        os._exit(130)
    raise KeyboardInterrupt


def loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def tell() -> None:
    with suppress(OSError):
        os.write(2, b"handgrad: interrupted\n")
