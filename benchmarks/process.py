"""One measurement, one process: asking for it, answering, and saying plainly why there is none.

The asking side runs `python -m MODULE --one NAME`; the child prints one line of JSON. What cannot be measured here, a
peer that is not installed or a setting that handgrad refuses, is an answer too: {"unavailable": why}.

HANDGRAD_BENCH_PREFIX is put before each such command, for example `taskset -c 0,1`, or `flock FILE` where others
measure on the same machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from handgrad.core.errors import HandgradError

ROOT = Path(__file__).resolve().parents[1]
LONGEST_S = 600


class Unavailable(Exception):
    """Why a measurement cannot be made here."""


def answer(work: Callable[[], dict[str, Any]]) -> None:
    """In the child: do the work and print what it found, or why it cannot be done.

    >>> def refuses():
    ...     raise Unavailable("no compiler here")
    >>> answer(refuses)
    {"unavailable": "no compiler here"}
    """
    try:
        found = work()
    except ImportError as error:
        found = {"unavailable": f"{error.name or error} is not installed"}
    except (Unavailable, HandgradError) as error:
        found = {"unavailable": str(error)}
    print(json.dumps(found), flush=True)


def ask(module: str, *arguments: str) -> dict[str, Any]:
    """In the parent: the child's answer. Raises RuntimeError, with the end of what it said, where it broke."""
    prefix = shlex.split(os.environ.get("HANDGRAD_BENCH_PREFIX", ""))
    command = [*prefix, sys.executable, "-m", module, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=LONGEST_S)
    if found.returncode:
        said = " / ".join((found.stderr or found.stdout).strip().splitlines()[-3:])
        raise RuntimeError(f"{module} {' '.join(arguments)} ended with {found.returncode}: {said}")
    return json.loads(found.stdout.strip().splitlines()[-1])


def in_turns(module: str, names: Sequence[str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Every name `rounds` times, taking turns, so that a busy moment of the machine meets all of them."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names:
            if any("unavailable" in one for one in found[name]):
                continue
            found[name].append(ask(module, "--one", name))
            print(f"  round {turn + 1} of {rounds}: {name}", refusal(found[name]) or "", flush=True)
    return found


def refusal(answers: Sequence[dict[str, Any]]) -> str | None:
    """
    >>> refusal([{"seconds": [1.0]}]), refusal([{"unavailable": "peft is not installed"}])
    (None, 'peft is not installed')
    """
    return next((one["unavailable"] for one in answers if "unavailable" in one), None)


def memory_bytes(field: str = "VmHWM") -> int:
    """This process's memory from the system: VmHWM is the most it ever held, VmRSS what it holds now.

    >>> memory_bytes() >= memory_bytes("VmRSS") > 1_000_000
    True
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        raise Unavailable("the system has no /proc/self/status, so peak memory cannot be read") from None
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024
