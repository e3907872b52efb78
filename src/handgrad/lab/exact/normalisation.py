"""Normalisation: how outputs grow with the text, how sharply a softmax chooses, and its two forms."""

from __future__ import annotations

from math import exp
from typing import Any

import torch
from torch import Tensor

from handgrad.core.layer import Layer
from handgrad.core.run import Run
from handgrad.core.signals import Watch
from handgrad.lab.exact.common import SAME, SEEDS, Exact, band, drawn, normal, off, output, slope, verdict
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.rungs import heads, low_rank
from handgrad.rules.weights_normalise import softened

TOKENS, TAUS = (8, 16, 32, 64, 128, 256), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
NAMES, SIZES = ("low_rank", "divide", "softmax"), Sizes(width=32, context=256, functions=4, layers=1)


def growth(say: Say) -> Result:
    """Size of the last output, the middle of 8 sequences, and the largest sum of a row's weights in absolute value."""
    found: dict[str, Any] = {name: {"norm": [], "weights": []} for name in NAMES}
    for i, name in enumerate(NAMES):
        say(f"length under {name}", i / len(NAMES))
        layer = rung(name).build(SIZES)
        for T in TOKENS:
            norms, sums = zip(*(last(layer, T, seed) for seed in SEEDS), strict=True)
            found[name]["norm"].append(norms)
            found[name]["weights"].append(max(sums))
    return found


def last(layer: Layer, tokens: int, seed: int) -> tuple[float, float]:
    """Of the last unit: the middle size of its outputs, and the largest sum of |weights|."""
    p, a, seen = drawn(layer, seed), normal((8, tokens, SIZES.width), seed), Watch(("0.mixing", "0.mixing.rho"))
    layer.forward(p.tree, a, Run(signals=seen))
    size = seen["0.mixing"][:, -1].square().mean(-1).sqrt()
    return float(size.median()), float(seen["0.mixing.rho"][..., -1, :].abs().sum(-1).max())


def sharpness(say: Say) -> Result:
    """Entropy and largest weight of rows over 128 scores of spread 1, by the temperature."""
    scores = [normal((1, 1, 64, 128), seed, "scores") for seed in SEEDS]
    rows = {tau: [softened(tau).forward(score, None, run=Run())[0] for score in scores] for tau in TAUS}
    return {
        "entropy": [[float(entropy(rho).mean()) for rho in rows[tau]] for tau in TAUS],
        "largest": [[float(rho.amax(-1).mean()) for rho in rows[tau]] for tau in TAUS],
    }


def entropy(rho: Tensor) -> Tensor:
    return -torch.special.xlogy(rho, rho).sum(-1)


def forms(say: Say) -> Result:
    """The layer, which masks a whole matrix by -∞, against the sum over β ≤ α written out, number by number."""
    T, d, F, r = 10, 8, 2, 3
    found = []
    for seed, tau in zip(SEEDS, (0.3, 0.7, 1.0, 2.0, 5.0), strict=True):
        layer = heads(low_rank(d, F, r, 0.5), d, F, r, softened(tau), 0.5)
        p, a = drawn(layer, seed), normal((1, T, d), seed)
        found.append(off(output(layer, p, a)[0], summed(p, a[0], F, tau)))
    return {"off": found}


def summed(p: Any, x: Tensor, functions: int, tau: float) -> Tensor:
    """o_α = Σ_h Σ_{β≤α} exp(q_α·k_β/τ) / Σ_{γ≤α} exp(q_α·k_γ/τ) · x_β w_v^h W_o^h, one α, β and h at a time."""
    names = ("score.end.w", "score.source.w", "value.w")
    w_q, w_k, w_v = (p[name].chunk(functions, 1) for name in names)
    out = torch.zeros_like(x)
    for h, w_o in enumerate(p["out.w"].chunk(functions)):
        for i in range(len(x)):
            e = [exp(float((x[i] @ w_q[h]) @ (x[j] @ w_k[h])) / tau) for j in range(i + 1)]
            for j, one in enumerate(e):
                out[i] += one / sum(e) * (x[j] @ w_v[h] @ w_o)
    return out


def judged(grown: Result, sharp: Result, two: Result) -> Finding:
    powers = {n: slope(TOKENS, [sum(row) / len(row) for row in grown[n]["norm"]]) for n in NAMES}
    largest, entropies = ([sum(row) / len(row) for row in sharp[key]] for key in ("largest", "entropy"))
    ordered = largest == sorted(largest, reverse=True) and entropies == sorted(entropies)
    worst, steady = max(two["off"]), {n: max(grown[n]["weights"]) for n in NAMES}
    holds = powers["low_rank"] > 0.25 and powers["softmax"] <= 0.1 and steady["softmax"] < 1 + 1e-9 and ordered
    one = TAUS.index(1.0)
    because = (
        f"From {TOKENS[0]} to {TOKENS[-1]} tokens outputs grow with the power {powers['low_rank']:.2f} of the length "
        f"without normalisation, {powers['softmax']:.2f} with softmax. Divided by their sum, weights of both signs add "
        f"up to as much as {steady['divide']:.2g} in absolute value; under softmax to {steady['softmax']:.3g}. Of 128 "
        f"tokens the largest gets {largest[one]:.0%} at τ = 1 and {largest[0]:.0%} at τ = {TAUS[0]}. The masked matrix "
        f"is the sum to {worst:.1e}."
    )
    numbers = [
        Number(
            "power of T in outputs under softmax", powers["softmax"], against=f"without it {powers['low_rank']:.2f}"
        ),
        Number("power of T in outputs, no normalisation", powers["low_rank"]),
        Number("power of T in outputs, divided by the sum", powers["divide"]),
        Number("largest absolute sum of a row, divided by the sum", steady["divide"]),
        *(Number(f"largest weight at τ = {tau:g}", y) for tau, y in zip(TAUS, largest, strict=True)),
        *(Number(f"entropy at τ = {tau:g}", y, "nats") for tau, y in zip(TAUS, entropies, strict=True)),
        Number("largest difference, masked matrix and sum", worst),
    ]
    drawings = (
        Drawing(
            "Size of outputs by length",
            "tokens",
            "root mean square",
            {rung(n).title: band(TOKENS, grown[n]["norm"]) for n in NAMES},
            log="xy",
        ),
        Drawing("Largest weight of 128", "τ", "weight", {"softmax": band(TAUS, sharp["largest"])}, log="x"),
        Drawing("Entropy of 128 weights", "τ", "nats", {"softmax": band(TAUS, sharp["entropy"])}, log="x"),
    )
    notes = ("Random tokens and first weights. Scores have both signs, so a sum of them may come near zero.",)
    return Finding(verdict(holds and worst <= SAME), because, numbers, drawings, notes)


NORMALISATION = Exact(
    "normalisation",
    "Why softmax?",
    "Sums over a longer text are larger. Weights that add up to one do not let outputs grow; a softmax also makes them "
    "sparse, the more so the smaller its temperature.",
    r"\omega_{\alpha\beta} = \frac{\exp(v_{\alpha\beta}/\tau)}{\sum_{\gamma \le \alpha} \exp(v_{\alpha\gamma}/\tau)}",
    NAMES,
    (
        Trial(f"normalisation: growth, {SIZES}, T {TOKENS}, seeds {SEEDS}", 4.0, growth),
        Trial(f"normalisation: sharpness, τ {TAUS}, seeds {SEEDS}", 1.0, sharpness),
        Trial(f"normalisation: masked matrix and sum, seeds {SEEDS}", 1.0, forms),
    ),
    judged,
)
