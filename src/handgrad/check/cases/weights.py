"""Rebuilding the weights, rung by rung: the width is W = 7 here, since a full matrix has W² functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from handgrad.check import references_weights as references
from handgrad.check.case import Applied, B, Case, D, H, T
from handgrad.core import Rule, Run
from handgrad.core.params import Slot, Tree
from handgrad.layers import rungs
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.mask import Everyone, lower
from handgrad.layers.mixing import FixedWeights, Mixing
from handgrad.layers.scores import Additive
from handgrad.rules.relu import RELU
from handgrad.rules.weights_matrix import MATRIX
from handgrad.rules.weights_mix import MIX
from handgrad.rules.weights_normalise import DIVIDE, KEEP, SOFTMAX, softened
from handgrad.rules.weights_product import PRODUCT
from handgrad.rules.weights_spread import END, SOURCE

W, hidden = 7, 11
narrow = ((B, T, W),)
pairs = ((B, H, T, T),)
causal = lower(T, T, 0, "cpu")


@dataclass(frozen=True)
class Above:
    """A rule on its input plus 7: scores above 0, whose sums are far from 0."""

    rule: Rule
    constants: tuple[Any, ...]

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        return self.rule.forward(a + 7, *self.constants, run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Any, run: Run) -> Any:
        return self.rule.backward(Delta, saved, run)


def heads() -> Mixing:
    return rungs.heads(rungs.low_rank(W, H, 2), W, H, 2)


RULES = (
    Case(
        "product score",
        Applied(PRODUCT),
        ((B, H, T, D), (B, H, T, D)),
        lambda p, a: torch.einsum("bftr,bfsr->bfts", *a),
        "weights_product",
    ),
    Case(
        "product score, one k for all",
        Applied(PRODUCT),
        ((B, H, T, D), (B, 1, T, D)),
        lambda p, a: torch.einsum("bftr,bsr->bfts", a[0], a[1][:, 0]),
    ),
    Case(
        "weights kept",
        Applied(KEEP, (causal,)),
        pairs,
        lambda p, a: a.tril(),
        "weights_normalise",
    ),
    Case("divide by sum", Above(DIVIDE, (causal,)), pairs, lambda p, a: references.divide(a + 7)),
    Case("weights softened", Applied(softened(0.5), (causal,)), pairs, lambda p, a: references.softmax(a, 0.5)),
    Case("weights softened over all", Applied(softened(2.0), (None,)), pairs, lambda p, a: (a / 2).softmax(-1)),
    Case(
        "mixing",
        Applied(MIX),
        ((B, H, T, T), (B, H, T, D)),
        lambda p, a: torch.einsum("bfts,bfsr->bftr", *a),
        "weights_mix",
    ),
    Case(
        "mixing, one v for all",
        Applied(MIX),
        ((B, H, T, T), (B, 1, T, D)),
        lambda p, a: torch.einsum("bfts,bsr->bftr", a[0], a[1][:, 0]),
    ),
    Case(
        "score of the end",
        Applied(END),
        ((B, T, H),),
        lambda p, a: torch.stack([a.transpose(1, 2)] * T, 3),
        "weights_spread",
    ),
    Case("score of the source", Applied(SOURCE), ((B, T, H),), lambda p, a: torch.stack([a.transpose(1, 2)] * T, 2)),
    Case(
        "matrix of weights",
        Applied(MATRIX),
        ((B, 3 * 2, T, T), (B, T, 3)),
        lambda p, a: references.output(a[1], lambda b, t, s: a[0][b, :, t, s].view(3, 2), lambda t, s: True),
        "weights_matrix",
    ),
)

RUNGS = (
    Case("fixed weights", FixedWeights(T, W), narrow, references.fixed, "weights_fixed", causal=True),
    Case("source only", rungs.source_only(W, H), narrow, lambda p, a: references.source_only(p, a, H), causal=True),
    Case(
        "source only, every unit reads all",
        rungs.source_only(W, H, Everyone()),
        narrow,
        lambda p, a: references.source_only(p, a, H, everyone=True),
    ),
    Case("self only", rungs.self_only(W, H), narrow, lambda p, a: references.self_only(p, a, H), causal=True),
    Case("full matrix function", rungs.full_matrix(W, hidden), narrow, references.full_matrix, causal=True),
    Case("diagonal", rungs.diagonal(W, hidden), narrow, references.diagonal, causal=True),
    Case(
        "sum of matrices",
        rungs.matrix_sum(Additive(W, hidden, H), W, H),
        narrow,
        lambda p, a: references.matrix_sum(p, a, references.additive_score(p, "score.", a, a).tril()),
        causal=True,
    ),
    Case(
        "non-interaction terms",
        rungs.terms(rungs.low_rank(W, H, 2), W, H, end=True, source=True),
        narrow,
        lambda p, a: references.terms(p, a, H),
    ),
    Case("dot product", rungs.dot(), narrow, lambda p, a: torch.bmm(a, a.transpose(1, 2))[:, None]),
    Case("bilinear", rungs.bilinear(W, H), narrow, lambda p, a: references.bilinear_score(p, "", a, H)),
    Case("low rank score", rungs.low_rank(W, H, 2), narrow, lambda p, a: references.low_rank_score(p, "", a, H)),
    Case(
        "softmax of a bilinear score",
        rungs.matrix_sum(rungs.bilinear(W, H), W, H, SOFTMAX),
        narrow,
        lambda p, a: references.matrix_sum(p, a, references.softmax(references.bilinear_score(p, "score.", a, H))),
        causal=True,
    ),
    Case("heads", heads(), narrow, lambda p, a: references.heads(p, a, H), causal=True),
    Case(
        "unit of weights alone",
        rungs.unit(heads(), None),
        narrow,
        lambda p, a: references.bare_unit(p, a, H, lambda o: o),
        causal=True,
    ),
    Case(
        "unit with an activation",
        rungs.unit(heads(), RELU),
        narrow,
        lambda p, a: references.bare_unit(p, a, H, torch.relu),
        causal=True,
    ),
    Case(
        "unit with W_2",
        rungs.unit(heads(), RELU, w_2=Linear(W, W)),
        narrow,
        lambda p, a: references.unit(p, a, H),
        causal=True,
    ),
    Case(
        "unit with W_1 and W_2",
        rungs.unit(heads(), RELU, Linear(W, 13, bias=False), Linear(13, W)),
        narrow,
        lambda p, a: references.unit(p, a, H),
        causal=True,
    ),
    Case(
        "unit with two skips",
        rungs.two_skips(heads(), RELU, Linear(W, 13), Linear(13, W)),
        narrow,
        lambda p, a: references.two_skips(p, a, H),
        causal=True,
    ),
    Case(
        "unit with two skips and a norm",
        rungs.two_skips(heads(), RELU, Linear(W, 13), Linear(13, W), LayerNorm(W)),
        narrow,
        lambda p, a: references.two_skips(p, a, H),
        causal=True,
    ),
)

CASES = (*RULES, *RUNGS)
