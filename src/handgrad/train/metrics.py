"""`metrics.jsonl`: one JSON object a line, one line a step, as if the run had never been interrupted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from handgrad.core.errors import FileError
from handgrad.data.files import replacing

METRICS = "metrics.jsonl"
_LONGEST_LINE = 1 << 16


class Metrics:
    """Appends records and flushes each; `with Metrics(folder, after=step)` first drops what lies beyond that step."""

    def __init__(self, folder: Path, after: int | None) -> None:
        self.path = folder / METRICS
        keep_until(self.path, after)
        try:
            self._file = open(self.path, "a", encoding="ascii")  # noqa: SIM115
        except OSError as error:
            raise self._refused(error) from None

    def write(self, record: Mapping[str, Any]) -> None:
        """Raises FileError where the disk refuses, ValueError (our fault) for a number that is not finite."""
        line = json.dumps(record, allow_nan=False)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise self._refused(error) from None

    def sync(self) -> None:
        """Durable before the checkpoint is: no step of a checkpoint can be missing here."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from None

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        try:
            self._file.close()
        except OSError as error:
            if value is None:
                raise self._refused(error) from None

    def _refused(self, error: OSError) -> FileError:
        return FileError(
            f"cannot write {self.path}: {error.strerror or error}. Checkpoints are unchanged; "
            "free some space or check permissions, then resume"
        )


def keep_until(path: Path, step: int | None) -> None:
    """Drop every line beyond `step`, and lines that a crash cut short; with None, all of them. Atomic."""
    if not path.exists():
        return
    if not path.is_file():
        raise FileError(f"{path} is not a file; expected the records of a run")
    kept, dropped = [], False
    try:
        with open(path, "rb") as file:
            while line := file.readline(_LONGEST_LINE):
                if belongs(line, step):
                    kept.append(line)
                else:
                    dropped = True
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    if dropped:
        with replacing(path) as file:
            file.writelines(kept)


def belongs(line: bytes, step: int | None) -> bool:
    """Whether a line is a whole record of a step up to `step`.

    >>> belongs(b'{"step": 3}\\n', 3), belongs(b'{"step": 4}\\n', 3), belongs(b'{"st', 3)
    (True, False, False)
    """
    if step is None or not line.endswith(b"\n"):
        return False
    record = record_of(line)
    return record is not None and record["step"] <= step


def record_of(line: bytes | str) -> dict[str, Any] | None:
    """The record of one line, or None for a line that no run writes: cut short, nested, or with numbers out of range.

    >>> record_of('{"step": 3, "lr": 0.1}'), record_of('{"step": 3, "lr": 1e999}'), record_of("[3]")
    ({'step': 3, 'lr': 0.1}, None, None)
    """
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or type(record.get("step")) is not int or not 0 <= record["step"] < 1 << 63:
            return None
        numbers = [value for value in record.values() if isinstance(value, int | float)]
        return record if all(isfinite(value) for value in numbers) else None
    except (ValueError, RecursionError, OverflowError):
        return None


def peak_rss_bytes() -> int | None:
    """The most memory that this process has held, or None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
