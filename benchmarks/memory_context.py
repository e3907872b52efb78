"""Peak memory of a training step against the context, at equal tokens: 8,192 as 8 x 1k, 4 x 2k, 2 x 4k, 1 x 8k.

Explicit attention keeps T² weights a head and layer, so its memory grows with T at equal tokens; fused attention keeps
none. The model is small and the same throughout (its table of positions too). What the process held before the model
was made, mostly torch itself, is subtracted: it would make anything look flat.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from benchmarks.common import write
from benchmarks.process import Unavailable, answer, in_turns, memory_bytes, refusal
from benchmarks.works import HandStep, configured, shifted
from handgrad import GPT2Config
from handgrad.core.run import Run
from handgrad.rules.attend import ATTEND

ALL_TOKENS = 8192
CONTEXTS = (1024, 2048, 4096, 8192)
SHAPE = GPT2Config(vocabulary=512, context=max(CONTEXTS), n_layers=3, n_heads=2, d_model=128)
WORKS = {f"{how} T {tokens}": (how, tokens) for tokens in CONTEXTS for how in ("explicit", "fused")}
STEPS = 2


def one(name: str) -> dict[str, Any]:
    """Peak bytes of STEPS steps above what the process held before."""
    how, tokens = WORKS[name]
    if how == "fused" and ATTEND.choose(Run(implementation="fused")) is ATTEND.explicit:
        raise Unavailable("attention has no fused pair yet")
    batch = ALL_TOKENS // tokens
    before = memory_bytes()
    step = HandStep(SHAPE, configured(batch_size=batch, implementation=how))
    x, y = shifted(SHAPE.vocabulary, batch, tokens)
    for _ in range(STEPS):
        loss, _ = step(x, y)
    peak = memory_bytes()
    return {"peak_bytes": peak, "above_base_bytes": peak - before, "loss": loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=WORKS)
    options = parser.parse_args()
    if options.one:
        return answer(partial(one, options.one))
    rows: list[dict[str, object]] = []
    for name, answers in in_turns("benchmarks.memory_context", tuple(WORKS), 1).items():
        found = {"peak_bytes": "", "above_base_bytes": "", "loss": "", "unavailable": "", **answers[0]}
        how, tokens = WORKS[name]
        rows.append({"work": "memory against context", "who": name, "how": how, "tokens": tokens, **found})
        shown = refusal(answers) or f"{answers[0]['above_base_bytes'] / 1e6:8.1f} MB"
        print(f"{name:16} {shown}")
    write("memory_context", rows)


if __name__ == "__main__":
    main()
