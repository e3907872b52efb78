"""What is kept of earlier tokens: bytes of real caches, and the example of 10 GB."""

from __future__ import annotations

import torch

from handgrad.core.combine import Chain, Residual
from handgrad.core.layer import Layer
from handgrad.core.run import Run
from handgrad.generate.cache import KVCache
from handgrad.lab.exact.common import Exact, drawn, normal, off, output, verdict
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.head import Head
from handgrad.layers.headwise import HeadwiseAttention, sum_of_heads
from handgrad.plan.cache import CacheBytes, cache_of, classic

WIDTH, HEADS, LAYERS, TOKENS = 64, 4, 2, 48
RANKS = (64, 32, 16, 8, 4)
BIG = {"width": 1000, "heads": 20, "layers": 50}


def stack(width: int, heads: int, layers: int, d_rho: int, d_h: int) -> Chain:
    """Heads whose values are whole are added up; narrower ones are put side by side and go through W_o."""
    one = Head(width, d_rho, d_h, query_bias=False, key_bias=False, value_bias=False)
    all_heads = (one,) * heads
    attention: Layer = sum_of_heads(all_heads) if d_h == width else HeadwiseAttention(all_heads, False)
    return Chain({str(i): Residual("attention", attention) for i in range(layers)})


def read(d_rho: int, d_h: int) -> Result:
    """Token after token through a real cache: its bytes, and how far the outputs are from those of one pass."""
    layer = stack(WIDTH, HEADS, LAYERS, d_rho, d_h)
    p, a, cache = drawn(layer, 0), normal((1, TOKENS, WIDTH), 0), KVCache(TOKENS)
    p.flat.mul_(5)
    rows = [layer.forward(p.tree, a[:, t : t + 1], Run(cache=cache, position=t))[0] for t in range(TOKENS)]
    kept = cache.layers.values()
    keys, values = sum(x.k.nbytes for x in kept), sum(x.v.nbytes for x in kept)
    return {"keys": keys, "values": values, "off": off(torch.cat(rows, 1), output(layer, p, a))}


def measure(say: Say) -> Result:
    sizes = {"full A, full V": (WIDTH, WIDTH), "low rank, full V": (16, WIDTH), "low rank, V and W_o": (16, 16)}
    return {
        "kinds": {name: read(*pair) for name, pair in sizes.items()},
        "by_rank": [read(r, r) for r in RANKS],
    }


def plan(say: Say) -> Result:
    """The example, by the planner: 5000 tokens, 50 layers, 20 heads, width 1000, numbers of 2 bytes."""
    found = {"full A": classic(), "A of rank 200": classic(rank=200), "V of rank 200 and W_o": narrow(200)}
    return {name: {"keys": one.keys, "values": one.values} for name, one in found.items()}


def narrow(rank: int) -> CacheBytes:
    layer = stack(BIG["width"], BIG["heads"], BIG["layers"], rank, rank)
    first = torch.zeros(1, 1, BIG["width"], dtype=torch.bfloat16, device="meta")
    return cache_of(layer, first, 5000, torch.bfloat16)


def judged(real: Result, planned: Result) -> Finding:
    kinds, by_rank = real["kinds"], real["by_rank"]
    totals = {name: one["keys"] + one["values"] for name, one in kinds.items()}
    exact = max(one["off"] for one in (*kinds.values(), *by_rank)) < 1e-12
    linear = all(one["keys"] * RANKS[0] == by_rank[0]["keys"] * r for one, r in zip(by_rank, RANKS, strict=True))
    full, low, both = (planned[name] for name in ("full A", "A of rank 200", "V of rank 200 and W_o"))
    ten, two = full["keys"] == full["values"] == 10**10, low["keys"] == both["values"] == 2 * 10**9
    falls = totals["full A, full V"] > totals["low rank, full V"] > totals["low rank, V and W_o"]
    shares = [total / totals["full A, full V"] for total in totals.values()]
    because = (
        f"The example's keys take {full['keys'] / 1e9:.3g} GB, and {low['keys'] / 1e9:.3g} GB at rank 200; its values "
        f"{full['values'] / 1e9:.3g} GB, and {both['values'] / 1e9:.3g} GB with W_o. Real caches of width {WIDTH} fall "
        f"to {shares[1]:.0%} with A of rank 16 and to {shares[2]:.0%} with V of rank 16 as well, and outputs by a "
        f"cache are {'those' if exact else 'not those'} of one pass."
    )
    numbers = [
        Number(f"keys of the example at rank 200, of {full['keys'] / 1e9:.3g} GB", low["keys"] / 1e9, "GB"),
        Number("keys of the example, full A", full["keys"] / 1e9, "GB"),
        Number("values of the example, full V", full["values"] / 1e9, "GB"),
        Number("values of the example, rank 200 and W_o", both["values"] / 1e9, "GB"),
        *(Number(f"measured cache, {name}", total, "bytes") for name, total in totals.items()),
        Number("largest difference, with and without cache", max(one["off"] for one in (*kinds.values(), *by_rank))),
    ]
    bars = {part: {"x": list(kinds), "y": [one[part] for one in kinds.values()]} for part in ("keys", "values")}
    line = {"keys and values": {"x": list(RANKS), "y": [one["keys"] + one["values"] for one in by_rank]}}
    drawings = (
        Drawing(f"Measured cache of {TOKENS} tokens", "what is kept", "bytes", bars, "bars"),
        Drawing("Measured cache by rank", "rank r", "bytes", line, log="xy"),
    )
    itself = full["keys"] // BIG["heads"]
    notes = (
        f"Measured: {LAYERS} layers, {HEADS} heads, float64. The example is planned, on layers without memory.",
        "This counts a cache that keeps the products, one for each function. A cache may also keep the token itself, "
        f"once for all functions, and multiply the reading token by each A: in the example {itself / 1e9:.3g} GB, less "
        "than at rank 200, for more work at every token. Low rank is not forced by memory alone.",
    )
    return Finding(verdict(exact and linear and ten and two and falls), because, numbers, drawings, notes)


CACHE = Exact(
    "cache",
    "What does low rank save?",
    "What is kept of each token, layer and function is a vector as wide as the stream: 10 GB for 5000 tokens, 50 "
    "layers, 20 functions and width 1000. With A of rank 200 it is 2 GB; W_o does the same for values.",
    r"5000 \cdot 50 \cdot 20 \cdot 1000 \cdot 2",
    ("bilinear", "low_rank", "heads"),
    (
        Trial(f"cache: real caches, width {WIDTH}, {HEADS} heads, {TOKENS} tokens, ranks {RANKS}", 2.0, measure),
        Trial("cache: the example of 5000 tokens, planned", 3.0, plan),
    ),
    judged,
)
