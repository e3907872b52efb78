"""What attention costs: multiplications and bytes, counted while it runs, for all pairs and for a window."""

from __future__ import annotations

import time
from typing import Any

from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.core.run import Run
from handgrad.lab.exact.common import Exact, normal, slope, verdict
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.mask import CAUSAL, Window
from handgrad.layers.multihead import MultiHead
from handgrad.plan.trace import Trace

WIDTH, HEADS, WINDOW = 32, 4, 64
TOKENS, LONG = (256, 512, 1024, 2048), (512, 1024, 2048, 4096)
REPEATS, TIMED = 7, ("all pairs, by tiles", "window, by tiles")
FORMS: dict[str, tuple[Layer, str]] = {
    "all pairs, matrix of weights": (MultiHead(WIDTH, HEADS, mask=CAUSAL), "explicit"),
    "all pairs, by tiles": (MultiHead(WIDTH, HEADS, mask=CAUSAL), "fused"),
    "window, matrix of weights": (MultiHead(WIDTH, HEADS, mask=Window(WINDOW)), "explicit"),
    "window, by tiles": (MultiHead(WIDTH, HEADS, mask=Window(WINDOW)), "fused"),
}


def counted(layer: Layer, form: str, tokens: int) -> dict[str, int]:
    """Of a forward pass over one sequence: multiplications in products between tokens, and bytes."""
    p, a = Layout(layer.slots()).draw(0), normal((1, tokens, WIDTH), 0).float()
    with Trace() as trace:
        trace.see(a, p.flat)
        before = trace.live
        trace.reset_peak()
        y, saved = layer.forward(p.tree, a, Run(implementation=form))
    between = [x for x in trace.products.elements() if x.batch == HEADS]
    kept = trace.live - before
    del y, saved
    return {
        "multiplications": sum(x.flops for x in between) // 2,
        "all": trace.flops // 2,
        "peak": trace.peak - before,
        "kept": kept,
    }


def count(say: Say) -> Result:
    found: dict[str, Any] = {}
    for i, (name, (layer, form)) in enumerate(FORMS.items()):
        say(name, i / len(FORMS))
        rows = [counted(layer, form, T) for T in TOKENS]
        found[name] = {key: [row[key] for row in rows] for key in rows[0]}
    return found


def clock(say: Say) -> Result:
    """Milliseconds of a forward pass by tiles: the fastest of REPEATS, taken in turns."""
    found: dict[str, list[float]] = {name: [] for name in TIMED}
    for i, T in enumerate(LONG):
        say(f"{T} tokens", i / len(LONG))
        turns = [[seconds(FORMS[name][0], T) for name in TIMED] for _ in range(REPEATS)]
        for name, times in zip(TIMED, zip(*turns, strict=True), strict=True):
            found[name].append(1000 * min(times))
    return found


def seconds(layer: Layer, tokens: int) -> float:
    p, a = Layout(layer.slots()).draw(0), normal((1, tokens, WIDTH), 0).float()
    start = time.perf_counter()
    layer.forward(p.tree, a, Run(implementation="fused"))
    return time.perf_counter() - start


def power(counts: Any, name: str, key: str) -> float:
    return slope(TOKENS[-2:], counts[name][key][-2:])


def judged(counts: Result, clocks: Result) -> Finding:
    work = {name: power(counts, name, "multiplications") for name in FORMS}
    held = {name: power(counts, name, "peak") for name in FORMS}
    whole, tiled, near = "all pairs, matrix of weights", "all pairs, by tiles", "window, by tiles"
    quadratic = work[whole] > 1.8 and work[tiled] > 1.8 and held[whole] > 1.7
    linear = work[near] < 1.2 and held[near] < 1.2
    many, few = (counts[name]["multiplications"][-1] for name in (tiled, near))
    gain = clocks[tiled][-1] / clocks[near][-1]
    because = (
        f"Twice the text makes {2 ** work[tiled]:.2f} times the multiplications between tokens over all pairs, and "
        f"{2 ** work[near]:.2f} times in a window of {WINDOW}. At {TOKENS[-1]} tokens that is {many:,} against "
        f"{few:,}; the whole matrix of weights takes {counts[whole]['peak'][-1] / 1e6:.3g} MB, all pairs by tiles "
        f"{counts[tiled]['peak'][-1] / 1e6:.3g} MB, the window by tiles "
        f"{counts[near]['peak'][-1] / 1e6:.3g} MB. In time the window gains a factor of {gain:.1f} at {LONG[-1]} "
        "tokens."
    )
    numbers = [
        Number("multiplications at twice the text, all pairs", 2 ** work[tiled], "times"),
        Number("multiplications at twice the text, window", 2 ** work[near], "times"),
        *(Number(f"multiplications, {n}, T = {TOKENS[-1]}", counts[n]["multiplications"][-1]) for n in FORMS),
        *(Number(f"most bytes held, {n}, T = {TOKENS[-1]}", counts[n]["peak"][-1]) for n in FORMS),
        *(Number(f"power of T in bytes, {n}", held[n]) for n in FORMS),
        *(Number(f"{n}, T = {LONG[-1]}", clocks[n][-1], "ms") for n in clocks),
    ]
    lines = {key: {n: {"x": list(TOKENS), "y": counts[n][key]} for n in FORMS} for key in ("multiplications", "peak")}
    times = {n: {"x": list(LONG), "y": clocks[n]} for n in clocks}
    drawings = (
        Drawing("Multiplications between tokens", "tokens", "multiplications", lines["multiplications"], log="xy"),
        Drawing("Bytes held at most", "tokens", "bytes", lines["peak"], log="xy"),
        Drawing("Time of a forward pass by tiles", "tokens", "ms", times, log="xy"),
    )
    notes = (
        f"A window costs less only where what it leaves out is not computed: written as a masked matrix it takes "
        f"{counts['window, matrix of weights']['multiplications'][-1]:,} multiplications, as many as all pairs do.",
        f"One layer of width {WIDTH} with {HEADS} heads, forward. By tiles, all pairs hold bytes that grow with the "
        f"power {held[tiled]:.2f} of the length: the square is in the work, and need not be in memory.",
    )
    return Finding(verdict(quadratic and linear), because, numbers, drawings, notes)


COST = Exact(
    "cost",
    "What does it cost to read all pairs?",
    "Every token is compared with all before it, so work grows with the square of the length, and so does "
    "memory where the matrix of weights is formed. In a window of fixed size both grow with the length at most.",
    r"n_{\mathrm{pairs}} = \frac{T(T+1)}{2} \qquad n_{\mathrm{window}} \le T w",
    ("transformer", "window"),
    (
        Trial(f"cost: counted, width {WIDTH}, {HEADS} heads, window {WINDOW}, T {TOKENS}", 2.0, count),
        Trial(f"cost: time, width {WIDTH}, {HEADS} heads, window {WINDOW}, T {LONG}, fastest of {REPEATS}", 3.0, clock),
    ),
    judged,
)
