"""How many patterns a unit can store exactly, with and without W_2: solved for, not trained."""

from __future__ import annotations

import torch
from torch import Tensor

from handgrad.core.combine import Chain
from handgrad.lab.exact.common import SEEDS, Exact, band, drawn, normal, off, output, signal, verdict
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial
from handgrad.layers.linear import Linear
from handgrad.layers.rungs import pieces
from handgrad.rules.tanh import TANH

WIDTH, EXACT = 16, 1e-6
UNITS = (16, 32, 64)
PATTERNS = (4, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96)


def keys_and_values(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """n random rows, and n random rows to be given for them, within what tanh can give."""
    return normal((n, WIDTH), seed, "keys"), 0.9 * normal((n, WIDTH), seed, "values").tanh()


def without(n: int, seed: int) -> float:
    """f(x W): tanh has an inverse, so W stores the patterns exactly only where x W = tanh⁻¹(v) can be solved."""
    layer = Chain(pieces(TANH, Linear(WIDTH, WIDTH, False), None))
    x, v = keys_and_values(n, seed)
    W = torch.linalg.lstsq(x, v.atanh(), driver="gelsd").solution
    return off(output(layer, drawn(layer, seed, up__w=W), x), v)


def with_values(n: int, units: int, seed: int) -> float:
    """f(x W_1 + b) W_2 with random keys W_1 and the best values W_2."""
    layer = Chain(pieces(TANH, Linear(WIDTH, units), Linear(units, WIDTH, False)))
    x, v = keys_and_values(n, seed)
    up = {"up__w": normal((WIDTH, units), seed, "w_1") / 2, "up__b": normal((units,), seed, "b")}
    m = signal(layer, drawn(layer, seed, **up), x, "activation")
    W_2 = torch.linalg.lstsq(m, v, driver="gelsd").solution
    return off(output(layer, drawn(layer, seed, down__w=W_2, **up), x), v)


def work(say: Say) -> Result:
    found = {"none": [[without(n, seed) for seed in SEEDS] for n in PATTERNS]}
    for units in UNITS:
        found[str(units)] = [[with_values(n, units, seed) for seed in SEEDS] for n in PATTERNS]
    return found


def most(rows: list[list[float]]) -> int:
    """The largest number of patterns that every seed stored exactly."""
    return max((n for n, row in zip(PATTERNS, rows, strict=True) if max(row) <= EXACT), default=0)


def judged(found: Result) -> Finding:
    stored = {name: most(rows) for name, rows in found.items()}
    widest = str(UNITS[-1])
    holds = stored["none"] <= WIDTH < stored[widest]
    because = (
        f"In a stream of {WIDTH} features an activation alone stores {stored['none']} random patterns exactly; with "
        f"W_2 {', '.join(f'{stored[str(n)]} by {n} units' for n in UNITS)}."
    )
    numbers = (
        Number(f"patterns stored with W_2, {UNITS[-1]} units", stored[widest], against=f"without it {stored['none']}"),
        Number("patterns stored without W_2", stored["none"]),
        *(Number(f"patterns stored with W_2, {n} units", stored[str(n)]) for n in UNITS[:-1]),
        Number("features of the stream", WIDTH),
    )
    names = {"none": "activation alone"} | {str(n): f"W_2, {n} units" for n in UNITS}
    lines = {names[key]: band(PATTERNS, rows) for key, rows in found.items()}
    drawing = Drawing("Largest error of the patterns stored", "patterns", "error", lines, log="xy")
    notes = (
        f"Numbers tried: {', '.join(map(str, PATTERNS))}; exact is an error of at most {EXACT:g}. Without W_2 the "
        "matrix before tanh is solved for, with it the values are, behind random keys. Nothing is trained.",
    )
    return Finding(verdict(holds), because, numbers, (drawing,), notes)


STORED = Exact(
    "patterns",
    "Why W₂?",
    "Without W_2 there are as many units as features and each writes to one of them, which leaves room for d patterns. "
    "With W_2 the number of units is free, and each writes a vector: more patterns than features.",
    r"f(x W_1) \quad \text{against} \quad f(x W_1 + b) W_2",
    ("heads", "w_2"),
    (Trial(f"patterns: d {WIDTH}, units {UNITS}, patterns {PATTERNS}, seeds {SEEDS}", 1.0, work),),
    judged,
)
