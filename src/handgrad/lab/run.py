"""Run the trials of some steps into a folder: each result saved as soon as it is there, within a budget of minutes.

    FOLDER/results/<name>.json     one a trial; the name comes from the trial's key, and the key stands inside
    FOLDER/results/lab.json        machine, versions, and what each step came to

Trials go round by round: the first of every step, then the second of every step, …. So a budget, which cuts what no
longer fits, cuts the least important trials of all steps and not whole steps. What a folder holds already costs
nothing; a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy
import torch

from handgrad import __version__
from handgrad.core.errors import FileError, HandgradError
from handgrad.data.files import read_json, replacing
from handgrad.lab.steps import OPEN, Finding, Result, Step, Trial

RESULTS, REPORT = "results", "lab.json"
MAX_BYTES = 1 << 26
MOST = 1e300


class Hears:
    """Told what a run does. Override what you want to hear."""

    def begins(self, step: Step, trial: Trial, number: int, of: int) -> None: ...
    def does(self, what: str, part: float) -> None: ...
    def ends(self, step: Step, trial: Trial, seconds: float, kept: bool) -> None: ...
    def cuts(self, step: Step, trial: Trial) -> None: ...
    def fails(self, step: Step, trial: Trial, why: str) -> None: ...


@dataclass
class Ran:
    """What a run came to: step name -> key -> result; what the budget cut; what could not be done, and why."""

    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    cut: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False


def run(
    steps: Sequence[Step],
    folder: str | Path,
    minutes: float | None = None,
    hears: Hears | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Ran:
    """Do what is not done yet. `stop` is asked before every trial; KeyboardInterrupt ends the one that runs.

    A trial is started if what it is said to take, times how much longer than said the trials of this run have taken so
    far, still fits. A trial that raises HandgradError is noted under `failed`, and the run goes on.
    """
    hears, began, ran = hears or Hears(), time.perf_counter(), Ran()
    where = Path(folder) / RESULTS
    made(where)
    order = in_rounds([(step, list(step.trials())) for step in steps])
    said, took, done = 0.0, 0.0, {}
    for number, (step, trial) in enumerate(order, start=1):
        into = ran.results.setdefault(step.name, {})
        if (saved := done.get(trial.key) or found(where, trial.key, trial.settings)) is not None:
            into[trial.key] = done[trial.key] = saved
            hears.ends(step, trial, 0.0, True)
            continue
        ran.interrupted = ran.interrupted or stop()
        slower = max(0.5, took / said) if said > 1 else 1.0
        if ran.interrupted or not fits(trial.seconds * slower, began, minutes):
            ran.cut.setdefault(step.name, []).append(trial.key)
            hears.cuts(step, trial)
            continue
        hears.begins(step, trial, number, len(order))
        start = time.perf_counter()
        try:
            result = plain(trial.work(hears.does))
        except KeyboardInterrupt:
            ran.interrupted = True
            ran.cut.setdefault(step.name, []).append(trial.key)
            hears.cuts(step, trial)
            continue
        except HandgradError as error:
            ran.failed.setdefault(step.name, {})[trial.key] = str(error)
            hears.fails(step, trial, str(error))
            continue
        seconds = time.perf_counter() - start
        said, took = said + trial.seconds, took + seconds
        save(where, trial.key, result, seconds)
        into[trial.key] = done[trial.key] = result
        hears.ends(step, trial, seconds, False)
    ran.seconds = time.perf_counter() - began
    return ran


def in_rounds(steps: Sequence[tuple[Step, Sequence[Trial]]]) -> list[tuple[Step, Trial]]:
    """The first trial of every step, then the second of every step, …"""
    rounds = zip_longest(*([(step, trial) for trial in trials] for step, trials in steps))
    return [pair for one in rounds for pair in one if pair is not None]


def fits(seconds: float, began: float, minutes: float | None) -> bool:
    return minutes is None or time.perf_counter() - began + seconds <= 60 * minutes


def file_of(where: Path, key: str) -> Path:
    return where / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.json"


def save(where: Path, key: str, result: Result, seconds: float) -> None:
    """Whole or not at all. Raises FileError where the disk refuses."""
    content = {"key": key, "seconds": round(seconds, 3), "versions": versions(), "result": result}
    with replacing(file_of(where, key)) as file:
        file.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def found(where: Path, key: str, settings: Mapping[str, Any] | None = None) -> Result | None:
    """What was saved under that key; None where nothing was, or a result of other settings, such as defaults that have
    changed since. Raises FileError for a file that holds something else."""
    path = file_of(where, key)
    if not path.exists():
        return None
    content = read_json(path, MAX_BYTES)
    right = isinstance(content, dict) and content.get("key") == key and isinstance(content.get("result"), dict)
    if not right or not sound(content["result"]):
        raise FileError(f"{path} is not the result of the trial {key!r}; move it away, and the trial is done again")
    result: Result = content["result"]
    return result if all(result.get(name) == value for name, value in (settings or {}).items()) else None


def sound(x: Any) -> bool:
    """Whether all numbers inside are finite: a result has no others."""
    if isinstance(x, dict | list):
        return all(map(sound, x.values() if isinstance(x, dict) else x))
    return not isinstance(x, int | float) or abs(x) <= MOST


def made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            """Whether something can be written there is asked before the first training, not after it."""
    except OSError as error:
        raise FileError(f"cannot write into the folder {folder}: {error.strerror or error}") from None


def finding(step: Step, ran: Ran) -> Finding:
    """What the step makes of its results; OPEN where it has none, or where those it needs are missing."""
    results = ran.results.get(step.name, {})
    missing = [*ran.cut.get(step.name, []), *ran.failed.get(step.name, {})]
    if not results:
        return Finding(OPEN, "None of its trials was done.", notes=notes(step, ran))
    try:
        said = step.judge(results)
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:  # what it meets without all results
        if not missing:
            raise unjudged(step, error) from None
        return Finding(OPEN, f"{len(missing)} of its trials are missing, and it needs them.", notes=notes(step, ran))
    except (TypeError, AttributeError, OverflowError) as error:
        raise unjudged(step, error) from None
    return Finding(said.verdict, said.because, said.numbers, said.drawings, (*said.notes, *notes(step, ran)))


def unjudged(step: Step, error: Exception) -> FileError:
    return FileError(
        f"the results of the step {step.name} cannot be judged ({type(error).__name__}: {error}): a file under "
        f"{RESULTS} holds something else. Move that folder away, and all is measured again"
    )


def notes(step: Step, ran: Ran) -> tuple[str, ...]:
    """What the budget cut and what failed, in words."""
    cut, failed = ran.cut.get(step.name, []), ran.failed.get(step.name, {})
    why = "the run was stopped" if ran.interrupted else "the budget of minutes was used up"
    said = (f"Not done, because {why}: {len(cut)} of {len(step.trials())} trials ({'; '.join(cut)})",) if cut else ()
    return (*said, *(f"Could not be done: {key}: {reason}" for key, reason in failed.items()))


def assembled(steps: Sequence[Step], ran: Ran, minutes: float | None = None) -> dict[str, Any]:
    """All that `lab.json` holds: JSON's own types."""
    return {
        "machine": machine(),
        "versions": versions(),
        "budget_minutes": minutes,
        "seconds": round(ran.seconds, 1),
        "interrupted": ran.interrupted,
        "cut": ran.cut,
        "failed": ran.failed,
        "steps": [
            {
                "name": step.name,
                "question": step.question,
                "claim": step.claim,
                "formula": step.formula,
                "rungs": list(step.rungs),
                "finding": plain(asdict(finding(step, ran))),
                "results": ran.results.get(step.name, {}),
            }
            for step in steps
        ],
    }


def write(folder: str | Path, content: Mapping[str, Any]) -> Path:
    """`lab.json`, whole or not at all."""
    path = Path(folder) / RESULTS / REPORT
    made(path.parent)
    with replacing(path) as file:
        file.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    return path


def plain(x: Any) -> Any:
    """Tuples as lists, numbers that are none as None: what JSON can say."""
    if isinstance(x, Mapping):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    return None if isinstance(x, float) and not abs(x) < float("inf") else x


def versions() -> dict[str, str]:
    python = platform.python_version()
    return {"handgrad": __version__, "torch": torch.__version__, "numpy": numpy.__version__, "python": python}


def machine() -> dict[str, Any]:
    """What was measured on, without names."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }
