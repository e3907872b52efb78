"""Linear layers, embeddings, activations, dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from handgrad.check import references
from handgrad.check.case import B, C, Case, T, V, ids, stream
from handgrad.core import Run
from handgrad.layers.embedding import PositionEmbedding, TokenEmbedding, Unembedding
from handgrad.layers.linear import Linear
from handgrad.layers.pointwise import Dropout, Pointwise
from handgrad.rules.gelu import GELU_ERF, GELU_TANH
from handgrad.rules.relu import RELU

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
    Case("gelu tanh", Pointwise(GELU_TANH), stream, lambda p, a: F.gelu(a, approximate="tanh"), "gelu", causal=True),
    Case("gelu erf", Pointwise(GELU_ERF), stream, lambda p, a: F.gelu(a), causal=True),
    Case("relu", Pointwise(RELU), stream, lambda p, a: F.relu(a), "relu", causal=True),
    Case("dropout", Dropout(0.3), stream, rule="dropout", samplewise=False, causal=True, run=Run(seed=5)),
    Case("dropout in evaluation", Dropout(0.3), stream, lambda p, a: F.dropout(a, 0.3, training=False), causal=True),
)
