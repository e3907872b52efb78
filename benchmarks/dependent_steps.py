"""Time of two recurrent layers against two attention layers as the sequence grows, beside the steps that must wait.

Not a test: a clock is not exact. What is exact, the number of steps, is asserted by
`handgrad.check.numeric_weights.dependent_steps`.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.common import spread, write
from handgrad.check.steps import steps
from handgrad.core import Accumulate, Chain, Layer, Layout, Run
from handgrad.layers.multihead import MultiHead
from handgrad.layers.recurrent import rnn

TOKENS = (16, 64, 256, 1024)
WIDTH = 64
MODELS: dict[str, tuple[Layer, tuple[str, ...]]] = {
    "two rnn layers": (Chain({"one": rnn(WIDTH, WIDTH), "two": rnn(WIDTH, WIDTH)}), ("*.h",)),
    "two attention layers": (Chain({"one": MultiHead(WIDTH, 4), "two": MultiHead(WIDTH, 4)}), ("one", "two")),
}


def measure(name: str, tokens: int, repeats: int = 10) -> dict[str, object]:
    """Forward and backward pass over one sample of `tokens` tokens, in float32."""
    layer, units = MODELS[name]
    p = Layout(layer.slots()).draw(seed=0)
    g = p.layout.zeros()
    a = torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(0))
    Delta = torch.ones(1, tokens, WIDTH)
    forward, backward = [], []
    for _ in range(repeats + 2):  # the first two warm up
        start = time.perf_counter()
        _, saved = layer.forward(p.tree, a, Run())
        middle = time.perf_counter()
        layer.backward(p.tree, Delta, saved, Accumulate(g.tree), Run())
        forward.append(middle - start)
        backward.append(time.perf_counter() - middle)
    return {
        "model": name,
        "tokens": tokens,
        "dependent_steps": steps(layer, WIDTH, tokens, units).units,
        **{f"forward_{k}": x for k, x in spread(forward[2:]).items()},
        **{f"backward_{k}": x for k, x in spread(backward[2:]).items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    rows = [measure(name, tokens, asked.repeats) for name in MODELS for tokens in asked.tokens]
    for row in rows:
        times = f"{row['forward_median_ms']:>9} ms  {row['backward_median_ms']:>9} ms"
        print(f"{row['model']:>22}  T {row['tokens']:>5}  {row['dependent_steps']:>5} steps  {times}")
    write("dependent_steps", rows)


if __name__ == "__main__":
    main()
