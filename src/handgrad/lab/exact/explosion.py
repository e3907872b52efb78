"""How many parameters a matrix-valued function takes, and the diagonal as a sum of one-hot matrices."""

from __future__ import annotations

from handgrad.core.combine import Fork
from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.lab.exact.common import SAME, SEEDS, Exact, drawn, normal, off, output, slope, verdict
from handgrad.lab.parts import one_hot
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.linear import Linear
from handgrad.layers.rungs import diagonal, matrix_sum
from handgrad.layers.scores import Additive

H, HIDDEN = 4, 16
WIDTHS, APART = (64, 128, 256, 512, 1024), (8, 16, 32, 64)
SHARING = {"full_matrix": "d² functions", "diagonal": "d functions", "v_sum": f"{H} functions and {H} matrices"}


def separate(width: int, functions: int, matrices: bool = False) -> Layer:
    """So many functions of two tokens, each with a hidden layer of its own; with a matrix each where asked for."""
    one = Additive(width, HIDDEN, 1)
    parts: dict[str, Layer] = {f"f{i}": one for i in range(functions)}
    return Fork(parts | ({f"V{i}": Linear(width, width, False) for i in range(functions)} if matrices else {}))


def size(layer: Layer) -> int:
    return Layout(layer.slots()).count


def count(say: Say) -> Result:
    shared = {
        name: [size(rung(name).build(Sizes(width=d, context=8, functions=H, hidden=HIDDEN, layers=1))) for d in WIDTHS]
        for name in SHARING
    }
    apart: dict[str, list[int]] = {name: [] for name in SHARING}
    for i, d in enumerate(APART):
        say(f"functions of their own, width {d}", i / len(APART))
        apart["full_matrix"].append(size(separate(d, d * d)))
        apart["diagonal"].append(size(separate(d, d)))
        apart["v_sum"].append(size(separate(d, H, True)))
    return {"shared": shared, "apart": apart}


def equal(say: Say) -> Result:
    """The diagonal against Σ_j f_j V_j with one-hot V_j, and with random ones: random scores and tokens."""
    d = 12
    rows, matrices = diagonal(d, HIDDEN), matrix_sum(Additive(d, HIDDEN, d), d, d)
    found, other = [], []
    for seed in SEEDS:
        p, a = drawn(rows, seed), normal((4, 9, d), seed)
        own = {name.replace(".", "__"): p[name] for name in p}
        right = output(rows, p, a)
        found.append(off(output(matrices, drawn(matrices, seed, out__w=one_hot(d).double(), **own), a), right))
        other.append(off(output(matrices, drawn(matrices, seed, **own), a), right))
    return {"one_hot": found, "others": other}


def judged(counts: Result, sums: Result) -> Finding:
    apart, shared = counts["apart"], counts["shared"]
    falls = all(full > row > few for full, row, few in zip(*(apart[name] for name in SHARING), strict=True))
    worst, others = max(sums["one_hot"]), min(sums["others"])
    holds = falls and worst <= SAME < others
    full, row, few = (apart[name][-1] for name in SHARING)
    because = (
        f"Width {APART[-1]}, functions with hidden layers of their own: {full:,} parameters for d² functions, {row:,} "
        f"for d functions, {few:,} for {H} functions and {H} matrices. With one-hot V_j the sum is the diagonal to "
        f"{worst:.1e}; with other V_j it is not ({others:.2g})."
    )
    numbers = [
        Number(f"parameters of d² functions against {SHARING['v_sum']}, d = {APART[-1]}", full / few, "times"),
        *(Number(f"parameters of {SHARING[n]}, d = {APART[-1]}", apart[n][-1]) for n in SHARING),
        Number("functions to fit, full matrix", APART[-1] ** 2),
        Number("largest difference, one-hot sum and diagonal", worst),
        *(
            Number(f"the same with one hidden layer for all, d = {WIDTHS[-1]}: {SHARING[n]}", shared[n][-1])
            for n in SHARING
        ),
        *(Number(f"power of d: {SHARING[n]}", slope(APART[-2:], apart[n][-2:])) for n in SHARING),
    ]
    lines = {SHARING[n]: {"x": list(APART), "y": apart[n]} for n in SHARING}
    more = {SHARING[n]: {"x": list(WIDTHS), "y": shared[n]} for n in SHARING}
    drawings = (
        Drawing("Parameters, a hidden layer for each function", "width d", "parameters", lines, log="xy"),
        Drawing("Parameters, one hidden layer for all functions", "width d", "parameters", more, log="xy"),
    )
    cheap = shared["diagonal"][-1] < shared["v_sum"][-1]
    notes = (
        f"The text counts functions that are each fitted by themselves. Where all share one hidden layer, as in this "
        f"ladder, the diagonal takes {'fewer' if cheap else 'no fewer'} parameters than the sum of {H} matrices "
        f"({shared['diagonal'][-1]:,} and {shared['v_sum'][-1]:,} at width {WIDTHS[-1]}): "
        f"{'the count is then no reason for V, only what a diagonal cannot do' if cheap else 'the count holds'}.",
    )
    return Finding(verdict(holds), because, numbers, drawings, notes)


EXPLOSION = Exact(
    "explosion",
    "Why not a function for every entry?",
    "A weight matrix of d² functions takes too many parameters, a diagonal of d functions still many. The diagonal is "
    "a sum of d functions times one-hot matrices; with H learned matrices instead, the count is free to choose.",
    r"W_{\alpha\beta} = \sum_{j=1}^{H} f_j(x_\alpha, x_\beta) V_j",
    ("full_matrix", "diagonal", "one_hot", "v_sum"),
    (
        Trial(f"explosion: parameters, H {H}, hidden {HIDDEN}, d {WIDTHS} and {APART}", 1.0, count),
        Trial(f"explosion: one-hot sum and diagonal, seeds {SEEDS}", 1.0, equal),
    ),
    judged,
)
