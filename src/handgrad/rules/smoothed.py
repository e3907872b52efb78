"""Cross-entropy with smoothed targets: a part s of the probability asked for is spread evenly over the vocabulary.

forward      target = (1-s) OHE(y) + s/V        L = -(1/n) Σ_valid target · log P
                                                  = (1/n) Σ_valid (lse - (1-s) logits[y] - s mean(logits))
backward     Δ_logits = Δ' (P - (1-s) OHE(y) - s/V)/n on valid rows, exactly 0 elsewhere
from         dlse = P·dlogits,   dlogits[y] = OHE(y)·dlogits,   dmean(logits) = (1/V)·dlogits
shapes       logits ~ (..., V)   y ~ (...) ids   valid ~ (...) bool   L, Δ' ~ ()   n a count, 0 ≤ s < 1
assumes      n as in `crossentropy`. A logit of -∞ is a token that does not exist in its row: it is not counted in V,
             adds 0 to L (where 0·∞ would be NaN), and its Δ is 0. s = 0 is cross-entropy
cost         pointwise over N·V; saves the logits and two numbers a row
source       docs/equations.md, row "smoothing"
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run, widened


class Saved(NamedTuple):
    logits: Tensor  # (N, V)  P, and which tokens exist, are formed again from these
    lse: Tensor  # (N, 1)  log Σ exp(logits)
    share: Tensor  # (N, 1)  s/V
    y: Tensor  # (N, 1)  targets; 0 where not valid
    valid: Tensor  # (N, 1)  bool
    n: float  # targets that count
    s: float  # the part that is spread
    shape: torch.Size  # of the logits as they came


def forward(logits: Tensor, y: Tensor, valid: Tensor, n: float, s: float, run: Run) -> tuple[Tensor, Saved]:
    shape, valid = logits.shape, valid.reshape(-1, 1)
    y = y.reshape(-1, 1).where(valid, 0)
    rows = logits.reshape(-1, shape[-1])
    wide = widened(rows)
    exists = wide != -inf
    share = s / exists.sum(-1, keepdim=True).to(wide.dtype)  # s/V
    lse = wide.logsumexp(-1, keepdim=True)
    spread = share * wide.where(exists, 0).sum(-1, keepdim=True)  # s mean(logits)
    surprise = (lse - (1 - s) * wide.gather(-1, y) - spread).where(valid, 0)
    return surprise.sum() / max(n, 1), Saved(rows, lse, share, y, valid, n, s, shape)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    logits, lse, share, y, valid, n, s, shape = saved
    wide = widened(logits)
    D = (wide - lse).exp_()  # P                                        of  lse
    D.scatter_add_(-1, y, torch.full_like(lse, s - 1))  # - (1-s) OHE(y)  of  (1 - s) * logits[y]
    D.sub_(share * (wide != -inf))  # - s/V                             of  spread
    D.mul_(Delta / max(n, 1))  #                                        of  Σ / n
    return D.masked_fill_(~valid, 0.0).to(logits.dtype).view(shape)  #  of  where(valid, ·, 0)


SMOOTHED = Rule("smoothed", Pair(forward, backward))
