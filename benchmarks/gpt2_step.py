"""One training step of GPT-2 124M, batch 2 x 1024: tokens a second and peak memory, ours and the peers'.

Forward pass, loss, backward pass, clipping to 1.0 and fused AdamW. Each work has processes of its own and takes turns
with the others; time and memory come from the same one. All start from the same weights and see the same batch, and
the first step's loss and gradient norm must agree, so the same work is timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from math import sqrt
from statistics import median
from typing import Any

from benchmarks.common import quartiles, write
from benchmarks.process import Unavailable, answer, in_turns, memory_bytes, refusal
from benchmarks.twin import TwinStep
from benchmarks.works import HandStep, TransformersStep, configured, shifted
from handgrad import GPT2Config, build
from handgrad.core.compiler import no_compiler

SHAPE = GPT2Config(vocabulary=50257, context=1024, n_layers=12, n_heads=12, d_model=768)
BATCH, TOKENS = 2, 1024
WORK = "GPT-2 124M step, batch 2 x 1024"
TIMED, ENOUGH_S = 3, 40
# How far the first loss and gradient norm may lie from the float32 twin's, relatively. float32: long sums in another
# order. bfloat16: 8 bits, so 2**-8 a rounding.
LOSS_GAP = {"float32": 1e-5, "bfloat16": 2**-8}
NORM_GAP = {"float32": 1e-6, "bfloat16": 2**-5}


def ours(**config: Any) -> HandStep:
    return HandStep(SHAPE, configured(batch_size=BATCH, **config))


def twin(**how: Any) -> TwinStep:
    if how.get("compiled") and (reason := no_compiler()):
        raise Unavailable(reason)
    step = TwinStep(SHAPE, **how)
    step.take(build(SHAPE, seed=0).params)
    return step


def transformers(**how: Any) -> TransformersStep:
    step = TransformersStep(SHAPE, **how)
    step.take(build(SHAPE, seed=0))
    return step


WORKS: dict[str, Callable[[], Callable[..., tuple[float, float]]]] = {
    "handgrad float32": partial(ours, dtype="float32", recompute="cheap"),
    "handgrad bfloat16": partial(ours, dtype="bfloat16", recompute="cheap"),
    "handgrad compiled bfloat16": partial(ours, dtype="bfloat16", recompute="cheap", compile=True),
    "transformers eager float32": partial(transformers),
    "transformers autocast bfloat16": partial(transformers, bf16=True),
    "twin eager float32": partial(twin),
    "compiled twin bfloat16": partial(twin, bf16=True, compiled=True),
}


def exact(step: Any, norm: float) -> float:
    """The norm of a peer's gradients before clipping, summed in float64: its own is one float32 sum a parameter, and
    off by 1e-4 for the 39 million of the embedding. What lies there after the step is clipped."""
    if not hasattr(step, "net"):
        return norm
    pieces = (piece for p in step.net.parameters() for piece in p.grad.flatten().split(1 << 20))
    return sqrt(sum(float(piece.double().square().sum()) for piece in pieces)) * max(1.0, (norm + 1e-6) / step.clip)


def one(name: str) -> dict[str, Any]:
    """One work in this process: seconds of each timed step, peak memory, and what the first step computed."""
    base_bytes = memory_bytes("VmRSS")
    step = WORKS[name]()
    x, y = shifted(SHAPE.vocabulary, BATCH, TOKENS)
    loss, norm = step(x, y)  # warms up; a compiled work compiles here
    norm = exact(step, norm)
    seconds: list[float] = []
    while len(seconds) < TIMED and sum(seconds) < ENOUGH_S:
        start = time.perf_counter()
        step(x, y)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "peak_bytes": memory_bytes(), "base_bytes": base_bytes, "loss": loss, "norm": norm}


def row(name: str, answers: list[dict[str, Any]]) -> dict[str, object]:
    """A CSV row of all rounds of one work.

    >>> row("a", [{"seconds": [1.0, 2.0], "peak_bytes": 5, "base_bytes": 1, "loss": 1.0, "norm": 2.0}])["tokens_per_s"]
    1536.0
    """
    if why := refusal(answers):
        return {"work": WORK, "who": name, "unavailable": why}
    rates = [BATCH * TOKENS / s for one in answers for s in one["seconds"]]
    low, middle, high = (round(rate, 1) for rate in quartiles(rates))
    return {
        "work": WORK,
        "who": name,
        "tokens_per_s": middle,
        "quartile_low": low,
        "quartile_high": high,
        "steps": len(rates),
        "peak_bytes": int(median(one["peak_bytes"] for one in answers)),
        "base_bytes": int(median(one["base_bytes"] for one in answers)),
        "first_loss": answers[0]["loss"],
        "first_norm": answers[0]["norm"],
        "unavailable": "",
    }


def differences(rows: list[dict[str, Any]], right: str = "twin eager float32") -> list[str]:
    """Works whose first loss or gradient norm is not that of the float32 twin.

    >>> same = {"who": "twin eager float32", "first_loss": 2.0, "first_norm": 1.0}
    >>> differences([same, {"who": "a float32", "first_loss": 2.1, "first_norm": 1.0}])
    ['a float32: first_loss 2.1, and twin eager float32 has 2.0']
    """
    measured = {r["who"]: r for r in rows if not r.get("unavailable")}
    if right not in measured:
        return []
    return [
        f"{who}: {figure} {r[figure]}, and {right} has {measured[right][figure]}"
        for who, r in measured.items()
        for figure, gaps in (("first_loss", LOSS_GAP), ("first_norm", NORM_GAP))
        if abs(r[figure] / measured[right][figure] - 1) > gaps["bfloat16" if "bfloat16" in who else "float32"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=WORKS)
    options = parser.parse_args()
    if options.one:
        answer(partial(one, options.one))
        return 0
    rows = [
        row(name, answers) for name, answers in in_turns("benchmarks.gpt2_step", tuple(WORKS), options.rounds).items()
    ]
    for r in rows:
        if r["unavailable"]:
            print(f"{r['who']:32} not measured: {r['unavailable']}")
        else:
            print(
                f"{r['who']:32} {r['tokens_per_s']:7.1f} tokens/s ({r['quartile_low']} to {r['quartile_high']})  "
                f"{int(r['peak_bytes']) / 1e9:5.2f} GB  first loss {r['first_loss']:.6f}, norm {r['first_norm']:.5f}"
            )
    wrong = differences(rows)
    for text in wrong:
        print(f"not the same work: {text}")
        next(r for r in rows if text.startswith(f"{r['who']}:"))["unavailable"] = f"not the same work: {text}"
    write("gpt2_step", rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
