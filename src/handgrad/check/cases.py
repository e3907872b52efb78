"""One table of cases: every rule and layer, with small prime sizes, random parameters, and an independent reference.

    B = 2 samples, T = 5 tokens, H = 3 heads, D = 7 features a head, C = 21 = H·D width, V = 11 vocabulary

All law tests run over this table. `reference` computes the same forward pass with torch's own library functions, since
an oracle that differentiates our forward cannot know that the forward is the one that was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from handgrad.check import references
from handgrad.core import Buffer, Chain, Fork, Layer, Layout, Recompute, Residual, Rule, Run, Sequence, Sum
from handgrad.core.params import Slot, Tree, generator_of
from handgrad.layers.block import mlp, pre_norm
from handgrad.layers.embedding import PositionEmbedding, TokenEmbedding, Unembedding
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.mask import Everyone, lower
from handgrad.layers.multihead import MultiHead
from handgrad.layers.pointwise import Dropout, Pointwise
from handgrad.models.gpt2 import GPT2Config
from handgrad.rules.attend import ATTEND
from handgrad.rules.crossentropy import CROSS_ENTROPY
from handgrad.rules.gelu import GELU_ERF, GELU_TANH
from handgrad.rules.relu import RELU

B, T, H, D, V = 2, 5, 3, 7, 11
C = H * D


@dataclass(frozen=True)
class Applied:
    """A rule as a layer: its tensor inputs are the feature map, its other arguments are fixed."""

    rule: Rule
    constants: tuple[Any, ...] = ()

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Any, run: Run) -> tuple[Tensor, Any]:
        return self.rule.forward(*(a if isinstance(a, tuple) else (a,)), *self.constants, run=run)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Any, run: Run) -> Any:
        return self.rule.backward(Delta, saved, run)


@dataclass(frozen=True)
class Case:
    """One layer in one situation.

    shapes      of the random inputs, or `ids` (a list of rows) for token ids
    reference   (p, a) -> the same output by torch's library functions
    rule        the rule module that this case is the first test of
    causal      no output at t reads an input after t
    samplewise  each sample's output is the one it has alone
    blind       the output depends on the input's shape alone
    zeros       gradients that must vanish
    run         how it is run
    """

    name: str
    layer: Layer
    shapes: tuple[tuple[int, ...], ...] = ()
    reference: Callable[[Buffer, Any], Tensor] | None = None
    rule: str = ""
    ids: tuple[tuple[int, ...], ...] = ()
    causal: bool = False
    samplewise: bool = True
    blind: bool = False
    zeros: tuple[str, ...] = ()
    run: Run = field(default_factory=Run)
    tied: dict[str, str] = field(default_factory=dict)

    def draw(self, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Buffer, Any, Tensor]:
        """Random parameters (never their first values: γ = 1 and β = 0 hide missing factors), input and upstream Δ."""
        layout = Layout(self.layer.slots(), self.tied)
        p = layout.zeros(torch.float64)
        for name in p:
            p[name].copy_(normal(p[name].shape, seed, name) * 0.5)
        inputs = tuple(normal(shape, seed, f"input {i}") for i, shape in enumerate(self.shapes))
        a = torch.tensor(self.ids) if self.ids else inputs if len(inputs) > 1 else inputs[0]
        y, _ = self.layer.forward(p.tree, a, self.run)
        Delta = normal(y.shape, seed, "Delta")
        cast = lambda x: x.to(dtype) if x.is_floating_point() else x  # noqa: E731
        return (
            p.like(p.flat.to(dtype)),
            tuple(map(cast, a)) if isinstance(a, tuple) else cast(a),
            cast(Delta),
        )


def normal(shape: tuple[int, ...], seed: int, name: str) -> Tensor:
    return torch.randn(shape, generator=generator_of(seed, name), dtype=torch.float64)


stream = ((B, T, C),)
heads = ((B, H, T, D), (B, H, T, D), (B, H, T, D + 4))
ids = ((3, 1, 3, 0, 10), (1, 1, 9, 2, 3))
some_rows = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
y_of = torch.tensor([[4, 0, 10, -1, 2], [7, -1, 1, 3, 3]])
gpt = GPT2Config(vocabulary=V, context=T + 2, n_layers=2, n_heads=H, d_model=C, d_mlp=13)
plain_gpt = GPT2Config(vocabulary=V, context=T, n_layers=1, n_heads=1, d_model=C, bias=False, tied=False)

CASES = (
    Case("linear", Linear(C, 13), stream, lambda p, a: F.linear(a, p["w"].mT, p["b"]), "linear", causal=True),
    Case("linear without bias", Linear(C, 13, bias=False), stream, lambda p, a: F.linear(a, p["w"].mT), causal=True),
    Case("square linear", Linear(T, T), ((B, T, T),), lambda p, a: F.linear(a, p["w"].mT, p["b"]), causal=True),
    Case("token embedding", TokenEmbedding(V, C), reference=references.token, rule="embed", ids=ids, causal=True),
    Case(
        "position embedding",
        PositionEmbedding(T + 2, C),
        reference=lambda p, a: F.embedding(torch.arange(2, T + 2).expand(B, T), p["w_pos"]),
        ids=ids,
        blind=True,
        run=Run(position=2),
    ),
    Case("unembedding", Unembedding(V, C), stream, lambda p, a: F.linear(a, p["w_emb"]), "unembed", causal=True),
    Case("square unembedding", Unembedding(T, T), ((B, T, T),), lambda p, a: a @ p["w_emb"].mT, causal=True),
    Case(
        "layer norm",
        LayerNorm(C),
        stream,
        lambda p, a: F.layer_norm(a, (C,), p["gamma"], p["beta"], 1e-5),
        "layernorm",
        causal=True,
    ),
    Case(
        "layer norm without offset",
        LayerNorm(C, bias=False, epsilon=0.1),
        stream,
        lambda p, a: F.layer_norm(a, (C,), p["gamma"], None, 0.1),
        causal=True,
    ),
    Case("gelu tanh", Pointwise(GELU_TANH), stream, lambda p, a: F.gelu(a, approximate="tanh"), "gelu", causal=True),
    Case("gelu erf", Pointwise(GELU_ERF), stream, lambda p, a: F.gelu(a), causal=True),
    Case("relu", Pointwise(RELU), stream, lambda p, a: F.relu(a), "relu", causal=True),
    Case("dropout", Dropout(0.3), stream, rule="dropout", samplewise=False, causal=True, run=Run(seed=5)),
    Case("dropout in evaluation", Dropout(0.3), stream, lambda p, a: F.dropout(a, 0.3, training=False), causal=True),
    Case(
        "attend",
        Applied(ATTEND, (lower(T, T, 0, "cpu"),)),
        heads,
        lambda p, a: F.scaled_dot_product_attention(*a, is_causal=True),
        "attend",
    ),
    Case("attend to everyone", Applied(ATTEND, (None,)), heads, lambda p, a: F.scaled_dot_product_attention(*a)),
    Case(
        "attend, a row masked whole",
        Applied(ATTEND, (some_rows,)),
        ((B, H, 3, D),) * 3,
        lambda p, a: references.attend_rows(a, some_rows),
    ),
    Case(
        "attend after a cache",
        Applied(ATTEND, (lower(3, T, 2, "cpu"),)),
        ((B, H, 3, D), (B, H, T, D), (B, H, T, D)),
        lambda p, a: F.scaled_dot_product_attention(*a, attn_mask=lower(3, T, 2, "cpu")),
    ),
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
    Case("multi-head", MultiHead(C, H), stream, references.multihead(H, True), causal=True, zeros=("key.b",)),
    Case(
        "multi-head without mask or bias",
        MultiHead(C, H, bias=False, mask=Everyone()),
        stream,
        references.multihead(H, False),
    ),
    Case("mlp", mlp(C, 13, RELU, True, 0.1, 0.1), stream, lambda p, a: references.mlp(p, "", a, F.relu), causal=True),
    Case(
        "block with dropout",
        pre_norm(LayerNorm(C), MultiHead(C, H), LayerNorm(C), mlp(C, 13, GELU_ERF, True, 0.1, 0.1), 0.2),
        stream,
        causal=True,
        samplewise=False,
        zeros=("attention.key.b",),
        run=Run(seed=3),
    ),
    Case(
        "chain", Chain({"one": Linear(C, 13), "two": Pointwise(GELU_ERF), "three": Linear(13, C)}), stream, causal=True
    ),
    Case(
        "sequence of residuals",
        Sequence((Residual("h", Chain({"one": Linear(C, C)})), Residual("out", Chain({"two": LayerNorm(C)})))),
        stream,
        lambda p, a: references.residuals(p, a),
        causal=True,
    ),
    Case(
        "sum of a fork",
        Sum(Fork({"one": Linear(C, 13), "two": Linear(C, 13, bias=False)})),
        stream,
        lambda p, a: F.linear(a, (p["one.w"] + p["two.w"]).mT, p["one.b"]),
        causal=True,
    ),
    Case(
        "recomputed block",
        Recompute(pre_norm(LayerNorm(C), MultiHead(C, H), LayerNorm(C), mlp(C, 13, RELU, True, 0.1, 0.1), 0.2)),
        stream,
        causal=True,
        samplewise=False,
        zeros=("attention.key.b",),
        run=Run(seed=3),
    ),
    Case(
        "gpt-2",
        gpt.layers(),
        reference=lambda p, a: references.gpt2(p, a, gpt),
        ids=ids,
        causal=True,
        tied=dict(gpt.ties()),
        zeros=("blocks.0.attention.key.b", "blocks.1.attention.key.b"),
    ),
    Case(
        "gpt-2 untied without bias",
        plain_gpt.layers(),
        reference=lambda p, a: references.gpt2(p, a, plain_gpt),
        ids=ids,
        causal=True,
    ),
)


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)
