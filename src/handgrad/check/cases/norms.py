"""Norms."""

from __future__ import annotations

import torch.nn.functional as F

from handgrad.check.case import C, Case, stream
from handgrad.layers.layernorm import LayerNorm

CASES = (
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
)
