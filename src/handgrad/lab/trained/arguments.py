"""Why two arguments: weights from the source alone make neighbours alike, weights for oneself alone read nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from handgrad.core.errors import ShapeError
from handgrad.lab.rung import Sizes, network
from handgrad.lab.rungs import rung
from handgrad.lab.steps import FAILS, HOLDS, OPEN, Drawing, Finding, Number, Result, Trial, above, worst_of
from handgrad.lab.tasks import HELD_OUT, Recall, batch_of
from handgrad.lab.trained.labelled import paired
from handgrad.lab.trained.training import QUICK, WIDTH, Training, found, number, trials
from handgrad.models.model import Model, watch

TASK, CLOSE = Recall(4, 16, 16), 0.02
NAMES = ("source_only", "self_only", "fixed", "tanh")
LATER = ("source_softmax", "softmax")  # one argument and both, under the normalisation that comes later
SECONDS = {"source_only": 8.0, "self_only": 8.0, "fixed": 5.0, "tanh": 10.0, "source_softmax": 6.0, "softmax": 3.0}


def training(name: str) -> Training:
    sizes = Sizes(width=WIDTH, context=TASK.length, functions=4)
    return Training(name, TASK, sizes, QUICK, SECONDS[name], more=looked_at, about="likeness")


def looked_at(model: Model, one: Training) -> Result:
    """Likeness of neighbours before and after training, influence of other tokens, and what a longer text gives."""
    first = network(rung(one.name), TASK.vocabulary, one.sizes, one.fit.seed)
    return {
        "likeness_before": likeness(first, one.fit.seed),
        "likeness_after": likeness(model, one.fit.seed),
        "influence": influence(model, one.fit.seed),
        "longer": longer_text(model),
    }


def likeness(model: Model, seed: int) -> float:
    """Mean cosine between what neighbouring units of the last layer add up, before the non-linearity and the skip."""
    ids, _ = batch_of(TASK, 64, seed, HELD_OUT, 1)
    with watch(model, "blocks.1.mixing") as signals:
        model(ids)
    o: Any = signals["blocks.1.mixing"]
    return float(torch.cosine_similarity(o[:, 1:-1], o[:, 2:], dim=-1).mean())


def influence(model: Model, seed: int) -> float:
    """How far the last token's logits move, against their size, when all other tokens are exchanged."""
    ids, _ = batch_of(TASK, 64, seed, HELD_OUT, 1)
    other = ids.clone()
    other[:, :-1] = (ids[:, :-1] + 1) % TASK.vocabulary
    y, moved = model(ids)[:, -1], model(other)[:, -1]
    return float((y - moved).norm() / y.norm())


def longer_text(model: Model) -> str:
    """What one more token than it was trained for gives; "" where it is read."""
    try:
        model(torch.zeros(1, TASK.length + 1, dtype=torch.int64))
    except ShapeError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Arguments:
    name: str = "arguments"
    question: str = "Why two arguments?"
    claim: str = (
        "Fixed weights end at the trained length. Weights that are functions of the source alone are the same for all "
        "who read it, so neighbours compute much the same. Weights for oneself alone differ, and read nobody else. "
        "Functions of source and end unit do neither."
    )
    formula: str = r"W_{\alpha\beta} = \sum_j f_j(x_\alpha, x_\beta) V_j"
    rungs: Sequence[str] = ("fixed", "source_only", "self_only", "tanh")

    def trials(self) -> Sequence[Trial]:
        return trials([one for name in (*NAMES, *LATER) for one in training(name).seeds()])

    def judge(self, results: Mapping[str, Result]) -> Finding:
        of = {name: found(results, training(name)) for name in (*NAMES, *LATER)}
        if not all(of[name] for name in NAMES):
            return Finding(OPEN, f"Not measured: {', '.join(name for name in NAMES if not of[name])}.")
        measures = ("likeness_before", "likeness_after", "influence", "accuracy", "loss_nats")
        n = {
            (m, name): number(f"{m.replace('_', ' ')}, {rung(name).title}", of[name], m)
            for m in measures
            for name in (*NAMES, *LATER)
        }
        alike, apart = n["likeness_after", "source_only"], n["likeness_after", "tanh"]
        worse, better = n["loss_nats", "source_only"], n["loss_nats", "tanh"]
        if alike is None or apart is None or worse is None or better is None:
            return Finding(OPEN, "A network diverged before it was measured.")
        alone = max(result["influence"] for result in of["self_only"])
        ends = all("learned for" in result["longer"] for result in of["fixed"])
        lost = paired("loss with the source alone less that with both arguments", of["source_only"], of["tanh"])
        certain = above(alike, apart, CLOSE), above(lost, Number("", 0.0), 0.0) if lost else OPEN
        decided = worst_of([*certain, HOLDS if alone == 0.0 and ends else FAILS])
        because = (
            f"After training, neighbouring units agree by a cosine of {alike.value:.2f} with weights from the source "
            f"alone and of {apart.value:.2f} with both arguments; the loss is {worse.value:.2f} against "
            f"{better.value:.2f} nats{later_on(n)}. "
            f"With weights for oneself alone, other tokens move the output by {alone:g}. "
            f"Fixed weights {'end' if ends else 'do not end'} at the trained {TASK.length} tokens."
        )
        bars = {
            when: {
                "x": [rung(name).title for name in NAMES],
                "y": [v.value if (v := n[m, name]) else None for name in NAMES],
            }
            for when, m in (("before training", "likeness_before"), ("after training", "likeness_after"))
        }
        drawing = Drawing("How alike neighbouring units are", "weights", "mean cosine", bars, "bars")
        one, both = (n["accuracy", name] for name in LATER)
        numbers = [replace(lost, unit="nats")] if lost is not None else []
        if one is not None and both is not None:
            against = f"the source alone {one.value:.0%}"
            numbers.append(replace(both, label="recall with both arguments, under the softmax", against=against))
        numbers += [x for x in n.values() if x is not None]
        return Finding(decided, because, numbers, (drawing,), notes())


def later_on(n: Mapping[tuple[str, str], Number | None]) -> str:
    """What both forms recall once weights are normalised, which this point of the ladder is before."""
    one, both = (n["accuracy", name] for name in LATER)
    if one is None or both is None:
        return ""
    return (
        f"; recall is {n['accuracy', 'source_only'].value:.0%} against {n['accuracy', 'tanh'].value:.0%}, and under "  # type: ignore[union-attr]
        f"the softmax of a later step {one.value:.0%} with the source alone against {both.value:.0%} with both"
    )


def notes() -> tuple[str, ...]:
    return (
        f"Recall of {TASK.pairs} pairs in two layers of width {WIDTH}; chance is {TASK.chance:.1%}, and guessing among "
        f"the values told and not yet asked gives {TASK.unbound:.0%}.",
        "Scores are not normalised at this point of the ladder, and none of its four rungs recalls more than guessing "
        "does: what the second argument is worth shows in the loss, and in recall under the softmax.",
    )


def quick(steps: int) -> list[Training]:
    """The first seed of all, in so many steps: for a test."""
    return [replace(training(name), fit=replace(QUICK, steps=steps)) for name in NAMES]
