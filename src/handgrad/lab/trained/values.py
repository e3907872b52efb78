"""Why V, trained: a full matrix function, a diagonal, a sum of one-hot matrices, and sums of a few learned ones."""

from __future__ import annotations

from dataclasses import replace

from handgrad.lab.fit import Fit
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import OPEN, Finding, Number
from handgrad.lab.tasks import Patterns
from handgrad.lab.trained.labelled import MARGIN, Found, Labelled, bars, counts, percent, shown, sure, verdict
from handgrad.lab.trained.training import Training

TASK, FIT = Patterns(32, 16), Fit(steps=400, lr=1e-2, every=100)
SIZES = Sizes(width=16, context=TASK.length, functions=4, hidden=16, layers=1)
D, H = SIZES.width, SIZES.functions
FEW, ROW, FULL, ONE_HOT, MANY = f"{H} V_j", "diagonal", "full matrix", "one-hot sum", f"{D} V_j"
FUNCTIONS = {FEW: H, ROW: D, FULL: D**2, ONE_HOT: D, MANY: D}
CASES = (
    (FEW, Training("v_sum", TASK, SIZES, FIT, 3.0)),
    (ROW, Training("diagonal", TASK, SIZES, FIT, 2.5)),
    (FULL, Training("full_matrix", TASK, SIZES, FIT, 12.0)),
    (MANY, Training("v_sum", TASK, replace(SIZES, functions=D), FIT, 6.0)),
    (ONE_HOT, Training("one_hot", TASK, SIZES, FIT, 3.0)),
)


def judged(of: Found) -> Finding:
    n = {label: sure(f"accuracy: {label}", of[label]) for label in FUNCTIONS if of[label]}
    few = n[FEW]
    said = ", ".join(
        f"{label} {percent(x)} ({FUNCTIONS[label]} functions, {of[label][0]['stack_parameters']:,} parameters)"
        for label, x in n.items()
    )
    numbers = [
        replace(few, label=f"accuracy of {H} functions with learned V, diagonal {n[ROW].value:.2f}"),
        *n.values(),
        *shown(of, "loss: {}", "loss_nats", "nats"),
        *counts(of),
        *(Number(f"functions to fit: {label}", count) for label, count in FUNCTIONS.items()),
    ]
    notes = (
        f"Answers to {TASK.patterns} pairs of tokens, drawn without a rule, learned by heart in at most {FIT.steps} "
        f"steps by one layer of width {D}; chance is {TASK.chance:.1%}. What these weights recall stands in the step "
        "on the whole ladder.",
        "Here all functions of a weight share one hidden layer, which is why a diagonal takes few parameters.",
    )
    drawings = (bars("Answers right", of), bars("Parameters", of, "stack_parameters"))
    if max(x.value for x in n.values()) <= TASK.chance + MARGIN:
        return Finding(OPEN, f"None of them learned anything: {said}.", numbers, drawings, notes)
    holds = all(few.value >= n[label].value - MARGIN for label in (ROW, FULL))
    return Finding(verdict(holds), f"Of {TASK.patterns} answers are right: {said}.", numbers, drawings, notes)


VALUES = Labelled(
    "values",
    "What do the few matrices V score?",
    "A few functions with learned matrices do as well as a function for each entry of the diagonal, or of the whole "
    "matrix.",
    rung("v_sum").formula,
    CASES,
    (FEW, ROW, FULL),
    judged,
)
