"""Fixed weights: none exists beyond the length of training, and their number grows with its square."""

from __future__ import annotations

from handgrad.core.errors import ShapeError
from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.lab.exact.common import Exact, drawn, normal, output, slope, verdict
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import RUNGS, rung
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial

LEARNED, LONGEST, WIDTH = 8, 32, 16
SIZES = Sizes(width=WIDTH, context=LEARNED, functions=4, hidden=8, layers=1)
CONTEXTS = (8, 16, 32, 64, 128)


def lengths(layer: Layer) -> tuple[int, str]:
    """The longest text that runs, of at most LONGEST tokens, and what is said of the next one."""
    p = drawn(layer, 0)
    for T in range(1, LONGEST + 1):
        try:
            output(layer, p, normal((1, T, WIDTH), 0))
        except ShapeError as error:
            return T - 1, str(error)
    return LONGEST, ""


def work(say: Say) -> Result:
    runs = {name: lengths(one.build(SIZES)) for name, one in RUNGS.items()}
    sizes = [Sizes(width=WIDTH, context=T, functions=4, hidden=8, layers=1) for T in CONTEXTS]
    counts = {
        name: [Layout(rung(name).build(s).slots()).count for s in sizes] for name in ("fixed", "source_only", "softmax")
    }
    return {"lengths": {n: length for n, (length, _) in runs.items()}, "said": runs["fixed"][1], "parameters": counts}


def judged(found: Result) -> Finding:
    lengths, counts = found["lengths"], found["parameters"]
    ends = [name for name, length in lengths.items() if length < LONGEST]
    dynamic = ("source_only", "tanh", "bilinear", "softmax", "transformer")
    power = slope(CONTEXTS[-2:], counts["fixed"][-2:])
    holds = lengths["fixed"] == LEARNED and not set(dynamic) & set(ends) and power > 1.5
    because = (
        f"Fixed weights learned for {LEARNED} tokens run on {lengths['fixed']} and no more; weights computed from "
        f"tokens run on all {LONGEST} that were tried. Fixed weights for {CONTEXTS[-1]} tokens are "
        f"{counts['fixed'][-1]:,} parameters, growing with the power {power:.2f} of the length; computed ones are "
        f"{counts['softmax'][-1]:,} at any length."
    )
    numbers = (
        Number("longest text of fixed weights", lengths["fixed"], "tokens"),
        Number("longest text tried of computed weights", min(lengths[n] for n in dynamic), "tokens"),
        Number(f"parameters of fixed weights, {CONTEXTS[-1]} tokens", counts["fixed"][-1]),
        Number(f"parameters of computed weights, {CONTEXTS[-1]} tokens", counts["softmax"][-1]),
    )
    lines = {rung(name).title: {"x": list(CONTEXTS), "y": y} for name, y in counts.items()}
    notes = (
        f"What is said of the token after the last: {found['said']}.",
        f"Rungs that end somewhere: {', '.join(f'{rung(n).title} at {lengths[n]}' for n in ends) or 'none'}. "
        "Learned positions, which stand before the layers measured here, end as well.",
    )
    drawing = Drawing("Parameters of one layer of width 16", "tokens it is made for", "parameters", lines, log="xy")
    return Finding(verdict(holds), because, numbers, (drawing,), notes)


FIXED = Exact(
    "fixed",
    "Why not learn each weight?",
    "One learned matrix for each pair of places ends at the length of training: nothing was learned for the places "
    "after it. Weights that are computed have no such end.",
    r"o_\alpha = \sum_{\beta \le \alpha} x_\beta W_{\alpha\beta}",
    ("source_only", "softmax", "fixed"),
    (Trial(f"fixed: longest text of every rung, {SIZES}", 2.0, work),),
    judged,
)
