"""Weights from the source alone: every unit that reads a token reads it with the same weight."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from handgrad.core.layer import Layer
from handgrad.lab.exact.common import SEEDS, Exact, band, drawn, normal, signal, verdict
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial

SIZES = Sizes(width=64, context=32, functions=4, layers=1)
NAMES = ("source_only", "tanh", "bilinear", "softmax")
PLACES = (2, 4, 8, 16, 32)


def measured(layer: Layer, seed: int) -> Result:
    """Spread of the weights with which units read one source, and cosines of neighbouring units' outputs."""
    p, a = drawn(layer, seed), normal((8, SIZES.context, SIZES.width), seed)
    units = signal(layer, p, a, "0.activation")
    cosine = torch.cosine_similarity(units[:, 1:], units[:, :-1], dim=-1).mean(0)
    near = [float(cosine[first:last].mean()) for first, last in pairwise((0, *(n - 1 for n in PLACES)))]
    return {"spread": spread(signal(layer, p, a, "0.mixing.rho")), "cosine": float(cosine.mean()), "by_place": near}


def spread(rho: Tensor) -> float:
    """How far the weights of one source differ among the units that read it, against the spread of all weights."""
    T = rho.shape[-1]
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    high = rho.masked_fill(~allowed, -torch.inf).amax(-2)
    low = rho.masked_fill(~allowed, torch.inf).amin(-2)
    return float((high - low).max() / rho[..., allowed].std())


def work(say: Say) -> Result:
    found: dict[str, Any] = {}
    for i, name in enumerate(NAMES):
        say(f"units of {name}", i / len(NAMES))
        found[name] = [measured(rung(name).build(SIZES), seed) for seed in SEEDS]
    return found


def judged(found: Result) -> Finding:
    alike = {
        name: Number.over(f"cosine of neighbours, {rung(name).title}", [one["cosine"] for one in found[name]])
        for name in NAMES
    }
    apart = {name: max(one["spread"] for one in found[name]) for name in NAMES}
    source, both = alike["source_only"], [alike[name] for name in ("tanh", "bilinear")]
    equal = apart["source_only"] == 0 < min(apart[name] for name in NAMES[1:])
    holds = equal and all(low(source) > high(other) for other in both)
    because = (
        f"Weights of one source differ among its readers by {apart['source_only']:.3g} with the source alone. Units "
        f"next to each other then agree by a cosine of {source.value:.2f} before training, against "
        f"{both[0].value:.2f} (tanh) and {both[1].value:.2f} (product) with both arguments."
    )
    spreads = [Number(f"spread of one source's weights, {rung(n).title}", apart[n], "σ") for n in NAMES]
    lines = {rung(n).title: band(PLACES, list(zip(*(one["by_place"] for one in found[n]), strict=True))) for n in NAMES}
    drawing = Drawing(
        "How alike units next to each other are, before training", "up to place", "cosine", lines, log="x"
    )
    notes = (
        "Random tokens, one layer, outputs of units after tanh. With the source alone a unit is its neighbour plus one "
        "term, so likeness grows with the place.",
        f"With a softmax over products, which is positive and starts nearly even, it is {alike['softmax'].value:.2f}. "
        "What it is after training is measured in another step.",
    )
    return Finding(verdict(holds), because, [*alike.values(), *spreads], (drawing,), notes)


def low(x: Number) -> float:
    return x.value if x.low is None else x.low


def high(x: Number) -> float:
    return x.value if x.high is None else x.high


SOURCE = Exact(
    "source",
    "Is the source alone enough?",
    "A weight that is a function of the source alone is the same for all units that read it, so units next to each "
    "other compute nearly the same. A weight of source and end unit is not.",
    r"W_{\alpha\beta} = f(x_\beta)",
    NAMES,
    (Trial(f"source: weights and likeness, {SIZES}, seeds {SEEDS}", 2.0, work),),
    judged,
)
