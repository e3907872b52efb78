"""One training step of a small model against autograd twins: the same shape, batch, clipping and fused AdamW.

Each is measured in processes of its own, set up as its user would have it: ours as `handgrad train` sets itself up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.common import spread, write
from benchmarks.process import answer, in_turns, refusal
from benchmarks.twin import TwinStep
from benchmarks.works import HandStep, configured, shifted
from handgrad import GPT2Config

SHAPE = GPT2Config(vocabulary=65, context=64, n_layers=4, n_heads=4, d_model=128, bias=False)
BATCH = 12
WORK = "step 4x128, context 64, batch 12"
TWIN = "autograd twin, eager"
TIMED, WARM = 60, 10


def ours(dtype: str, compile: bool = False) -> HandStep:
    return HandStep(SHAPE, configured(batch_size=BATCH, dtype=dtype, compile=compile))


WORKS: dict[str, Callable[[], Callable[..., Any]]] = {
    "handgrad": partial(ours, "float32"),
    "handgrad bfloat16": partial(ours, "bfloat16"),
    "handgrad compiled": partial(ours, "float32", True),
    "handgrad compiled bfloat16": partial(ours, "bfloat16", True),
    TWIN: partial(TwinStep, SHAPE),
    f"{TWIN}, autocast bfloat16": partial(TwinStep, SHAPE, bf16=True),
}


def one(name: str) -> dict[str, Any]:
    """Times one work in this process: the seconds of each step."""
    x, y = shifted(SHAPE.vocabulary, BATCH, SHAPE.context)
    step = WORKS[name]()
    for _ in range(WARM):
        step(x, y)
    seconds = []
    for _ in range(TIMED):
        start = time.perf_counter()
        step(x, y)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one", choices=WORKS)
    options = parser.parse_args()
    if options.one:
        return answer(partial(one, options.one))
    found = in_turns("benchmarks.step_time", tuple(WORKS), options.rounds)
    rows: list[dict[str, Any]] = []
    for name, answers in found.items():
        if why := refusal(answers):
            rows.append({"work": WORK, "who": name, "unavailable": why})
        else:
            rows.append({"work": WORK, "who": name, **spread([s for one in answers for s in one["seconds"]])})
    twin = next(row for row in rows if row["who"] == TWIN)["median_ms"]
    for row in rows:
        if "unavailable" in row:
            print(f"{row['who']:40} not measured: {row['unavailable']}")
            continue
        row |= {"over_twin": round(row["median_ms"] / twin, 3), "unavailable": ""}
        print(f"{row['who']:40} {row['median_ms']:8.2f} ms  ({row['over_twin']:.2f} of the eager twin's)")
    write("step_time", rows)


if __name__ == "__main__":
    main()
