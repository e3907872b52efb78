"""Smoothed targets and the z-loss."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from handgrad.check import references_positions as references
from handgrad.check.case import Applied, B, Case, T, V
from handgrad.check.cases.losses import y_of
from handgrad.core import Run
from handgrad.core.params import Tree
from handgrad.rules.smoothed import SMOOTHED
from handgrad.rules.zloss import Z_LOSS

exists = torch.arange(V) != 5  # token 5, never a target of y_of, does not exist


@dataclass(frozen=True)
class WithoutToken(Applied):
    """The logits of a token that does not exist are put at -∞ first, as a masked vocabulary has them."""

    def forward(self, p: Tree, a: Any, run: Run) -> tuple[Tensor, Any]:
        return super().forward(p, a.where(exists, -inf), run)


CASES = (
    Case(
        "smoothed cross-entropy",
        Applied(SMOOTHED, (y_of, y_of >= 0, 8, 0.13)),
        ((B, T, V),),
        lambda p, a: references.smoothed(a, y_of, 0.13),
        "smoothed",
        samplewise=False,
    ),
    Case(
        "smoothed cross-entropy, a part of a step",
        Applied(SMOOTHED, (y_of, y_of >= 0, 23, 0.13)),
        ((B, T, V),),
        lambda p, a: references.smoothed(a, y_of, 0.13) * 8 / 23,
        samplewise=False,
    ),
    Case(
        "smoothed cross-entropy, a token that does not exist",
        WithoutToken(SMOOTHED, (y_of, y_of >= 0, 8, 0.13)),
        ((B, T, V),),
        lambda p, a: references.smoothed_where_tokens_exist(a, y_of, 0.13, exists),
        samplewise=False,
    ),
    Case(
        "z-loss",
        Applied(Z_LOSS, (y_of >= 0, 8, 0.3)),
        ((B, T, V),),
        lambda p, a: references.z_loss(a, y_of, 0.3, 8),
        "zloss",
        samplewise=False,
    ),
    Case(
        "z-loss, a part of a step",
        Applied(Z_LOSS, (y_of >= 0, 23, 0.3)),
        ((B, T, V),),
        lambda p, a: references.z_loss(a, y_of, 0.3, 23),
        samplewise=False,
    ),
)
