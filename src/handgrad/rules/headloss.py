"""Logits and their loss as one rule: the features of each token against every row of the embedding, then surprise.

forward      logits = a w_embᵗ         P = softmax(logits)         L = -(1/n) Σ_valid log P[y]
backward     Δ_logits = Δ' (P - OHE(y))/n on valid rows, 0 elsewhere
             Δ = Δ_logits w_emb        ∂L/∂w_emb = Δ_logitsᵗ a
from         the chain of `unembed.py` and `crossentropy.py`, whose lines the explicit pair runs
shapes       a, Δ ~ (..., d)   w_emb ~ (V, d)   logits, Δ_logits ~ (..., V)   y ~ (...) ids   valid ~ (...) bool
             L, Δ' ~ ()   n a count, as in `crossentropy.py`
cost         6·N·d·V FLOPs for both ways; the explicit pair saves the logits, the largest thing of a training step by
             far. The chunked pair (`fused/headloss_chunked.py`) never holds more than some rows of them
source       docs/equations.md, rows "tying" and "cross-entropy"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run
from handgrad.rules import crossentropy, unembed
from handgrad.rules.fused import headloss_chunked


class Saved(NamedTuple):
    unembed: unembed.Saved
    loss: crossentropy.Saved
    w_emb: Tensor


def forward(a: Tensor, w_emb: Tensor, y: Tensor, valid: Tensor, n: float, run: Run) -> tuple[Tensor, Saved]:
    logits, saved_unembed = unembed.forward(a, w_emb)
    logits = run.show("head", logits)
    loss, saved_loss = crossentropy.forward(logits, y, valid, n, run / "loss")
    return loss, Saved(saved_unembed, saved_loss, w_emb)


def backward(Delta: Tensor, saved: Saved, grads: Gradients, run: Run) -> Tensor:
    Delta_logits = crossentropy.backward(Delta, saved.loss, run / "loss")  #           of  the loss, by logits
    Delta_logits = run.show("Delta_head", Delta_logits)
    return unembed.backward(Delta_logits, saved.unembed, saved.w_emb, grads)  #        of  a w_embᵗ, by a and w_emb


CHUNKED = Pair(headloss_chunked.forward, headloss_chunked.backward)
HEAD_LOSS = Rule("headloss", Pair(forward, backward), CHUNKED, inner=("head", "Delta_head"))
