"""ALiBi: attention with linear biases. Each head's scores fall with distance, at a slope that is fixed for the head.

forward      biased = raw + slope_h · (β - α) for β ≤ α; keys after the query get nothing, the mask is what hides them
backward     Δ_raw = Δ_biased           the slopes are fixed, so Δ passes whole
from         Δ_biased·d(raw + bias) = Δ_biased·draw
shapes       raw, biased, Δ ~ (B, H, T, S)   slopes ~ (H,)   α ~ (T,)   β ~ (S,); the last key is the last query's token
assumes      nothing of what is biased: added to raw, the bias is divided by √d_ρ with it; the published models add it
             to scaled, which is the same equation one line later
cost         pointwise; saves nothing
source       docs/equations.md, row "ALiBi"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    """Nothing: backward is the identity."""


def slopes(heads: int) -> Tensor:
    """The published slopes ~ (heads,), float64: 2^(-8h/n), h = 1 … n, for n a power of two; any other number of heads
    takes those of the power below it, then every second one of the power above.

    >>> slopes(8)[:3], slopes(3)
    (tensor([0.5000, 0.2500, 0.1250], dtype=torch.float64), tensor([0.0625, 0.0039, 0.2500], dtype=torch.float64))
    """
    n = 1 << (heads.bit_length() - 1)  # the largest power of two that is not above heads
    own = [2.0 ** (-8 * h / n) for h in range(1, n + 1)]
    further = [2.0 ** (-8 * h / (2 * n)) for h in range(1, 2 * n + 1, 2)]
    return torch.tensor((own + further)[:heads], dtype=torch.float64)


def forward(raw: Tensor, slopes: Tensor, run: Run) -> tuple[Tensor, Saved]:
    T, S = raw.shape[-2:]
    alpha = torch.arange(S - T, S, device=raw.device)[:, None]
    beta = torch.arange(S, device=raw.device)
    wide = slopes.to(raw.device, torch.promote_types(raw.dtype, torch.float32))
    bias = wide[:, None, None] * (beta - alpha).clamp(max=0)  # far keys: too many bits for half precision
    return run.show("biased", (raw + bias).to(raw.dtype)), Saved()


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    return run.show("Delta_biased", Delta)  # Δ_raw = Δ_biased     of  raw + bias


ALIBI = Rule("alibi", Pair(forward, backward))
