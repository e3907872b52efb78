"""z-loss: a pull of every row's normaliser log Σ exp(logits) towards 0, added to the cross-entropy.

forward      L = (z/n) Σ_valid lse²,   lse = log Σ exp(logits)
backward     Δ_logits = Δ' (2z/n) lse · P on valid rows, exactly 0 elsewhere
from         d(lse²) = 2 lse dlse,   dlse = P·dlogits
shapes       logits ~ (..., V)   valid ~ (...) bool   L, Δ' ~ ()   n a count, z a small factor
assumes      n as in `crossentropy`. The loss of a step is the sum of both, and so is its Δ_logits. A logit of -∞ has
             P = 0, so its Δ is 0
cost         pointwise over N·V; saves the logits and one number a row
source       docs/equations.md, row "z-loss"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run, widened


class Saved(NamedTuple):
    logits: Tensor  # (N, V)  P is formed again from these and lse
    lse: Tensor  # (N, 1)  log Σ exp(logits)
    valid: Tensor  # (N, 1)  bool
    n: float  # targets that count
    z: float  # weight of this loss
    shape: torch.Size  # of the logits as they came


def forward(logits: Tensor, valid: Tensor, n: float, z: float, run: Run) -> tuple[Tensor, Saved]:
    shape, valid = logits.shape, valid.reshape(-1, 1)
    rows = logits.reshape(-1, shape[-1])
    lse = widened(rows).logsumexp(-1, keepdim=True)
    return z * lse.square().where(valid, 0).sum() / max(n, 1), Saved(rows, lse, valid, n, z, shape)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    logits, lse, valid, n, z, shape = saved
    Delta_lse = 2 * z * lse * (Delta / max(n, 1))  #                    of  z * lse.square() / n
    D = (widened(logits) - lse).exp_().mul_(Delta_lse)  # P ∘ Δ_lse     of  logsumexp
    return D.masked_fill_(~valid, 0.0).to(logits.dtype).view(shape)  #  of  where(valid, ·, 0)


Z_LOSS = Rule("zloss", Pair(forward, backward))
