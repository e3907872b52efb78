"""The update inside the backward pass: peak memory of a GPT-2 124M step, and whether the weights are the plain step's.

Memory is that of whole steps at batch 2 x 1024 in a process of its own, with the blocks recomputed.
Equality is of all weights after ten steps at
batch 1 x 64 of the same model, where rounding is the only difference allowed: the largest ‖a - b‖/‖b‖ of any tensor.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks.common import write
from benchmarks.gpt2_step import BATCH, SHAPE, TOKENS
from benchmarks.process import answer, in_turns, memory_bytes, refusal
from benchmarks.works import HandStep, configured, shifted

PLAIN: dict[str, Any] = {}
INSIDE: dict[str, Any] = {"update": "inside", "recompute": "blocks"}
CLIPS = {"no clipping": 0.0, "clipping to 1.0": 1.0}
DTYPES = ("float32", "bfloat16")
STEPS = 10
WORKS = {
    f"{what}, {clip}, {dtype}": (what, CLIPS[clip], dtype)
    for what in ("plain peak", "peak", "weights")
    for clip in CLIPS
    for dtype in DTYPES
}


def one(name: str) -> dict[str, Any]:
    what, clip, dtype = WORKS[name]
    if what == "weights":
        return {"largest_gap": largest_gap(clip, dtype)}
    return {"peak_bytes": peak_bytes(clip, dtype, PLAIN if what == "plain peak" else INSIDE)}


def peak_bytes(clip: float, dtype: str, extra: dict[str, Any], steps: int = 2) -> int:
    step = HandStep(SHAPE, configured(batch_size=BATCH, clip=clip, dtype=dtype, **extra))
    x, y = shifted(SHAPE.vocabulary, BATCH, TOKENS)
    for _ in range(steps):
        step(x, y)
    return memory_bytes()


def largest_gap(clip: float, dtype: str) -> float:
    """Ten steps both ways from the same weights over the same batches."""
    ends = []
    for extra in (INSIDE, PLAIN):
        step = HandStep(SHAPE, configured(batch_size=1, clip=clip, dtype=dtype, **extra))
        before = step.model.params.flat.clone() if not ends else None
        for i in range(STEPS):
            step(*shifted(SHAPE.vocabulary, 1, 64, seed=i))
        ends.append(step.model.params)
        if before is not None and torch.equal(before, step.model.params.flat):
            raise RuntimeError("ten steps changed no weight: nothing was compared")
    inside, plain = ends
    return max(float((inside[n] - plain[n]).norm() / plain[n].norm().clamp_min(1e-30)) for n in plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=WORKS)
    options = parser.parse_args()
    if options.one:
        return answer(partial(one, options.one))
    rows: list[dict[str, object]] = []
    for name, answers in in_turns("benchmarks.update_in_backward", tuple(WORKS), 1).items():
        found = {"peak_bytes": "", "largest_gap": "", "unavailable": "", **answers[0]}
        rows.append({"work": "update inside the backward pass", "who": name, **found})
        print(f"{name:40} {refusal(answers) or answers[0]}")
    write("update_in_backward", rows)


if __name__ == "__main__":
    main()
