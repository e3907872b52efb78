"""One head by itself, unequal heads, grouped and crossed ones; masks and temperature."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from handgrad.check import references_attention as by_loops
from handgrad.check.case import Applied, B, C, Case, D, H, T, heads, ids, stream
from handgrad.check.references_positions import rotary
from handgrad.core import Run
from handgrad.layers.cross import CrossAttention
from handgrad.layers.embedding import PositionEmbedding
from handgrad.layers.head import Head
from handgrad.layers.headwise import HeadwiseAttention, sum_of_heads
from handgrad.layers.mask import CAUSAL, And, BlockSparse, Causal, Everyone, KeyPadding, Window
from handgrad.layers.mirror import Mirror
from handgrad.layers.multihead import MultiHead
from handgrad.layers.rope import Rotary
from handgrad.layers.temperature import Temperature
from handgrad.rules.attend import ATTEND
from handgrad.rules.group import GROUP

window = Window(2)
blocks = BlockSparse(((True, False, False), (True, True, False), (False, True, True)), 2)
tokens = torch.tensor([[True, True, False, True, True], [False, True, True, True, False]])
padded = And((CAUSAL, KeyPadding(tokens)))
left = torch.tensor([-2, 0])  # the first two tokens of the first sample are padding
S = 13


def in_window(b: int, i: int, j: int) -> bool:
    return j in (i - 1, i)


def in_blocks(b: int, i: int, j: int) -> bool:
    return (i // 2, j // 2) in {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)}


def not_padded(b: int, i: int, j: int) -> bool:
    return j <= i and bool(tokens[b, j])


def after_padding(b: int, i: int, j: int) -> bool:
    return j <= i and j >= -left[b]


CASES = (
    Case(
        "temperature",
        Temperature(2.0, learned=True),
        ((B, T, T),),
        lambda p, a: torch.stack([x / p["tau"][0] for x in a.unbind()]),
        "temperature",
        causal=True,
    ),
    Case("fixed temperature", Temperature(1.7), stream, lambda p, a: a * (10 / 17), causal=True),
    Case(
        "group",
        Applied(GROUP, (3,)),
        ((B, 2, T, D),),
        lambda p, a: torch.stack([a[:, g] for g in (0, 0, 0, 1, 1, 1)], 1),
        "group",
    ),
    Case(
        "attend in a window",
        Applied(ATTEND, (window(T, T, 0),)),
        heads,
        lambda p, a: by_loops.looped_heads(a, in_window),
    ),
    Case(
        "attend in blocks",
        Applied(ATTEND, (blocks(T, T, 0),)),
        heads,
        lambda p, a: by_loops.looped_heads(a, in_blocks),
    ),
    Case(
        "attend past padding",
        Applied(ATTEND, (padded(T, T, 0),)),
        heads,
        lambda p, a: by_loops.looped_heads(a, not_padded),
        samplewise=False,
    ),
    Case(
        "head",
        Head(C, D, 11),
        stream,
        lambda p, a: by_loops.head(p, "", a, by_loops.causal),
        causal=True,
        zeros=("key.b",),
    ),
    Case(
        "head without offsets to everyone",
        Head(C, D, 3, False, False, False, mask=Everyone()),
        stream,
        lambda p, a: by_loops.head(p, "", a, lambda *_: True),
    ),
    Case(
        "head with a temperature and one offset",
        Head(C, D, 3, query_bias=False, key_bias=False, mask=window, temperature=Temperature(2.0, learned=True)),
        stream,
        lambda p, a: by_loops.head(p, "", a, in_window),
        causal=True,
    ),
    Case(
        "head in blocks",
        Head(C, D, 3, mask=blocks),
        stream,
        lambda p, a: by_loops.head(p, "", a, in_blocks),
        zeros=("key.b",),
    ),
    Case(
        "head past padding",
        Head(C, D, 3, mask=padded),
        stream,
        lambda p, a: by_loops.head(p, "", a, not_padded),
        causal=True,
        samplewise=False,
        zeros=("key.b",),
    ),
    Case(
        "mirror",
        Mirror(Head(C, D, 11)),
        stream,
        lambda p, a: by_loops.mirror(p, a),
        causal=True,
        zeros=("query.b",),  # by columns it is the queries' offset that adds one amount to all scores
    ),
    Case(
        "unequal heads",
        HeadwiseAttention((Head(C, 7, 3), Head(C, 2, 11, key_bias=False), Head(C, 5, 1, mask=CAUSAL))),
        stream,
        lambda p, a: by_loops.headwise(p, a, 3, by_loops.causal),
        causal=True,
        zeros=("heads.0.key.b", "heads.2.key.b"),
    ),
    Case(
        "sum of heads",
        sum_of_heads((Head(C, 7, C, value_bias=False), Head(C, 2, C, value_bias=False))),
        stream,
        lambda p, a: by_loops.head(p, "0.", a, by_loops.causal) + by_loops.head(p, "1.", a, by_loops.causal),
        causal=True,
        zeros=("0.key.b", "1.key.b"),
    ),
    Case(
        "grouped queries",
        MultiHead(4 * D, 4, kv_heads=2),
        ((B, T, 4 * D),),
        lambda p, a: by_loops.grouped(p, a, 4, 2),
        causal=True,
        zeros=("key.b",),
    ),
    Case(
        "grouped queries with rotary positions",
        MultiHead(24, 4, kv_heads=2, rotary=Rotary(6)),
        ((B, T, 24),),
        lambda p, a: by_loops.grouped(p, a, 4, 2, lambda x: rotary(x, 0, interleaved=False)),
        causal=True,
    ),
    Case(
        "one key head for all queries",
        MultiHead(C, H, kv_heads=1, bias=False),
        stream,
        lambda p, a: by_loops.grouped(p, a, H, 1),
        causal=True,
    ),
    Case(
        "multi-head past padding on the left",
        MultiHead(C, 1),
        stream,
        lambda p, a: F.linear(by_loops.head(p, "", a, after_padding), p["out.w"].mT, p["out.b"]),
        causal=True,
        samplewise=False,
        zeros=("key.b",),
        run=Run(position=left),
    ),
    Case(
        "position embedding past padding on the left",
        PositionEmbedding(T, C),
        reference=lambda p, a: torch.stack([p["w_pos"][[0, 0, 0, 1, 2]], p["w_pos"][[0, 1, 2, 3, 4]]]),
        ids=ids,
        blind=True,
        samplewise=False,
        run=Run(position=left),
    ),
    Case(
        "cross attention",
        CrossAttention(C, S, H),
        ((B, T, C), (B, 3, S)),
        lambda p, a: by_loops.cross(p, a, H),
        zeros=("key.b",),
    ),
    Case(
        "cross attention with a mask",
        CrossAttention(C, S, H, mask=Causal()),
        ((B, 3, C), (B, T, S)),
        lambda p, a: by_loops.cross(p, a, H, ~torch.ones(3, T, dtype=torch.bool).tril()),
        zeros=("key.b",),
    ),
)
