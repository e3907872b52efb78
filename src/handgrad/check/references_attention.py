"""Attention written apart from our rules: loops over samples, queries and allowed keys; many heads by library calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from handgrad.check.references import known, linear

May = Callable[[int, int, int], bool]
"""(sample, query, key) -> may this query attend to this key?"""


def causal(b: int, i: int, j: int) -> bool:
    return j <= i


def looped(q: Tensor, k: Tensor, v: Tensor, may: May, tau: Tensor | float = 1.0) -> Tensor:
    """One head, (B, T, ·): each output row is the mean of the allowed values, weighted by exp(q·k/(√d_ρ τ))."""
    rows = []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            keys = [j for j in range(k.shape[1]) if may(b, i, j)]
            if keys:
                weights = torch.stack([(q[b, i] @ k[b, j] / sqrt(q.shape[2]) / tau).exp().squeeze() for j in keys])
                rows.append(sum(w * v[b, j] for w, j in zip(weights / weights.sum(), keys, strict=True)))
            else:
                rows.append(torch.zeros_like(v[b, 0]))
    return torch.stack(rows).view(q.shape[0], q.shape[1], v.shape[2])


def looped_heads(a: tuple[Tensor, Tensor, Tensor], may: May) -> Tensor:
    """Several heads, (B, H, T, ·)."""
    return torch.stack([looped(*(x[:, h] for x in a), may) for h in range(a[0].shape[1])], 1)


def head(p: Mapping[str, Tensor], at: str, a: Tensor, may: May) -> Tensor:
    p = known(p)
    q, k, v = (linear(p, f"{at}{name}.", a) for name in ("query", "key", "value"))
    return looped(q, k, v, may, p.get(f"{at}temperature.tau", 1.0))


def mirror(p: Mapping[str, Tensor], a: Tensor) -> Tensor:
    """Column β of q kᵗ, over the queries α ≤ β, made a mean by an explicit loop over columns."""
    p = known(p)
    q, k, v = (linear(p, f"{name}.", a) for name in ("query", "key", "value"))
    raw = torch.einsum("btd,bsd->bts", q, k) / sqrt(q.shape[-1])
    columns = [torch.einsum("bt,btd->bd", F.softmax(raw[:, : s + 1, s], -1), v[:, : s + 1]) for s in range(a.shape[1])]
    return torch.stack(columns, 1)


def headwise(p: Mapping[str, Tensor], a: Tensor, n: int, may: May) -> Tensor:
    """Σ_h a_h w_o^h + b_o, with w_o cut in row blocks."""
    p, y, row = known(p), torch.zeros_like(a), 0
    for h in range(n):
        a_h = head(p, f"heads.{h}.", a, may)
        y = y + a_h @ p["out.w"][row : row + a_h.shape[-1]]
        row += a_h.shape[-1]
    assert row == len(p["out.w"])
    return y + p["out.b"] if "out.b" in p else y


def grouped(
    p: Mapping[str, Tensor],
    a: Tensor,
    heads: int,
    kv_heads: int,
    turned: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """Each query head takes the columns of its group out of the shared keys and values, both turned first."""
    p, d = known(p), a.shape[-1] // heads
    q, k, v = (linear(p, f"{name}.", a) for name in ("query", "key", "value"))
    outputs = []
    for h in range(heads):
        g = h * kv_heads // heads
        mine, theirs = slice(h * d, (h + 1) * d), slice(g * d, (g + 1) * d)
        one, other = turned(q[..., mine]), turned(k[..., theirs])
        outputs.append(F.scaled_dot_product_attention(one, other, v[..., theirs], is_causal=True))
    return linear(p, "out.", torch.cat(outputs, -1))


def cross(p: Mapping[str, Tensor], ab: tuple[Tensor, Tensor], heads: int, mask: Tensor | None = None) -> Tensor:
    """torch's own multi-head attention, with its matrices stored the other way round."""
    p, (a, b) = known(p), ab
    bias = torch.cat([p["query.b"], p["key.b"], p["value.b"]])
    y, _ = F.multi_head_attention_forward(
        *(x.transpose(0, 1) for x in (a, b, b)),
        a.shape[-1],
        heads,
        None,
        bias,
        None,
        None,
        False,
        0.0,
        p["out.w"].mT,
        p["out.b"],
        need_weights=False,
        attn_mask=mask,
        use_separate_proj_weight=True,
        q_proj_weight=p["query.w"].mT,
        k_proj_weight=p["key.w"].mT,
        v_proj_weight=p["value.w"].mT,
    )
    return y.transpose(0, 1)
