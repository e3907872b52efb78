"""Recurrent layers, the additive score, memory that grows."""

from __future__ import annotations

from handgrad.check import references_recurrent as references
from handgrad.check.case import C, Case, stream
from handgrad.core import Chain, Run
from handgrad.layers.recurrent import growing_memory, lstm, rnn
from handgrad.layers.scores import Additive

CASES = (
    Case("rnn", rnn(C, 13), stream, lambda p, a: references.rnn(p, "", a), "rnn", causal=True),
    Case("square rnn", rnn(C, C), stream, lambda p, a: references.rnn(p, "", a), causal=True),
    Case(
        "two stacked rnns",
        Chain({"one": rnn(C, 13), "two": rnn(13, 11)}),
        stream,
        lambda p, a: references.rnn(p, "two.", references.rnn(p, "one.", a)),
        causal=True,
    ),
    Case("lstm", lstm(C, 13), stream, lambda p, a: references.lstm(p, "", a), "lstm", causal=True),
    Case(
        "two stacked lstms",
        Chain({"one": lstm(C, 13), "two": lstm(13, 11)}),
        stream,
        lambda p, a: references.lstm(p, "two.", references.lstm(p, "one.", a)),
        causal=True,
    ),
    Case(
        "additive",
        Additive(C, 13, 3),
        stream,
        lambda p, a: references.additive_score(p, "", a, a),
        "additive",
    ),
    Case(
        "additive, explicit",
        Additive(C, 13, 3),
        stream,
        lambda p, a: references.additive_score(p, "", a, a),
        run=Run(implementation="explicit"),
    ),
    Case("growing memory", growing_memory(C, 13, 11), stream, references.growing_memory, causal=True),
)
