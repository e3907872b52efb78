"""The whole ladder on one task at one budget of steps, and what the Transformer pays: the page's summary."""

from __future__ import annotations

from dataclasses import replace

from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import in_order, rung
from handgrad.lab.steps import Drawing, Finding, Number, Result, above, worst_of
from handgrad.lab.trained import arguments, memory
from handgrad.lab.trained.compared import FOUR, PRODUCT, TWO, WINDOW
from handgrad.lab.trained.labelled import MARGIN, Found, Labelled, bars, percent, sure, verdict
from handgrad.lab.trained.training import QUICK, Training, number

RECURRENT, WEIGHED = ("rnn", "lstm", "memory"), ("fixed", "source_only", "self_only")  # trained by other steps already
PRODUCTS = ("softmax", "low_rank", "no_interaction", "tanh", "tanh_softmax", "source_softmax", "dot")
NEAR = ("window", "block_sparse")
OWN = {"transformer": 3.0, "heads": 3.0, "normed": 3.0, "w_2": 4.0, "w_1": 3.0, "no_positions": 8.0}
OWN |= {"linear": 3.0, "bilinear": 3.0, "divide": 3.0}
SLOW = {"v_sum": 20.0, "diagonal": 30.0, "one_hot": 35.0}
FIRST, BEFORE = ("transformer", *RECURRENT), ("rnn", "lstm")
TOKENS = 4096


def training(name: str) -> Training:
    """What another step trains on the same facts is taken from there, so it is trained once."""
    if name in RECURRENT:
        return memory.base(name, FOUR.pairs)
    if name in WEIGHED:
        return arguments.training(name)
    if name in PRODUCTS:
        return PRODUCT.training(name)
    if name in NEAR:
        return WINDOW.training(name)
    return Training(name, FOUR, replace(TWO, context=FOUR.length), QUICK, (OWN | SLOW)[name])


NAMES = tuple(dict.fromkeys((*FIRST, *OWN, *PRODUCTS, *WEIGHED, *NEAR, *SLOW)))


def in_ladder(of: Found) -> dict[str, list[Result]]:
    """By title, in the ladder's order, those that were measured."""
    return {one.title: of[one.name] for one in in_order(of) if of[one.name]}


def judged(of: Found) -> Finding:
    rows, whole = in_ladder(of), sure("accuracy: The Transformer", of["transformer"])
    n = {title: sure(f"accuracy: {title}", results) for title, results in rows.items()}
    first, gated = (n[rung(name).title] for name in BEFORE)
    best_title, best = max(n.items(), key=lambda item: item[1].value)
    parts = [above(whole, x, MARGIN) for x in (first, gated)]
    decided = worst_of([*parts, verdict(whole.value >= best.value - MARGIN)])
    because = (
        f"Recall of {FOUR.pairs} pairs after at most {QUICK.steps} steps: two-layer RNN {percent(first)}, LSTM "
        f"{percent(gated)}, Transformer {percent(whole)}; the best of {len(n)} rungs is {best_title} with "
        f"{best.value:.0%}."
    )
    timed = {title: sure(f"seconds to train: {title}", results, "seconds") for title, results in rows.items()}
    numbers = [
        replace(whole, label="recall of the Transformer", against=f"two-layer RNN {percent(first)}"),
        *n.values(),
        *(Number(f"parameters: {title}", results[0]["stack_parameters"]) for title, results in rows.items()),
        *(replace(x, unit="s") for x in timed.values()),
        *(replace(sure(f"steps: {t}", results, "steps"), unit="steps") for t, results in rows.items()),
    ]
    missing = [rung(name).title for name in NAMES if not of[name]]
    notes = (
        "All read the same facts and are trained for the same number of steps, fewer where one recalls all of them. "
        f"Layers of width {TWO.width}; {TWO.functions} functions or heads, but 4 in fixed, source-only and self-only "
        "weights and 1 in window and blocks; first embeddings of spread 1 in all of these and in the recurrent ones, "
        f"of {TWO.spread:g} elsewhere. The recurrent three read one mark more for each question, as in the step "
        "on memory. Parameters are those of the layers.",
        "From values of low rank on, layers are the library's own: scores are divided by √r, linear layers have "
        "offsets, the activation is GELU once there is W_2, and the Transformers end in a norm.",
        f"Chance is {FOUR.chance:.1%}; guessing among the values told and not yet asked gives {FOUR.unbound:.0%}. A "
        "function for every entry of the matrix is left to the step on values: at this size it trains for minutes.",
        *((f"Not measured: {', '.join(missing)}.",) if missing else ()),
    )
    drawings = (
        bars("Recall by rung", rows),
        bars("Seconds to train", rows, "seconds", "seconds"),
        bars("Parameters of the layers", rows, "stack_parameters", "parameters"),
    )
    return Finding(decided, because, numbers, drawings, notes)


