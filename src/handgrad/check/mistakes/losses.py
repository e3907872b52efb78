"""Planted: losses."""

from handgrad.check.plant import Mistake
from handgrad.rules import crossentropy

MISTAKES = (
    Mistake(
        "a mean over all rows",
        crossentropy.backward,
        "Delta / max(n, 1)",
        "Delta / len(y)",
        "cross-entropy",
        "Delta below",
    ),
    Mistake(
        "targets not subtracted",
        crossentropy.backward,
        "torch.full_like(lse, -1.0)",
        "torch.zeros_like(lse)",
        "cross-entropy",
        "Delta below",
    ),
    Mistake(
        "rows without a target", crossentropy.backward, ".masked_fill_(~valid, 0.0)", "", "cross-entropy", "Delta below"
    ),
    Mistake(
        "this batch's n",
        crossentropy.forward,
        "max(n, 1)",
        "max(int(valid.sum()), 1)",
        "cross-entropy, a part of a step",
        "forward",
    ),
    Mistake(
        "Delta from above ignored",
        crossentropy.backward,
        "Delta / max(n, 1)",
        "1 / max(n, 1)",
        "cross-entropy",
        "Delta below",
    ),
)
