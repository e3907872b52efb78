"""Fails when a run folder does not hold what a finished training run leaves there.

`python tools/check_run.py RUN --steps N`: `metrics.jsonl` has a finite loss for each of N steps, and `checkpoints/`
has at least one file that is not empty.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path


def problems(run: Path, steps: int) -> list[str]:
    """What is missing or wrong below `run`, one plain sentence each; empty when all is well."""
    found = []
    metrics = run / "metrics.jsonl"
    if not metrics.is_file():
        found.append(f"{metrics} is missing")
    else:
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        losses = {row["step"]: row["loss_nats"] for row in rows if row.get("loss_nats") is not None}
        if len(losses) != steps or max(losses, default=-1) not in (steps - 1, steps):
            found.append(f"{metrics} has losses for the steps {sorted(losses)}; {steps} steps were asked for")
        bad = {step: loss for step, loss in losses.items() if not math.isfinite(loss)}
        if bad:
            found.append(f"{metrics} has losses that are not finite: {bad}")
    checkpoints = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    if not any(path.stat().st_size for path in checkpoints):
        found.append(f"{run / 'checkpoints'} holds no file with content")
    return found


def main() -> int:
    """Print the verdict; 0 when the run is complete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    found = problems(options.run, options.steps)
    for problem in found:
        print(f"check_run: {problem}", file=sys.stderr)
    if not found:
        print(f"{options.run}: {options.steps} steps with finite losses, and a checkpoint")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
