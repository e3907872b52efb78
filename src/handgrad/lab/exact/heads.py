"""Heads: a sum over whole matrices V'_h, or narrow values side by side times W_o. The same where V'_h = V_h W_o^h."""

from __future__ import annotations

import torch

from handgrad.core.run import Run
from handgrad.generate.cache import KVCache
from handgrad.lab.exact.common import SAME, SEEDS, Exact, band, drawn, normal, off, output, verdict
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.head import Head
from handgrad.layers.headwise import HeadwiseAttention, sum_of_heads
from handgrad.layers.rungs import heads as narrow_heads
from handgrad.layers.rungs import low_rank, matrix_sum
from handgrad.rules.weights_normalise import SOFTMAX

WIDTH, H, R, TOKENS = 32, 4, 8, 20
RANKS = (32, 24, 16, 8, 4, 2, 1)


def equal(say: Say) -> Result:
    """Outputs of concat W_o against those of the sum, V'_h = V_h W_o^h; then with the blocks of W_o exchanged."""
    score = low_rank(WIDTH, H, R, 0.2)
    narrow, whole = narrow_heads(score, WIDTH, H, R, std=0.2), matrix_sum(score, WIDTH, H, SOFTMAX)
    found, other, ranks = [], [], []
    for seed in SEEDS:
        p, a = drawn(narrow, seed), normal((2, TOKENS, WIDTH), seed)
        own = {name.replace(".", "__"): p[name] for name in p if name.startswith("score")}
        V, W_o = p["value.w"].chunk(H, 1), p["out.w"].chunk(H)
        right = output(narrow, p, a)
        for blocks, into in ((W_o, found), (W_o[1:] + W_o[:1], other)):
            product = torch.cat([v @ w for v, w in zip(V, blocks, strict=True)])
            into.append(off(output(whole, drawn(whole, seed, out__w=product, **own), a), right))
        ranks += [int(torch.linalg.matrix_rank(v @ w)) for v, w in zip(V, W_o, strict=True)]
    return {"same": found, "others": other, "ranks": ranks}


def kept(say: Say) -> Result:
    """Bytes of values in a real cache, summed whole heads and narrow ones."""
    one = {d_h: Head(WIDTH, R, d_h, query_bias=False, key_bias=False, value_bias=False) for d_h in (WIDTH, R)}
    layers = {"whole": sum_of_heads((one[WIDTH],) * H), "narrow": HeadwiseAttention((one[R],) * H, False)}
    found = {}
    for name, layer in layers.items():
        cache = KVCache(TOKENS)
        layer.forward(drawn(layer, 0).tree, normal((1, TOKENS, WIDTH), 0), Run(cache=cache))
        found[name] = sum(x.v.nbytes for x in cache.layers.values())
    return found


def price(say: Say) -> Result:
    """What W_o cannot give back: whole random V'_h against their best approximation of rank r, in outputs."""
    whole = matrix_sum(low_rank(WIDTH, H, R, 0.2), WIDTH, H, SOFTMAX)
    rests: list[list[float]] = [[] for _ in RANKS]
    for seed in SEEDS:
        p, a = drawn(whole, seed), normal((4, TOKENS, WIDTH), seed)
        right, own = output(whole, p, a), {name.replace(".", "__"): p[name] for name in p if name != "out.w"}
        for r, into in zip(RANKS, rests, strict=True):
            V = torch.cat([best(v, r) for v in p["out.w"].chunk(H)])
            found = output(whole, drawn(whole, seed, out__w=V, **own), a)
            into.append(float((found - right).norm() / right.norm()))
    return {"rests": rests}


def best(V: torch.Tensor, rank: int) -> torch.Tensor:
    u, s, vt = torch.linalg.svd(V)
    return u[:, :rank] * s[:rank] @ vt[:rank]


def judged(two: Result, bytes_kept: Result, lost: Result) -> Finding:
    worst, others = max(two["same"]), min(two["others"])
    saved = bytes_kept["whole"] / bytes_kept["narrow"]
    rest = [sum(row) / len(row) for row in lost["rests"]]
    holds = worst <= SAME < others and saved == WIDTH / R and rest[0] <= SAME
    because = (
        f"Side by side times W_o is the sum over heads to {worst:.1e} where V'_h = V_h W_o^h, and is not with the "
        f"blocks of W_o exchanged ({others:.2g}). Values kept are {bytes_kept['narrow']:,} bytes instead of "
        f"{bytes_kept['whole']:,}, {saved:.3g} times fewer at r = {R} of {WIDTH}."
    )
    numbers = (
        Number("values kept, whole against narrow", saved, "times"),
        Number("largest difference, sum and concat W_o", worst),
        Number("rank of V_h W_o^h, at most", max(two["ranks"])),
        Number.over(f"rest of random V'_h at rank {R}", lost["rests"][RANKS.index(R)]),
    )
    drawings = (
        Drawing(
            "What a lower rank loses of random whole matrices",
            "rank r",
            "rest of the outputs",
            {"best of rank r": band(RANKS, lost["rests"])},
        ),
    )
    notes = (
        f"Equal outputs go one way only: V_h W_o^h has the rank {R}, and random whole V'_h lose "
        f"{rest[RANKS.index(R)]:.0%} of their outputs when cut down to it. Whether a trained network needs more is "
        "for training to show.",
    )
    return Finding(verdict(holds), because, numbers, drawings, notes)


HEADS = Exact(
    "heads",
    "Is concat times W_o the sum over heads?",
    "Heads side by side times W_o give what the sum over heads with V'_h = V_h W_o^h gives; but r numbers are kept of "
    "a value instead of d.",
    r"\sum_{h} \rho^h x V'_h = \operatorname{concat}_h(\rho^h x V_h) W_o \quad \text{where} \quad V'_h = V_h W_o^h",
    ("softmax", "heads"),
    (
        Trial(f"heads: sum and concat, d {WIDTH}, H {H}, r {R}, seeds {SEEDS}", 1.0, equal),
        Trial(f"heads: values in a real cache, d {WIDTH}, H {H}, r {R}, {TOKENS} tokens", 0.5, kept),
        Trial(f"heads: rest of whole matrices, d {WIDTH}, H {H}, ranks {RANKS}, seeds {SEEDS}", 1.0, price),
    ),
    judged,
)
