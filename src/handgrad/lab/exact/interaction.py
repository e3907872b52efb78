"""Interaction: what single changes do not explain. The mixed difference of scores, and their contours."""

from __future__ import annotations

import torch
from torch import Tensor

from handgrad.core.layer import Layer
from handgrad.lab.exact.common import SEEDS, Exact, band, drawn, normal, output, verdict
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.rungs import bilinear, dot, low_rank, terms
from handgrad.layers.scores import Additive

WIDTH, SAMPLES = 32, 2048
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SCORES: dict[str, Layer] = {
    "g + h, no interaction": terms(None, WIDTH, 1, True, True, 1.0),
    "tanh": Additive(WIDTH, 16, 1, WIDTH**-0.5),
    "dot product": dot(),
    "bilinear": bilinear(WIDTH, 1),
    "low rank": low_rank(WIDTH, 1, 8),
}
PRODUCTS = ("dot product", "bilinear", "low rank")
FLAT: dict[str, Layer] = {"sum": terms(None, 1, 1, True, True), "tanh of sum": Additive(1, 1, 1), "product": dot()}
GRID = torch.linspace(-2, 2, 25, dtype=torch.float64)


def share(layer: Layer, seed: int, scale: float = 1.0) -> float:
    """Part of a score's variance that is interaction: E[mixed difference²] / (4 variance), from 0 to 1.

    Four tokens a, a', b, b' a sample; scores are made equal in variance by the division.
    """
    p, x = drawn(layer, seed), scale * normal((SAMPLES, 4, WIDTH), seed)
    score = output(layer, p, x)[:, 0]
    mixed = score[:, 0, 2] - score[:, 1, 2] - score[:, 0, 3] + score[:, 1, 3]
    return float(mixed.square().mean() / (4 * score[:, :2, 2:].var()))


def field(layer: Layer) -> Tensor:
    """f(x_α, x_β) for numbers x on a grid, all parameters 1 but for offsets; row β, column α."""
    p = drawn(layer, 0)
    for name in p:
        p[name].fill_(0.0 if name.endswith("b") else 1.0)
    return output(layer, p, GRID.view(1, -1, 1))[0, 0].mT


def regions(high: Tensor) -> int:
    """How many connected areas of a grid are true.

    >>> regions(torch.tensor([[True, False], [False, True]])), regions(torch.ones(2, 2, dtype=torch.bool))
    (2, 1)
    """
    left, n = {(int(i), int(j)) for i, j in high.nonzero()}, 0
    while left:
        n, reached = n + 1, [left.pop()]
        while reached:
            i, j = reached.pop()
            near = {(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)} & left
            left -= near
            reached += near
    return n


def work(say: Say) -> Result:
    fields = {name: field(layer) for name, layer in FLAT.items()}
    return {
        "share": {name: [share(layer, seed) for seed in SEEDS] for name, layer in SCORES.items()},
        "by_scale": {name: [[share(SCORES[name], seed, s) for seed in SEEDS] for s in SCALES] for name in SCORES},
        "regions": {name: regions(f > f.max() / 2) for name, f in fields.items()},
        "fields": {name: f.tolist() for name, f in fields.items()},
    }


def judged(found: Result) -> Finding:
    n = {
        name: Number.over(f"part of the variance that is interaction, {name}", values)
        for name, values in found["share"].items()
    }
    most = max(max(row) for row in found["by_scale"]["tanh"])
    least = min(min(row) for name in PRODUCTS for row in found["by_scale"][name])
    none, areas = max(max(row) for row in found["by_scale"]["g + h, no interaction"]), found["regions"]
    right = areas["sum"] == areas["tanh of sum"] == 1 and areas["product"] == 2
    holds = none < 1e-12 and most < least and right
    because = (
        f"At weights drawn at random, {n['dot product'].value:.2f} of a product's variance is interaction, "
        f"of tanh's {n['tanh'].value:.2g} for "
        f"tokens of spread 1 and at most {most:.2f} at any spread tried, of the other two terms {none:.1g}. A score "
        f"above half its largest fills {areas['product']} areas of the plane for a product, {areas['tanh of sum']} for "
        "tanh of a sum."
    )
    lines = {name: band(SCALES, rows) for name, rows in found["by_scale"].items()}
    x = [round(float(v), 6) for v in GRID]
    drawings = [
        Drawing("Interaction at equal variance", "spread of tokens", "share of variance", lines, log="x"),
        *(
            Drawing(f"Contours of {name}", "x_α", "x_β", {name: {"x": x, "y": x, "z": z}}, "field")
            for name, z in found["fields"].items()
        ),
    ]
    numbers = [
        n["dot product"],
        *(n[name] for name in SCORES if name != "dot product"),
        Number("interaction of tanh, at most", most),
        *(Number(f"areas where {name} is large", count) for name, count in areas.items()),
    ]
    notes = (
        "Interaction is the mean square of f(a, b) - f(a', b) - f(a, b') + f(a', b') over random tokens, against four "
        "times the variance of f: 0 for a sum of one function of each token, 1 where nothing else is left.",
        "Weights can be chosen so that a few tanh units interact as much as a product does; whether training gets "
        "there is what the step on recall tells.",
        "Tokens that do not have the mean 0 give a product terms of one token too; here their mean is 0.",
    )
    return Finding(verdict(holds), because, numbers, drawings, notes)


INTERACTION = Exact(
    "interaction",
    "Does tanh of a sum interact?",
    "Terms of one token interact not at all, tanh of a sum weakly: its contours are those of a sum, bent. A product is "
    "interaction and nothing else, and is large in two areas instead of one.",
    r"f(a, b) - f(a', b) - f(a, b') + f(a', b')",
    ("no_interaction", "tanh", "dot", "bilinear", "low_rank"),
    (Trial(f"interaction: width {WIDTH}, {SAMPLES} samples, spreads {SCALES}, seeds {SEEDS}", 3.0, work),),
    judged,
)
