"""One training step against an eager autograd twin: the same shape, batch, clipping and fused AdamW, taking turns."""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from benchmarks.common import alternating, spread, write
from benchmarks.twin import TwinStep
from handgrad import GPT2Config, build
from handgrad.core import Run
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State
from handgrad.train.step import step_on

SHAPE = GPT2Config(vocabulary=65, context=64, n_layers=4, n_heads=4, d_model=128, bias=False)
BATCH = 12


class HandStep:
    """One training step as `handgrad train` takes it."""

    def __init__(self, shape: GPT2Config):
        self.model = build(shape, seed=0)
        self.gradient = self.model.params.layout.zeros()
        self.config = TrainConfig(batch_size=BATCH)
        self.state = State.zeros(self.gradient.flat)
        self.run = replace(Run(), seed=0)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        step_on(self.model, [(x, y)], self.gradient, self.state, 1e-3, self.config, self.state.step + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, SHAPE.vocabulary, (BATCH, SHAPE.context), generator=draw) for _ in range(2))
    hand, twin = HandStep(SHAPE), TwinStep(SHAPE)
    works = {"handgrad": lambda: hand(x, y), "autograd twin, eager": lambda: twin(x, y)}
    seconds = alternating(works, options.rounds, options.repeats)
    rows = [
        {"work": "step 4x128, context 64, batch 12, float32", "who": name, **spread(s)} for name, s in seconds.items()
    ]
    for row in rows:
        row["over_twin"] = round(row["median_ms"] / rows[-1]["median_ms"], 3)
        print(f"{row['who']:24} {row['median_ms']:8.2f} ms  ({row['over_twin']:.2f} of the twin's)")
    write("step_time", rows)


if __name__ == "__main__":
    main()
