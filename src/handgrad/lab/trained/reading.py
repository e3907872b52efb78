"""Loss on text: against the number of heads at equal parameters, and against the rank of scores as it falls."""

from __future__ import annotations

from dataclasses import replace

from handgrad.lab.fit import Fit
from handgrad.lab.rung import BYTES, Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import FAILS, OPEN, UNSURE, Drawing, Finding, Number
from handgrad.lab.text import Text
from handgrad.lab.trained.compared import PRODUCT
from handgrad.lab.trained.labelled import Found, Labelled, nats, paired, percent, shown, sure, verdict
from handgrad.lab.trained.training import WIDTH, Training, line, number

TEXT = Text(48)
FIT = Fit(steps=300, batch=32, sequences=128)
READER = Sizes(width=WIDTH, context=TEXT.length, functions=4)
HEADS, COMPARED = (4, 1, 16, 8, 2), 4
RANKS, QUARTER, LITTLE = (WIDTH, 8, 1, 2, 4, 16), 8, 0.02
RECALLED = (16, 8, 1, 2, 4)  # the first is PRODUCT's own


def headed(heads: int) -> Training:
    """d_h = width/heads: the same parameters, whatever the number of heads."""
    return Training("transformer", TEXT, replace(READER, functions=heads), FIT, 3.0 + heads / 3)


def ranked(rank: int) -> Training:
    return Training("softmax", TEXT, replace(READER, rank=rank), FIT, 5.0 if rank == WIDTH else 3.5)


def recalled(rank: int) -> Training:
    one = PRODUCT.training("softmax")
    return one if rank == RECALLED[0] else replace(one, sizes=replace(one.sizes, rank=rank), seconds=3.0)


def judged_heads(of: Found) -> Finding:
    sizes = {rows[0]["stack_parameters"] for rows in of.values() if rows}
    many, one = (sure("", of[str(h)], "loss_nats") for h in (COMPARED, 1))
    less = paired(f"loss of {COMPARED} heads less that of one, equal parameters", of[str(COMPARED)], of["1"])
    if less is None or less.high is None or len(sizes) != 1:
        return Finding(OPEN, f"No two seeds of {COMPARED} heads and of one can be compared at one size.")
    values = {int(h): number(f"{h} heads", rows, "loss_nats") for h, rows in of.items()}
    because = (
        f"At {sizes.pop():,} parameters in two layers, {COMPARED} heads come to {nats(many)} a character and one head "
        f"to {nats(one)}; at equal data the difference is {nats(less)}."
    )
    numbers = [
        replace(less, unit="nats"),
        *shown(of, "loss, {} heads", "loss_nats", "nats"),
        Number("parameters of the layers, all of them", of["1"][0]["stack_parameters"]),
    ]
    drawing = Drawing(
        "Loss on text by the number of heads, at equal parameters",
        "heads",
        "nats a character",
        {"held-out text": line([(h, values[h]) for h in sorted(values)])},
        log="x",
    )
    notes = (
        f"The Transformer of width {WIDTH} with heads of {WIDTH}/H features, {FIT.steps} steps of {FIT.batch} windows "
        f"of {TEXT.length} characters. It holds if the interval of the difference lies below 0; {COMPARED} heads were "
        "chosen beforehand.",
    )
    return Finding(verdict(less.high < 0), because, numbers, (drawing,), notes)


OUTPUT = Labelled(
    "output",
    "Are several heads better than one of the same size?",
    "Values of low rank make room for several heads in the parameters of one; several heads choose several tokens at "
    "once, so the loss is lower.",
    rung("heads").formula,
    tuple((str(h), headed(h)) for h in HEADS),
    (str(COMPARED), "1"),
    judged_heads,
    "loss_nats",
)


def key_bytes(rank: int) -> int:
    """Bytes of float32 that all layers keep of one token for its scores."""
    return BYTES * READER.layers * READER.functions * rank


