"""How long the products and the attention of a GPT-2 124M step take by themselves, at this machine's best.

Each product of the step (qkv, out, up, down, head; forward, towards the input, towards the weight) is timed at its
exact shape, with both operands and the result stored by rows or by columns; the best of the eight counts. Attention is
the best of torch's fused operator in two layouts, and of its batched products alone at half their time (causal: half of
all pairs), q kᵗ and ρ v forward, those of Δ_v, Δ_ρ, Δ_q, Δ_k and q kᵗ once more backward. The sum over all layers is
the ideal step: what a step would take if everything else were free. `step time / ideal` in the table is a step's median
over this sum in the same dtype.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.common import write
from benchmarks.gpt2_step import BATCH, SHAPE, TOKENS, WORK
from benchmarks.process import answer, in_turns

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROWS, D, INNER = BATCH * TOKENS, SHAPE.d_model, SHAPE.d_inner
PRODUCTS = {  # name -> inputs, outputs, times a step
    "qkv": (D, 3 * D, SHAPE.n_layers),
    "out": (D, D, SHAPE.n_layers),
    "up": (D, INNER, SHAPE.n_layers),
    "down": (INNER, D, SHAPE.n_layers),
    "head": (D, SHAPE.vocabulary, 1),
}
HEADS = (BATCH, SHAPE.n_heads, TOKENS, SHAPE.d_model // SHAPE.n_heads)
REPEATS, BUDGET_S = 5, 1.5


def directions(n_in: int, n_out: int) -> dict[str, tuple[int, int, int]]:
    """(m, k, n) of the three products of a linear layer.

    >>> directions(3, 5)["weight"]
    (3, 2048, 5)
    """
    return {"forward": (ROWS, n_in, n_out), "input": (ROWS, n_out, n_in), "weight": (n_in, ROWS, n_out)}


def timed(work: Callable[[], Any]) -> float:
    """Median seconds of up to REPEATS calls, after one that warms up."""
    work()
    seconds: list[float] = []
    while len(seconds) < REPEATS and (len(seconds) < 2 or sum(seconds) < BUDGET_S):
        seconds.append(once(work))
    return median(seconds)


def once(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def both_ways(rows: int, columns: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A random matrix ~ (rows, columns) that lies in memory by rows, and the same by columns.

    >>> [x.stride() for x in both_ways(2, 3, torch.float32).values()]
    [(3, 1), (1, 2)]
    """
    x = torch.randn(rows, columns, dtype=torch.float32).to(dtype)
    return {"rows": x, "columns": x.mT.contiguous().mT}


