"""Losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from handgrad.check.case import Applied, B, Case, T, V
from handgrad.rules.crossentropy import CROSS_ENTROPY

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
)
