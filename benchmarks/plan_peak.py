"""`handgrad plan` against real training steps: the memory that a process takes for them, and their time.

Each configuration is planned here and run in processes of its own. Measured is the most that such a process ever held
(VmHWM) less what it held before the model was made (one tiny step had loaded every library by then), after STEPS steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.common import write
from benchmarks.process import answer, ask, memory_bytes
from handgrad.core.params import Layout
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.model import Model
from handgrad.plan.calibrate import calibration
from handgrad.plan.plan import plan
from handgrad.train.config import MASTER, TrainConfig
from handgrad.train.memory import keep_freed_memory
from handgrad.train.optimiser import State
from handgrad.train.prepare import gradient_of, prepared
from handgrad.train.step import step_on

STEPS = 4
TINY = GPT2Config(vocabulary=64, context=64, n_layers=1, n_heads=2, d_model=64)


def shape(vocabulary: int, context: int, n_layers: int, n_heads: int, d_model: int, **more: Any) -> GPT2Config:
    return GPT2Config(vocabulary, context, n_layers, n_heads, d_model, **more)


WORKS: dict[str, tuple[GPT2Config, TrainConfig]] = {
    "6x512, context 128, float32": (shape(1000, 128, 6, 8, 512), TrainConfig(batch_size=16)),
    "6x512, context 256, explicit": (
        shape(1000, 256, 6, 8, 512),
        TrainConfig(batch_size=8, implementation="explicit"),
    ),
    "12x768, context 64, float32": (shape(5000, 64, 12, 12, 768), TrainConfig(batch_size=8)),
    "4x384, context 1024, float32": (shape(2000, 1024, 4, 6, 384), TrainConfig(batch_size=4)),
    "8x512, context 256, bfloat16": (shape(8000, 256, 8, 8, 512), TrainConfig(batch_size=12, dtype="bfloat16")),
    "8x512, context 256, cheap": (shape(8000, 256, 8, 8, 512), TrainConfig(batch_size=8, recompute="cheap")),
    "12x768, context 256, blocks": (shape(8000, 256, 12, 12, 768), TrainConfig(batch_size=4, recompute="blocks")),
    "12x768, context 128, inside": (shape(8000, 128, 12, 12, 768), TrainConfig(batch_size=4, update="inside", clip=0)),
    "4x256, context 512, float64": (shape(1000, 512, 4, 4, 256), TrainConfig(batch_size=4, dtype="float64")),
}


def trainer(shape: GPT2Config, config: TrainConfig) -> Callable[[], None]:
    """A training run as `train.loop` sets it up: each call is one step."""
    layer = shape.layers()
    layout = Layout(layer.slots(), dict(shape.ties()))
    params = layout.zeros(MASTER[config.dtype])
    params.flat.uniform_(-0.02, 0.02, generator=torch.Generator().manual_seed(0))
    model, state = prepared(Model(shape, layer, params), config), State.zeros(params.flat)
    gradient = gradient_of(model, config)
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, shape.vocabulary, (config.batch_size, shape.context), generator=draw) for _ in range(2))
    return lambda: void(step_on(model, [(x, y)], gradient, state, 1e-3, config, state.step + 1))


def void(result: object) -> None:
    """A step's result, which nobody looks at here."""


def measured(name: str) -> dict[str, Any]:
    shape, config = WORKS[name]
    keep_freed_memory()
    trainer(TINY, dataclasses.replace(config, batch_size=2))()
    before = memory_bytes("VmRSS")
    step, seconds = trainer(shape, config), list[float]()
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {"held_bytes": memory_bytes("VmHWM") - before, "step_s": min(seconds[1:])}


def planned(name: str) -> dict[str, Any]:
    found = plan(*WORKS[name])
    return {"peak_bytes": found.peak_bytes, "held_bytes": found.held_bytes, "step_s": calibration().step_s(found.trace)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--one", choices=WORKS)
    asked = parser.parse_args()
    if asked.one:
        return answer(lambda: measured(asked.one))
    rows = []
    for name in asked.only:
        ours = planned(name)
        runs = [ask("benchmarks.plan_peak", "--one", name) for _ in range(asked.runs)]
        held, step_s = median(run["held_bytes"] for run in runs), median(run["step_s"] for run in runs)
        row = {
            "work": name,
            "alive_mb": round(ours["peak_bytes"] / 1e6),
            "planned_mb": round(ours["held_bytes"] / 1e6),
            "measured_mb": round(held / 1e6),
            "least_mb": round(min(run["held_bytes"] for run in runs) / 1e6),
            "most_mb": round(max(run["held_bytes"] for run in runs) / 1e6),
            "planned_over_measured": round(ours["held_bytes"] / held, 3),
            "planned_s": round(ours["step_s"], 3),
            "measured_s": round(step_s, 3),
        }
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        rows.append(row)
    write("plan_peak", rows)


if __name__ == "__main__":
    main()
