"""What an MLP can learn by heart: patterns with and without an activation, W_2, W_1, a second skip and a norm."""

from __future__ import annotations

from dataclasses import replace

from handgrad.lab.fit import Fit
from handgrad.lab.rung import Sizes, parameters, width_for
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Finding, Number, Result
from handgrad.lab.tasks import Patterns
from handgrad.lab.trained.labelled import Found, Labelled, bars, counts, sure, verdict
from handgrad.lab.trained.training import Training, number

WIDTH, TASK = 16, Patterns(32, 16)
SIZES = Sizes(width=WIDTH, context=2, functions=2, layers=1)
FIT = Fit(steps=500, lr=1e-2, every=100)
NONE, ALONE, EQUAL = "none", "activation only", "activation only, wider: parameters of W_2"
WITH = {"W_2": "w_2", "W_1 and second skip": "w_1", "W_1, second skip and norm": "normed"}


def training(name: str, sizes: Sizes = SIZES) -> Training:
    return Training(name, TASK, sizes, FIT, 3.0)


def wider() -> Sizes:
    """The width at which an activation alone has the parameters of the unit with W_2."""
    return width_for(rung("heads"), SIZES, parameters(rung("w_2"), SIZES), step=2)


def learned(result: Result) -> dict[str, float]:
    """Answers known, less those that guessing gives: accuracy 1 is all patterns, chance is none.

    >>> learned({"accuracy": 0.53125, "chance": 1 / 16, "side": 16, "diverged": ""})["learned"]
    128.0
    """
    accuracy = 0.0 if result["diverged"] or result["accuracy"] is None else result["accuracy"]
    return {"learned": max(0.0, (accuracy - result["chance"]) / (1 - result["chance"])) * result["side"] ** 2}


def judged(of: Found) -> Finding:
    known = {
        label: [result | learned(result | {"chance": TASK.chance}) for result in rows] for label, rows in of.items()
    }
    n = {label: x for label, rows in known.items() if (x := number(f"patterns: {label}", rows, "learned")) is not None}
    worst = min((n[label] for label in WITH), key=lambda x: x.value)
    best = max((n[NONE], n[ALONE]), key=lambda x: x.value)
    holds = best.value <= WIDTH < worst.value
    because = (
        f"In a stream of {WIDTH} features, of {TASK.patterns} patterns are learned: {n[NONE].value:.0f} without an "
        f"activation, {n[ALONE].value:.0f} with an activation only, and "
        + ", ".join(f"{n[label].value:.0f} with {label}" for label in WITH)
        + "."
        + (f" An activation alone, at width {wider().width}, learns {n[EQUAL].value:.0f}." if EQUAL in n else "")
    )
    gained = f"patterns with W_2, of {TASK.patterns}"
    numbers = [
        replace(n["W_2"], label=gained, against=f"an activation alone {n[ALONE].value:.0f}, in {WIDTH} features"),
        *n.values(),
        *counts(of),
    ]
    loss = [sure(f"loss: {label}", rows, "loss_nats") for label, rows in of.items() if number("", rows, "loss_nats")]
    notes = (
        f"One layer; answers to {TASK.side} × {TASK.side} pairs of tokens, drawn without a rule, all of them in every "
        f"step, of which there are at most {FIT.steps}. Embedding, mixing and logits learn too. Learned are the right "
        f"answers less those that the most frequent of {TASK.n_answers} answers gives by itself. It holds if units "
        f"with W_2 get beyond {WIDTH} and those without do not.",
        *((beyond(n),) if best.value > WIDTH else ()),
    )
    return Finding(verdict(holds), because, [*numbers, *loss], (bars("Patterns learned", known, "learned"),), notes)


def beyond(n: dict[str, Number]) -> str:
    said = f"Without W_2, more than {WIDTH} patterns are learned: 'only with W_2' does not hold as the text has it"
    if EQUAL not in n:
        return f"{said}."
    return f"{said}. At as many parameters, W_2 learns {n['W_2'].value / max(n[EQUAL].value, 1):.2g} times the number."


MLP = Labelled(
    "mlp",
    "How many patterns does each piece of the MLP let it learn?",
    "An activation alone writes each unit to one coordinate and learns no more patterns than there are features. With "
    "W_2 every unit writes a vector and the number of units is free: more patterns than features.",
    rung("w_1").formula,
    (
        *((label, training(name)) for label, name in (("W_2", "w_2"), (ALONE, "heads"), (NONE, "linear"))),
        *((label, training(WITH[label])) for label in tuple(WITH)[1:]),
        (EQUAL, training("heads", wider())),
    ),
    (NONE, ALONE, *WITH),
    judged,
)
