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
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": cpu_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "handgrad": handgrad.__version__,
        "commit": commit(),
    }


def write(name: str, rows: Sequence[dict[str, object]]) -> Path:
    """Append rows to results/<name>.csv, and say so."""
    path = RESULTS / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    rows = [{**row, **about()} for row in rows]
    new = not path.exists()
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows added to {path}")
    return path


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and quartiles in milliseconds."""
    low, _, high = quantiles(seconds, n=4)
    return {
        "median_ms": round(1e3 * median(seconds), 3),
        "quartile_low_ms": round(1e3 * low, 3),
        "quartile_high_ms": round(1e3 * high, 3),
    }
