"""Time and memory of one explicit attention head against the number of tokens: quadratic, once T is large.

Not a test: a clock is not exact. What is exact, the number of operations and of weights, is asserted by
`handgrad.check.numeric_attention.quadratic_cost`.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from math import log

import torch

from benchmarks.common import spread, write
from handgrad.core import Accumulate, Layout, Run
from handgrad.layers.head import Head

TOKENS = (64, 128, 256, 512, 1024, 2048)
HEAD = Head(width=128, d_rho=32, d_h=32)


def measure(tokens: int, repeats: int = 20, head: Head = HEAD) -> dict[str, object]:
    """Forward and backward pass of `head` over one sample of `tokens` tokens, in float32."""
    p = Layout(head.slots()).draw(seed=0)
    g = p.layout.zeros()
    a = torch.randn(1, tokens, head.width, generator=torch.Generator().manual_seed(0))
    Delta = torch.ones(1, tokens, head.d_h)
    run = Run(implementation="explicit")
    forward, backward = [], []
    for _ in range(repeats + 2):  # the first two warm up
        start = time.perf_counter()
        _, saved = head.forward(p.tree, a, run)
        middle = time.perf_counter()
        head.backward(p.tree, Delta, saved, Accumulate(g.tree), run)
        forward.append(middle - start)
        backward.append(time.perf_counter() - middle)
    return {
        "tokens": tokens,
        "weights_bytes": 4 * tokens * tokens,
        **{f"forward_{name}": x for name, x in spread(forward[2:]).items()},
        **{f"backward_{name}": x for name, x in spread(backward[2:]).items()},
    }


def growth(rows: list[dict[str, object]]) -> list[float]:
    """The exponent n of time ~ Tⁿ from each row to the next, forward and backward together.

    >>> growth([{"tokens": 2, "forward_median_ms": 1, "backward_median_ms": 1},
    ...         {"tokens": 4, "forward_median_ms": 4, "backward_median_ms": 4}])
    [2.0]
    """
    times = [(float(r["tokens"]), float(r["forward_median_ms"]) + float(r["backward_median_ms"])) for r in rows]
    return [round(log(t1 / t0) / log(n1 / n0), 2) for (n0, t0), (n1, t1) in pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    rows = [measure(tokens, asked.repeats) for tokens in asked.tokens]
    for row, exponent in zip(rows, ["", *growth(rows)], strict=True):
        print(f"T {row['tokens']:>5}  {row['forward_median_ms']:>9} ms  {row['backward_median_ms']:>9} ms  {exponent}")
    write("attention_cost", rows)


if __name__ == "__main__":
    main()
