"""One training step against an eager autograd twin: the same shape, batch, clipping and fused AdamW.

Each is measured in processes of its own, set up as its user would have it: ours as `handgrad train` sets itself up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace

import torch

from benchmarks.common import spread, write
from benchmarks.twin import TwinStep
from handgrad import GPT2Config, build
from handgrad.core import Run
from handgrad.train.config import TrainConfig
from handgrad.train.memory import keep_freed_memory
from handgrad.train.optimiser import State
from handgrad.train.step import step_on

SHAPE = GPT2Config(vocabulary=65, context=64, n_layers=4, n_heads=4, d_model=128, bias=False)
BATCH = 12


class HandStep:
    """One training step as `handgrad train` takes it."""

    def __init__(self, shape: GPT2Config):
        keep_freed_memory()
        self.model = build(shape, seed=0)
        self.gradient = self.model.params.layout.zeros()
        self.config = TrainConfig(batch_size=BATCH)
        self.state = State.zeros(self.gradient.flat)
        self.run = replace(Run(), seed=0)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        step_on(self.model, [(x, y)], self.gradient, self.state, 1e-3, self.config, self.state.step + 1)


WORKS = {"handgrad": HandStep, "autograd twin, eager": TwinStep}
TIMED, WARM = 60, 10


def one(name: str) -> None:
    """Times one work in this process and prints the seconds of each step."""
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, SHAPE.vocabulary, (BATCH, SHAPE.context), generator=draw) for _ in range(2))
    step = WORKS[name](SHAPE)
    for _ in range(WARM):
        step(x, y)
    seconds = []
    for _ in range(TIMED):
        start = time.perf_counter()
        step(x, y)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one", choices=WORKS)
    options = parser.parse_args()
    if options.one:
        return one(options.one)
    seconds: dict[str, list[float]] = {name: [] for name in WORKS}
    for _ in range(options.rounds):  # the works take turns, so that a busy moment of the machine meets all of them
        for name in WORKS:
            command = [sys.executable, "-m", "benchmarks.step_time", "--one", name]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds[name] += json.loads(found.stdout)
    work = "step 4x128, context 64, batch 12, float32"
    rows = [{"work": work, "who": name, **spread(s)} for name, s in seconds.items()]
    for row in rows:
        row["over_twin"] = round(row["median_ms"] / rows[-1]["median_ms"], 3)
        print(f"{row['who']:24} {row['median_ms']:8.2f} ms  ({row['over_twin']:.2f} of the twin's)")
    write("step_time", rows)


if __name__ == "__main__":
    main()
