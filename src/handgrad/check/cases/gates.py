"""RMS norm, further activations, gated MLPs, the post-norm block, low-rank updates."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from handgrad.check import references_positions as references
from handgrad.check.case import B, C, Case, H, T, stream
from handgrad.core import Run
from handgrad.layers.block import mlp, post_norm
from handgrad.layers.gated import geglu, swiglu
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.lowrank import LowRank
from handgrad.layers.multihead import MultiHead
from handgrad.layers.pointwise import Pointwise
from handgrad.layers.rmsnorm import RMSNorm
from handgrad.rules.relu import RELU
from handgrad.rules.sigmoid import SIGMOID
from handgrad.rules.silu import SILU
from handgrad.rules.tanh import TANH

CASES = (
    Case("rms norm", RMSNorm(C), stream, lambda p, a: F.rms_norm(a, (C,), p["gamma"], 1e-5), "rmsnorm", causal=True),
    Case(
        "rms norm, large epsilon",
        RMSNorm(C, epsilon=0.1),
        stream,
        lambda p, a: F.rms_norm(a, (C,), p["gamma"], 0.1),
        causal=True,
    ),
    Case("silu", Pointwise(SILU), stream, lambda p, a: F.silu(a), "silu", causal=True),
    Case("tanh", Pointwise(TANH), stream, lambda p, a: 1 - 2 / (torch.exp(2 * a) + 1), "tanh", causal=True),
    Case("sigmoid", Pointwise(SIGMOID), stream, lambda p, a: 1 / (1 + torch.exp(-a)), "sigmoid", causal=True),
    Case("swiglu", swiglu(C, 13), stream, references.gated(F.silu), causal=True),
    Case(
        "geglu with biases",
        geglu(C, 13, bias=True),
        stream,
        references.gated(lambda x: F.gelu(x, approximate="tanh")),
        causal=True,
    ),
    Case(
        "post-norm block",
        post_norm(MultiHead(C, H), LayerNorm(C), mlp(C, 13, RELU, True, 0.1, 0.1), LayerNorm(C)),
        stream,
        lambda p, a: references.post_norm(p, a, H),
        causal=True,
        zeros=("attention.key.b",),
    ),
    Case(
        "low-rank update",
        LowRank(Linear(C, 13), rank=2, alpha=7),
        stream,
        lambda p, a: references.low_rank(p, a, 3.5),
        "lowrank",
        causal=True,
    ),
    Case(
        "square low-rank update, rslora",
        LowRank(Linear(T, T, bias=False), rank=T, alpha=7, rslora=True),
        ((B, T, T),),
        lambda p, a: references.low_rank(p, a, 7 / 5**0.5),
        causal=True,
    ),
    Case(
        "low-rank update with dropout",
        LowRank(Linear(C, 13), rank=2, alpha=7, dropout=0.3),
        stream,
        lambda p, a: references.low_rank(p, a, 3.5, 0.3, 5),
        samplewise=False,
        causal=True,
        run=Run(seed=5),
    ),
)