WHOLE = Labelled(
    "transformer",
    "Does all of it together do what the RNN could not?",
    "On one task and one budget the Transformer recalls more than the recurrent networks it began with, and no rung on "
    "the way recalls more than it does.",
    rung("transformer").formula,
    tuple((name, training(name)) for name in NAMES),
    (*BEFORE, "transformer"),
    judged,
    later=tuple(SLOW),
)


def kept(name: str, rows: list[Result], tokens: int) -> int:
    return rung(name).state_bytes(Sizes(**rows[0]["sizes"]), tokens)


def judged_price(of: Found) -> Finding:
    n = {one.name: sure(f"accuracy: {one.title}", of[one.name]) for one in in_order(of) if of[one.name]}
    there = {name: kept(name, of[name], TOKENS) for name in n}
    ratio = there["transformer"] / there["lstm"]
    pairs = TOKENS * (TOKENS + 1) // 2
    because = (
        f"After {TOKENS} tokens the Transformer keeps {there['transformer']:,} bytes and the LSTM {there['lstm']:,}; a "
        f"layer has compared {pairs:,} pairs of tokens, where the LSTM took {TOKENS} steps. For that it recalls "
        f"{percent(n['transformer'])} instead of {percent(n['lstm'])} of {FOUR.pairs} pairs."
        + (
            f" Growing memory keeps {there['memory']:,} bytes and recalls {percent(n['memory'])}."
            if "memory" in n
            else ""
        )
    )
    per_step = {name: number("", [seconds(x) for x in of[name]], "milliseconds") for name in n}
    numbers = [
        Number(f"bytes kept after {TOKENS} tokens", ratio, "times those of the LSTM"),
        *(Number(f"bytes kept after {TOKENS} tokens: {rung(name).title}", there[name], "bytes") for name in there),
        Number(f"pairs compared in a layer, {TOKENS} tokens", pairs),
        *n.values(),
        *(
            replace(x, label=f"a step of {QUICK.batch} sequences: {rung(name).title}", unit="ms")
            for name, x in per_step.items()
            if x is not None
        ),
    ]
    lengths = [16, 64, 256, 1024, 4096]
    lines = {
        rung(name).title: {"x": lengths, "y": [kept(name, of[name], tokens) for tokens in lengths]} for name in there
    }
    notes = (
        f"Bytes of float32 at width {TWO.width} in two layers, to go on from there. Recall is that of the ladder; "
        "time as the text grows is measured in the step on cost.",
    )
    drawing = Drawing("What is kept", "tokens", "bytes", lines, log="xy")
    bought = above(n["transformer"], n["lstm"], MARGIN)
    return Finding(worst_of([bought, verdict(ratio > 1)]), because, numbers, (drawing,), notes)


def seconds(result: Result) -> Result:
    return result | {"milliseconds": 1000 * result["seconds"] / result["steps"]}


PRICE = Labelled(
    "price",
    "What is the price, and what does it buy?",
    "Work on every pair of tokens and something kept of every token is what is paid; recall that a state of fixed size "
    "does not have is what it buys.",
    r"\text{kept } 2 T L H r \qquad \text{pairs } T(T+1)/2",
    tuple((name, training(name)) for name in ("transformer", "lstm", "rnn", "memory")),
    ("transformer", "lstm"),
    judged_price,
)