def product(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[float, str]:
    """Seconds of (m, k) times (k, n) in its best layout, and the layout: left, right, result.

    One call each finds the two best, which are then timed.
    """
    left, right, out = both_ways(m, k, dtype), both_ways(k, n, dtype), torch.empty(m * n, dtype=dtype)
    calls = {}
    for (a_by, a), (b_by, b) in itertools.product(left.items(), right.items()):
        calls[f"{a_by}, {b_by}, rows"] = partial(torch.mm, a, b, out=out.view(m, n))
        calls[f"{a_by}, {b_by}, columns"] = partial(torch.mm, b.mT, a.mT, out=out.view(n, m))
    torch.mm(left["rows"][:64], right["rows"], out=out.view(m, n)[:64])
    ranked = sorted(calls, key=lambda name: once(calls[name]))
    return min((timed(calls[name]), name) for name in ranked[:2])


def attention(dtype: torch.dtype, by: str) -> tuple[float, float]:
    """Seconds forward and backward of causal attention ~ (B, H, T, d/H), stored by heads or by tokens."""
    q, k, v, Delta = (
        torch.randn(HEADS, dtype=torch.float32).to(dtype)
        if by == "heads"
        else torch.randn(HEADS, dtype=torch.float32).to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
        for _ in range(4)
    )
    for x in (q, k, v):
        x.requires_grad_()
    with torch.no_grad():
        forward = timed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return forward, timed(lambda: torch.autograd.grad(out, (q, k, v), Delta, retain_graph=True))


def attention_products(dtype: torch.dtype) -> tuple[float, float]:
    """Seconds forward and backward of attention's products alone, over half of all pairs."""
    q, k = (torch.randn(HEADS).to(dtype).flatten(0, 1) for _ in range(2))
    rho = torch.randn(len(q), TOKENS, TOKENS).to(dtype)
    scores, mixed = torch.empty_like(rho), torch.empty_like(q)
    agree = timed(lambda: torch.bmm(q, k.mT, out=scores))  # raw, raw again, Δ_ρ = Δ vᵗ
    mix = timed(lambda: torch.bmm(rho, k, out=mixed))  # ρ v, Δ_q = Δ_raw k
    turned = timed(lambda: torch.bmm(rho.mT, q, out=mixed))  # Δ_v = ρᵗ Δ, Δ_k = Δ_rawᵗ q
    return (agree + mix) / 2, (2 * agree + mix + 2 * turned) / 2


def one(name: str) -> dict[str, Any]:
    """Every operation of a step in one dtype."""
    dtype, rows = DTYPES[name], []
    for operation, (n_in, n_out, times) in PRODUCTS.items():
        for direction, (m, k, n) in directions(n_in, n_out).items():
            seconds, layout = product(m, k, n, dtype)
            rows.append(entry(f"{operation} {direction}", times, seconds, layout, 2.0 * m * k * n))
    flops = 4.0 * BATCH * SHAPE.n_heads * TOKENS * TOKENS * (D // SHAPE.n_heads) / 2  # causal: half of all pairs
    found = {by: attention(dtype, by) for by in ("heads", "tokens")} | {"products": attention_products(dtype)}
    for i, direction in enumerate(("forward", "backward")):
        by = min(found, key=lambda by, i=i: found[by][i])
        rows.append(entry(f"attention {direction}", SHAPE.n_layers, found[by][i], by, flops * (1, 2.5)[i]))
    return {"rows": rows}


def entry(operation: str, times: int, seconds: float, layout: str, flops: float) -> dict[str, Any]:
    return {
        "operation": operation,
        "times": times,
        "median_ms": round(1e3 * seconds, 3),
        "layout": layout,
        "gflops_per_s": round(flops / seconds / 1e9, 1),
    }


def ideal_ms(rows: list[dict[str, Any]]) -> float:
    """
    >>> ideal_ms([{"times": 12, "median_ms": 2.0}, {"times": 1, "median_ms": 6.0}])
    30.0
    """
    return round(sum(r["times"] * r["median_ms"] for r in rows), 1)


def best(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of each operation, the fastest round: a ceiling is what the machine can do, not what it did in a busy moment.

    >>> best([[{"operation": "a", "median_ms": 2.0}], [{"operation": "a", "median_ms": 1.0}]])
    [{'operation': 'a', 'median_ms': 1.0}]
    """
    return [min(same, key=lambda r: r["median_ms"]) for same in zip(*rounds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=DTYPES)
    options = parser.parse_args()
    if options.one:
        return answer(partial(one, options.one))
    written: list[dict[str, object]] = []
    for name, answers in in_turns("benchmarks.ceilings", tuple(DTYPES), options.rounds).items():
        rows = best([found["rows"] for found in answers])
        rows.append(
            {"operation": "ideal step", "times": 1, "median_ms": ideal_ms(rows), "layout": "", "gflops_per_s": ""}
        )
        for r in rows:
            figures = f"x{r['times']:<3} {r['median_ms']:9.2f} ms {r['gflops_per_s']:>8}"
            print(f"{name:9} {r['operation']:20} {figures} {r['layout']}")
        written += [{"work": WORK, "who": f"{r['operation']}, {name}", **r} for r in rows]
    write("ceilings", written)


if __name__ == "__main__":
    main()
