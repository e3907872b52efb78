"""W_1 absorbed into the values: exactly so without a second skip and a norm, and not with either of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.lab.exact.common import SAME, SEEDS, Exact, drawn, normal, off, output, signal, verdict
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.mixing import Mixing
from handgrad.layers.rungs import low_rank, matrix_sum, two_skips, unit
from handgrad.layers.scores import SAME as WHOLE
from handgrad.rules.gelu import GELU_TANH
from handgrad.rules.weights_normalise import SOFTMAX

WIDTH, H, R, INNER, TOKENS, SAMPLES = 12, 3, 4, 48, 16, 64
LEAST = 1e-3  # a rest below this would count as absorbed
KINDS = ("neither", "second skip", "norm", "both")


def blocks() -> dict[str, Layer]:
    """Units that differ in a second skip around the mixing and a norm before W_1."""
    mixing, w_1, w_2 = attention(), Linear(WIDTH, INNER, False, 0.3), Linear(INNER, WIDTH, False, 0.3)
    return {
        "neither": unit(mixing, GELU_TANH, w_1, w_2),
        "second skip": two_skips(mixing, GELU_TANH, w_1, w_2),
        "both": two_skips(mixing, GELU_TANH, w_1, w_2, LayerNorm(WIDTH)),
    }


def attention() -> Mixing:
    return matrix_sum(low_rank(WIDTH, H, R, 0.3), WIDTH, H, SOFTMAX, std=0.3)


def exact(seed: int) -> float:
    """Outputs with V'_h = V_h W_1 and no W_1, against those with both."""
    one = blocks()["neither"]
    p, a = drawn(one, seed), normal((4, TOKENS, WIDTH), seed)
    wide = Mixing(attention().score, H, WHOLE, Linear(H * WIDTH, INNER, False), True)
    without = unit(wide, GELU_TANH, w_2=Linear(INNER, WIDTH, False))
    given = {name.replace(".", "__"): p[name] for name in p if name not in ("mixing.out.w", "up.w")}
    V = p["mixing.out.w"] @ p["up.w"]
    return off(output(without, drawn(without, seed, mixing__out__w=V, **given), a), output(one, p, a))


def rests(seed: int) -> dict[str, float]:
    """What the best V' leaves unexplained of what the non-linearity reads: the signal `up` of the real blocks.

    V' may be any matrix: with Σ_β ρ_h x_β of all heads side by side, c, the question is how near c V' can come.
    """
    a = normal((SAMPLES, TOKENS, WIDTH), seed)
    read: dict[str, Tensor] = {}
    for name, layer in blocks().items():
        p = drawn(layer, seed)
        read[name] = signal(layer, p, a, "up")
        if name == "neither":
            sums = Mixing(attention().score, H, shared=True)
            own = {n.removeprefix("mixing."): p[n] for n in p if n.startswith("mixing.score")}
            c = output(sums, drawn(sums, seed, **{n.replace(".", "__"): x for n, x in own.items()}), a)
            norm = LayerNorm(WIDTH)
            read["norm"] = output(norm, drawn(norm, seed), signal(layer, p, a, "mixing")) @ p["up.w"]
    return {name: rest(c.flatten(0, 1), read[name].flatten(0, 1)) for name in KINDS}


def rest(c: Tensor, wanted: Tensor) -> float:
    """The part of `wanted` that no matrix times c gives."""
    fitted = c @ torch.linalg.lstsq(c, wanted).solution
    return float((fitted - wanted).norm() / wanted.norm())


def work(say: Say) -> Result:
    found: dict[str, Any] = {"exact": [exact(seed) for seed in SEEDS], "rests": [rests(seed) for seed in SEEDS]}
    whole = matrix_sum(low_rank(WIDTH, H, R), WIDTH, H)
    wide = Mixing(whole.score, H, WHOLE, Linear(H * WIDTH, INNER, False), True)
    counts = [Layout(layer.slots()).count for layer in (wide, unit(whole, GELU_TANH, Linear(WIDTH, INNER, False)))]
    return found | {"parameters": counts}


def judged(found: Result) -> Finding:
    worst = max(found["exact"])
    left = {name: Number.over(f"rest, {name}", [one[name] for one in found["rests"]]) for name in KINDS}
    least = {name: min(one[name] for one in found["rests"]) for name in KINDS}
    holds = (
        worst <= SAME
        and max(one["neither"] for one in found["rests"]) <= SAME
        and all(least[n] > LEAST for n in KINDS[1:])
    )
    because = (
        f"Without second skip and norm, V_h W_1 in the place of V_h gives the same outputs to {worst:.1e}. The best "
        f"values that a least-squares fit finds leave {left['second skip'].value:.0%} of what the non-linearity reads "
        f"unexplained behind a second skip, {left['norm'].value:.0%} behind a norm, {left['both'].value:.0%} behind "
        "both."
    )
    numbers = (
        left["both"],
        left["second skip"],
        left["norm"],
        left["neither"],
        Number("largest difference, W_1 absorbed", worst),
        Number("parameters with W_1 absorbed", found["parameters"][0]),
        Number("parameters with V and W_1", found["parameters"][1]),
    )
    bars = {"rest": {"x": list(KINDS), "y": [left[name].value for name in KINDS]}}
    drawing = Drawing("What no values can replace of W_1", "before W_1", "part left by the best fit", bars, "bars")
    notes = (
        f"Absorbed, each of the {H} matrices has {INNER} columns instead of {WIDTH}, {found['parameters'][0]:,} "
        f"parameters instead of {found['parameters'][1]:,}: W_1 by itself serves all heads, so it is not superfluous "
        "for that alone.",
    )
    return Finding(verdict(holds), because, numbers, (drawing,), notes)


ABSORBED = Exact(
    "absorbed",
    "Is W₁ needed?",
    "While nothing stands between the mixing and the non-linearity, W_1 is a part of the values and can be dropped. "
    "Behind a second skip or a norm it cannot.",
    r"f\left(\sum_h c_h V_h W_1\right) = f\left(\sum_h c_h V'_h\right) \quad \text{where} \quad V'_h = V_h W_1",
    ("w_2", "w_1", "normed"),
    (Trial(f"absorbed: d {WIDTH}, H {H}, inner {INNER}, {SAMPLES} samples, seeds {SEEDS}", 2.0, work),),
    judged,
)
