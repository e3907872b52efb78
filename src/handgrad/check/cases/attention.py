"""Attention, one head and many."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from handgrad.check import references
from handgrad.check.case import Applied, B, C, Case, D, H, T, heads, stream
from handgrad.layers.mask import Everyone, lower
from handgrad.layers.multihead import MultiHead
from handgrad.rules.attend import ATTEND

some_rows = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])


CASES = (
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
    Case("multi-head", MultiHead(C, H), stream, references.multihead(H, True), causal=True, zeros=("key.b",)),
    Case(
        "multi-head without mask or bias",
        MultiHead(C, H, bias=False, mask=Everyone()),
        stream,
        references.multihead(H, False),
    ),
)
