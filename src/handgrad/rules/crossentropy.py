"""Cross-entropy: how surprised the model is by each target, in nats, averaged over the targets that count.

forward      P = softmax(logits)         L = -(1/n) Σ_valid log P[y]
backward     Δ_logits = Δ' (P - OHE(y))/n on valid rows, exactly 0 elsewhere
from         d(-log P[y]) = d(logsumexp(logits) - logits[y]) = (P - OHE(y))·dlogits
shapes       logits ~ (..., V)   y ~ (...) ids   valid ~ (...) bool   L, Δ' ~ ()   n a count
assumes      n is the number of valid targets of the whole step, which may be more than this batch holds: then the
             losses and gradients of several micro-batches add up to those of the one large batch. n = 0 gives
             L = 0 and Δ = 0. The maximum is taken out before exp, so logits of 1000 are as good as any
cost         pointwise over N·V; saves the logits and one number a row
source       Boué, arXiv 2512.23329, section 1; docs/equations.md, rows "shift" and "cross-entropy"
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
    y: Tensor  # (N, 1)  targets; 0 where not valid
    valid: Tensor  # (N, 1)  bool
    n: float  # targets that count
    shape: torch.Size  # of the logits as they came


def forward(logits: Tensor, y: Tensor, valid: Tensor, n: float, run: Run) -> tuple[Tensor, Saved]:
    shape, valid = logits.shape, valid.reshape(-1, 1)
    y = y.reshape(-1, 1).where(valid, 0)
    rows = logits.reshape(-1, shape[-1])
    wide = widened(rows)
    lse = wide.logsumexp(-1, keepdim=True)
    surprise = (lse - wide.gather(-1, y)).where(valid, 0)  # -log P[y]
    return surprise.sum() / max(n, 1), Saved(rows, lse, y, valid, n, shape)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    logits, lse, y, valid, n, shape = saved
    P = (widened(logits) - lse).exp_()
    P.scatter_add_(-1, y, torch.full_like(lse, -1.0))  # P - OHE(y)     of  lse - logits[y]
    P.mul_(Delta / max(n, 1))  #                                        of  Σ / n
    return P.masked_fill_(~valid, 0.0).to(logits.dtype).view(shape)  #  of  where(valid, ·, 0)


CROSS_ENTROPY = Rule("crossentropy", Pair(forward, backward))
