"""What positions are for, and what a pattern of blocks loses: the Transformer without either, on recall."""

from __future__ import annotations

from dataclasses import replace

from handgrad.lab.rung import network
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Finding, Number, Result, above, worst_of
from handgrad.lab.tasks import HELD_OUT, Recall, batch_of
from handgrad.lab.trained import pocket
from handgrad.lab.trained.compared import FOUR, TWO
from handgrad.lab.trained.labelled import MARGIN, Found, Labelled, bars, counts, percent, shown, sure, verdict
from handgrad.lab.trained.training import QUICK, Training, number
from handgrad.models.model import Model, watch

WITH, WITHOUT = "with positions", "without positions"
POCKET_WITH, POCKET_WITHOUT = "pocket, with positions", "pocket, without positions"


def recalling(name: str) -> Training:
    seconds = 3.0 if name == "transformer" else 8.0
    return Training(name, FOUR, replace(TWO, context=FOUR.length), QUICK, seconds)


def judged(of: Found) -> Finding:
    there, gone = sure(f"accuracy {WITH}", of[WITH]), sure(f"accuracy {WITHOUT}", of[WITHOUT])
    told = [x for label in (POCKET_WITH, POCKET_WITHOUT) if (x := number(label, of[label], "accuracy")) is not None]
    because = f"Recall of {FOUR.pairs} pairs: {percent(there)} with learned positions, {percent(gone)} without" + (
        "; amounts told and corrected: " + ", ".join(f"{x.label[8:]} {percent(x)}" for x in told) if told else ""
    )
    numbers = [
        replace(gone, against=f"with them {percent(there)}"),
        *shown(of, "accuracy: {}"),
        *shown(of, "loss: {}", "loss_nats", "nats"),
        *counts(of),
        *shown(of, "steps: {}", "steps", "steps"),
    ]
    notes = (
        f"Two layers; chance is {FOUR.chance:.1%}, guessing among the values told and not yet asked gives "
        f"{FOUR.unbound:.0%}. The causal mask stays, and by itself it tells later tokens from earlier ones in part: "
        "the first reads one token, the tenth ten.",
    )
    amounts = [sure("", of[label]) for label in (POCKET_WITH, POCKET_WITHOUT)]
    decided = worst_of([above(there, gone, MARGIN), above(*amounts, MARGIN)])
    return Finding(decided, f"{because}.", numbers, (bars("Recall", of),), notes)


POSITIONS = Labelled(
    "positions",
    "Does the mask alone tell tokens where they stand?",
    "To attention the past is a set. Without positions a network cannot tell which value stood beside which key, so it "
    "recalls less, of facts and of amounts.",
    rung("no_positions").formula,
    (
        (WITHOUT, recalling("no_positions")),
        (WITH, recalling("transformer")),
        (POCKET_WITHOUT, replace(pocket.training("transformer"), name="no_positions")),
        (POCKET_WITH, pocket.training("transformer")),
    ),
    (WITH, WITHOUT, POCKET_WITH, POCKET_WITHOUT),
    judged,
)

APART = Recall(4, 16, 16, 8)  # facts in tokens 0 to 7, questions in the last 8
ALL, NEAR, FITTING, SMALL = "all pairs", "window of 8", "first block of 8 and own", "first block of 4 and own"
SPARSE_RUNGS = {FITTING: ("block_sparse", 8), NEAR: ("window", 8), ALL: ("transformer", 8), SMALL: ("block_sparse", 4)}


def sparse(name: str, window: int) -> Training:
    sizes = replace(TWO, context=APART.length, window=window)
    return Training(name, APART, sizes, QUICK, 8.0, more=pairs_read, about="pairs read")


def pairs_read(model: Model, one: Training) -> Result:
    """Weights above 0 of one head on one sequence: counted before training, where none is so small as to vanish."""
    first = network(rung(one.name), one.task.vocabulary, one.sizes, one.fit.seed)
    ids, _ = batch_of(one.task, 1, one.fit.seed, HELD_OUT, 1)
    with watch(first, "blocks.stack.0.*.rho") as signals:
        first(ids)
    return {"pairs_read": int((next(iter(signals.values()))[0, 0] > 0).sum())}


def judged_sparse(of: Found) -> Finding:
    n = {label: sure(f"accuracy: {label}", of[label]) for label in SPARSE_RUNGS}
    read = {label: of[label][0]["pairs_read"] for label in SPARSE_RUNGS}
    said = ", ".join(f"{label} {percent(n[label])} from {read[label]} pairs" for label in SPARSE_RUNGS)
    as_all = verdict(n[FITTING].value >= n[ALL].value - MARGIN and read[FITTING] < read[ALL])
    numbers = [
        replace(
            n[SMALL],
            label="recall with half of the facts outside of the pattern",
            against=f"all inside {percent(n[FITTING])}",
        ),
        *n.values(),
        *(Number(f"pairs read in a head: {label}", count) for label, count in read.items()),
        *shown(of, "loss: {}", "loss_nats", "nats"),
        *counts(of),
    ]
    notes = (
        f"{APART.pairs} facts in the first 8 tokens, {APART.distance} tokens that mean nothing, then the questions. "
        f"Chance is {APART.chance:.1%}, guessing among the values told and not yet asked gives {APART.unbound:.0%}.",
        "Pairs that are left out are masked here, not skipped: see the step on cost for time.",
    )
    decided = worst_of([as_all, *(above(n[FITTING], n[other], MARGIN) for other in (NEAR, SMALL))])
    return Finding(decided, f"Recall: {said}.", numbers, (bars("Recall by what is read", of),), notes)


SPARSE = Labelled(
    "sparse",
    "Can whole blocks of pairs be left out?",
    "A pattern of blocks that holds the facts recalls as much as all pairs do, from fewer, and more than a window of "
    "as many tokens. A pattern that misses some of them loses those: the rule must suit the text.",
    rung("block_sparse").formula,
    tuple((label, sparse(*one)) for label, one in SPARSE_RUNGS.items()),
    tuple(SPARSE_RUNGS),
    judged_sparse,
)
