"""The bytes of a cache of keys and values: the real layers read one token with the real `KVCache`, without memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from handgrad.core.combine import Chain, Residual
from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.core.run import Run
from handgrad.generate.cache import KVCache
from handgrad.layers.head import Head
from handgrad.layers.headwise import sum_of_heads
from handgrad.plan.trace import Trace

MOST_OPERATORS = 60_000  # of one forward pass that is planned


@dataclass(frozen=True)
class CacheBytes:
    """What is kept of `tokens` tokens of each of `batch` sequences.

    keys, values   bytes of each
    """

    tokens: int
    batch: int
    keys: int
    values: int

    @property
    def total(self) -> int:
        return self.keys + self.values

    @property
    def per_token(self) -> int:
        """Bytes of one token of one sequence."""
        return self.total // (self.tokens * self.batch)


def cache_of(layer: Layer, a: torch.Tensor, tokens: int, dtype: torch.dtype, ties: Any = None) -> CacheBytes:
    """The cache of `layer` for so many tokens, in numbers of `dtype`. `a` is the first token as the layer takes it:
    ids ~ (B, 1) or rows ~ (B, 1, d), on the device "meta".

    >>> import handgrad as hg
    >>> ids = torch.zeros(1, 1, dtype=torch.int64, device="meta")
    >>> shape = hg.GPT2Config(vocabulary=50257, context=1024, n_layers=12, n_heads=12, d_model=768)
    >>> cache_of(shape.layers(), ids, 1024, torch.bfloat16).per_token == 2 * 12 * 768 * 2
    True
    """
    cache = KVCache(tokens)
    p = Layout(layer.slots(), dict(ties or {})).zeros(dtype, "meta")
    with torch.no_grad(), Trace(most=MOST_OPERATORS):
        layer.forward(p.tree, a, Run(cache=cache, implementation="explicit"))
    kept = cache.layers.values()
    return CacheBytes(tokens, a.shape[0], sum(x.k.nbytes for x in kept), sum(x.v.nbytes for x in kept))


def classic(
    rank: int = 1000,
    *,
    tokens: int = 5000,
    n_layers: int = 50,
    n_heads: int = 20,
    width: int = 1000,
    dtype: torch.dtype = torch.bfloat16,
) -> CacheBytes:
    """The example by which low rank is explained: 20 heads a layer whose products x A have the width of the stream.

    Kept for each token, layer and head: a row of `rank` numbers (the key; A = w_q w_kᵗ with w_k ~ (width, rank)) and a
    row of `width` numbers (the value, x V_h). The keys take 10 GB, and 2 GB at rank 200.

    >>> classic().keys, classic(rank=200).keys
    (10000000000, 2000000000)
    """
    heads = tuple(Head(width, rank, width, query_bias=False, key_bias=False, value_bias=False) for _ in range(n_heads))
    layer = Chain({str(i): Residual("attention", sum_of_heads(heads)) for i in range(n_layers)})
    return cache_of(layer, torch.zeros(1, 1, width, dtype=dtype, device="meta"), tokens, dtype)