def judged_ranks(of: Found) -> Finding:
    full = of[f"text, r = {WIDTH}"]
    more = {r: paired(f"loss at r = {r} less that of r = {WIDTH}", of[f"text, r = {r}"], full) for r in RANKS}
    known = {r: x for r, x in more.items() if x is not None}
    if any(r not in known for r in (QUARTER, 1)):
        return Finding(OPEN, f"No seed has both r = {WIDTH} and r = {QUARTER} or 1.")
    quarter, least = known[QUARTER], known[1]
    enough = [r for r, x in known.items() if all(known[s].value <= LITTLE for s in known if s >= r)]
    smallest = min(enough, default=WIDTH)
    loss = {r: number(f"r = {r}", of[f"text, r = {r}"], "loss_nats") for r in sorted(RANKS)}
    recall = {r: number(f"recall, r = {r}", of[f"recall, r = {r}"], "accuracy") for r in sorted(RECALLED)}
    said = "; ".join(f"{percent(x)} at r = {r}" for r, x in recall.items() if x is not None)
    because = (
        f"Rank {QUARTER} of {WIDTH} changes the loss on text by {nats(quarter)} and keeps {key_bytes(QUARTER)} instead "
        f"of {key_bytes(WIDTH)} bytes of a token for its scores; rank 1 by {nats(least)}, with {key_bytes(1)} bytes."
        + (f" Recall of 4 pairs: {said}." if said else "")
    )
    numbers = [
        Number(f"smallest rank, of {WIDTH}, from which on the loss rises by at most {LITTLE} nats", smallest),
        *(replace(known[r], unit="nats") for r in sorted(known) if r != WIDTH),
        *(Number(f"bytes kept of a token for its scores, r = {r}", key_bytes(r), "bytes") for r in sorted(RANKS)),
        *(x for x in recall.values() if x is not None),
        *(Number(f"parameters, r = {r}", rows[0]["stack_parameters"]) for r in RANKS if (rows := of[f"text, r = {r}"])),
    ]
    bytes_ = {"for scores": {"x": sorted(RANKS), "y": [key_bytes(r) for r in sorted(RANKS)]}}
    drawings = (
        Drawing("Loss on text by rank", "rank r", "nats", {"held-out text": line(list(loss.items()))}, log="x"),
        Drawing("What is kept of a token for its scores", "rank r", "bytes", bytes_, log="xy"),
        Drawing("Recall by rank", "rank r", "accuracy", {"4 pairs": line(list(recall.items()))}, log="x"),
    )
    notes = (
        f"Text: {READER.functions} functions of width {WIDTH}, whole matrices V, {FIT.steps} steps of {FIT.batch} "
        f"windows of {TEXT.length} characters; r = {WIDTH} is a matrix A of full rank. It holds if rank {QUARTER} "
        f"costs at most {LITTLE} nats in the mean. What is kept besides, for the values, does not change with r.",
        *(("Rank 1 costs as little: on this text the rank does not matter.",) if least.value <= LITTLE else ()),
    )
    unsure = quarter.value <= LITTLE < max(quarter.each, default=quarter.value)
    decided = UNSURE if unsure else verdict(quarter.value <= LITTLE)
    return Finding(decided if smallest < WIDTH else FAILS, because, numbers, drawings, notes)


RANK = Labelled(
    "rank",
    "How small may r become before the loss rises?",
    f"The matrix between two tokens can do with a rank far below the width: at r = d/4 the loss on text is at most "
    f"{LITTLE} nats higher, and a quarter of the bytes is kept.",
    rung("low_rank").formula,
    (
        *((f"text, r = {r}", ranked(r)) for r in RANKS),
        *((f"recall, r = {r}", recalled(r)) for r in RECALLED),
    ),
    (f"text, r = {WIDTH}", f"text, r = {QUARTER}", "text, r = 1"),
    judged_ranks,
    "loss_nats",
)
