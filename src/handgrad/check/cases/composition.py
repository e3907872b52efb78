"""Chains, residuals, forks, blocks, the whole network."""

from __future__ import annotations

import torch.nn.functional as F

from handgrad.check import references
from handgrad.check.case import C, Case, H, T, V, ids, stream
from handgrad.check.references_positions import rotary
from handgrad.core import Chain, Fork, Recompute, Residual, Run, Sequence, Sum
from handgrad.layers.block import mlp, pre_norm
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.multihead import MultiHead
from handgrad.layers.pointwise import Pointwise
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.llama import LlamaConfig
from handgrad.rules.gelu import GELU_ERF
from handgrad.rules.relu import RELU

gpt = GPT2Config(vocabulary=V, context=T + 2, n_layers=2, n_heads=H, d_model=C, d_mlp=13)
plain_gpt = GPT2Config(vocabulary=V, context=T, n_layers=1, n_heads=1, d_model=C, bias=False, tied=False)
llama = LlamaConfig(
    vocabulary=V,
    context=T,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    d_model=C,
    d_mlp=13,
    d_head=6,
    window=3,
    bias=True,
    tied=True,
)
plain_llama = LlamaConfig(vocabulary=V, context=T, n_layers=1, n_heads=H, d_model=6 * H, d_mlp=13)


CASES = (
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
    Case(
        "llama with shared heads, a window and offsets",
        llama.layers(),
        reference=lambda p, a: references.llama(p, a, llama, lambda x: rotary(x, 0, interleaved=False)),
        ids=ids,
        causal=True,
        tied=dict(llama.ties()),
    ),
    Case(
        "llama untied",
        plain_llama.layers(),
        reference=lambda p, a: references.llama(p, a, plain_llama, lambda x: rotary(x, 0, interleaved=False)),
        ids=ids,
        causal=True,
    ),
)
