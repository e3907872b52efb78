"""What every measurement shares: where rows go, what machine they are from."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

import torch

import handgrad

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("HANDGRAD_DATA", Path(__file__).parents[2] / "shared" / "data"))


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def about() -> dict[str, str]:
    now = datetime.now(UTC)
    return {
        "date": now.date().isoformat(),
        "run": now.isoformat(timespec="seconds"),
        "machine": cpu_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "handgrad": handgrad.__version__,
        "commit": commit(),
    }


def write(name: str, rows: Sequence[dict[str, object]], folder: Path = RESULTS) -> Path:
    """Append rows, which share one `run` stamp, to results/<name>.csv, and say so. New columns join the file."""
    path = folder / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    stamp = about()
    before = read(path)
    rows = [*before, *({**row, **stamp} for row in rows)]
    columns = list(dict.fromkeys(column for row in reversed(rows) for column in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows) - len(before)} rows added to {path}")
    return path


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and quartiles in milliseconds.

    >>> spread([0.001, 0.002, 0.003])
    {'median_ms': 2.0, 'quartile_low_ms': 1.0, 'quartile_high_ms': 3.0}
    """
    low, middle, high = (round(1e3 * x, 3) for x in quartiles(seconds))
    return {"median_ms": middle, "quartile_low_ms": low, "quartile_high_ms": high}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; of one value, three times it."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (*values * 3,)
    return low, median(values), high
