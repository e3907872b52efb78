"""What normalisation does to training: recall and loss with none, with the sum, and with softmax at several τ."""

from __future__ import annotations

from dataclasses import replace

import torch

from handgrad.lab.rung import network
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Finding, Result, above, worst_of
from handgrad.lab.tasks import HELD_OUT, batch_of
from handgrad.lab.trained.compared import FOUR, TWO
from handgrad.lab.trained.labelled import MARGIN, Found, Labelled, bars, counts, percent, shown, sure, verdict
from handgrad.lab.trained.training import QUICK, Training, number
from handgrad.models.model import Model, watch

NONE, SUM, SOFTMAX = "no normalisation", "divided by the sum", "softmax, τ = 1"
TAUS = (1.0, 0.1, 10.0)


def training(name: str, tau: float = 1.0) -> Training:
    sizes = replace(TWO, context=FOUR.length, tau=tau)
    return Training(name, FOUR, sizes, QUICK, 3.5, more=looked_at, about="sharpness")


def looked_at(model: Model, one: Training) -> Result:
    first = network(rung(one.name), one.task.vocabulary, one.sizes, one.fit.seed)
    pairs = (("before", first), ("after", model))
    return {f"{what}_{when}": x for when, of in pairs for what, x in sharpness(of, one).items()}


def sharpness(model: Model, one: Training) -> dict[str, float]:
    """Of the last layer's weights where an answer is asked for: their entropy in nats, and the largest.

    Weights of both signs count by their size; shares of a row add up to 1.
    """
    ids, targets = batch_of(one.task, 64, one.fit.seed, HELD_OUT, 1)
    with watch(model, "blocks.1.mixing.rho") as signals:
        model(ids)
    rows = signals["blocks.1.mixing.rho"].abs().movedim(1, 2)[targets >= 0]  # (asked, F, T)
    shares = rows / rows.sum(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    entropy = -torch.special.xlogy(shares, shares).sum(-1)
    return {"entropy": float(entropy.mean()), "top": float(shares.amax(-1).mean())}


def judged(of: Found) -> Finding:
    soft, none, divided = (sure(f"accuracy: {label}", of[label]) for label in (SOFTMAX, NONE, SUM))
    sharp, blurred = (number("", of[label], "entropy_after") for label in (SOFTMAX, NONE))
    sparser = sharp is not None and blurred is not None and sharp.value < blurred.value
    others = {tau: number("", of[f"softmax, τ = {tau:g}"], "accuracy") for tau in TAUS[1:]}
    best = max(none, divided, key=lambda x: x.value)
    top = number("", of[SOFTMAX], "top_after")
    said = "." if sharp is None or blurred is None else f"; entropy {sharp.value:.2f} against {blurred.value:.2f} nats."
    because = (
        f"Recall of {FOUR.pairs} pairs: {percent(soft)} with softmax, {percent(none)} without normalisation, "
        f"{percent(divided)} divided by the sum."
        + "".join(f" At τ = {tau:g} it is {percent(x)}." for tau, x in others.items() if x is not None)
        + ("" if top is None else f" After training the softmax gives its largest weight {top.value:.0%} of a row")
        + said
    )
    numbers = [
        replace(soft, label="recall under softmax", against=f"without it at best {percent(best)}"),
        *shown(of, "accuracy: {}"),
        *shown(of, "loss: {}", "loss_nats", "nats"),
        *shown(of, "entropy after training: {}", "entropy_after", "nats"),
        *shown(of, "entropy before: {}", "entropy_before", "nats"),
        *shown(of, "largest weight after training: {}", "top_after"),
        *shown(of, "largest weight before: {}", "top_before"),
        *counts(of),
    ]
    gone = sum(bool(result["diverged"]) for result in of[SUM])
    drawings = (
        bars("Recall by normalisation", of),
        bars("Entropy of the weights after training", of, "entropy_after", "nats"),
        bars("Largest weight after training", of, "top_after"),
    )
    notes = (
        f"Two layers of width {TWO.width} with {TWO.functions} functions, at most {QUICK.steps} steps; chance is "
        f"{FOUR.chance:.1%}, guessing among the values told and not yet asked gives {FOUR.unbound:.0%}. Entropy and "
        "largest weight are those of the last layer where an answer is asked for.",
        *((f"Divided by the sum, {gone} of {len(of[SUM])} networks stopped being finite: recall 0.",) if gone else ()),
    )
    return Finding(worst_of([above(soft, best, MARGIN), verdict(sparser)]), because, numbers, drawings, notes)


NORMALISE = Labelled(
    "softmax",
    "What does normalisation do for training?",
    "A softmax recalls more than unnormalised weights and than weights divided by their sum, and its rows are sparser.",
    rung("softmax").formula,
    (
        (SOFTMAX, training("softmax")),
        (NONE, training("low_rank")),
        (SUM, training("divide")),
        *((f"softmax, τ = {tau:g}", training("softmax", tau)) for tau in TAUS[1:]),
    ),
    (SOFTMAX, NONE, SUM),
    judged,
)
