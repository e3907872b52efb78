"""Losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from handgrad.check.case import Applied, B, C, Case, T, V
from handgrad.core import Slot
from handgrad.rules.crossentropy import CROSS_ENTROPY
from handgrad.rules.headloss import HEAD_LOSS


@dataclass(frozen=True)
class Judged:
    """A head with its loss, as a model ends: features in, one number out."""

    width: int
    n: float

    def slots(self):
        return {"w_emb": Slot((V, self.width), 0.5)}

    def forward(self, p, a, run):
        pair = HEAD_LOSS.choose(run)
        loss, saved = pair.forward(a, p["w_emb"], y_of, y_of >= 0, self.n, run)
        return loss, (pair, saved)

    def backward(self, p, Delta, saved, grads, run):
        pair, saved = saved
        return pair.backward(Delta, saved, grads, run)


def judged(p, a, n):
    logits = (a @ p["w_emb"].mT).flatten(0, 1)
    return F.cross_entropy(logits, y_of.flatten(), ignore_index=-1, reduction="sum") / n


y_of = torch.tensor([[4, 0, 10, -1, 2], [7, -1, 1, 3, 3]])


CASES = (
    Case(
        "cross-entropy",
        Applied(CROSS_ENTROPY, (y_of, y_of >= 0, 8)),
        ((B, T, V),),
        lambda p, a: F.cross_entropy(a.flatten(0, 1), y_of.flatten(), ignore_index=-1),
        "crossentropy",
        samplewise=False,
    ),
    Case(
        "cross-entropy, a part of a step",
        Applied(CROSS_ENTROPY, (y_of, y_of >= 0, 23)),
        ((B, T, V),),
        lambda p, a: F.cross_entropy(a.flatten(0, 1), y_of.flatten(), ignore_index=-1, reduction="sum") / 23,
        samplewise=False,
    ),
    Case("head and loss", Judged(C, 8), ((B, T, C),), lambda p, a: judged(p, a, 8), "headloss", samplewise=False),
    Case(
        "head and loss, a part of a step", Judged(C, 23), ((B, T, C),), lambda p, a: judged(p, a, 23), samplewise=False
    ),
)
