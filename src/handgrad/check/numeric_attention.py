"""Laws of attention that are no equation of one layer: each function computes both sides and raises `LawBroken`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from handgrad.check.case import B, C, D, H, T, normal
from handgrad.check.laws import off, require, same
from handgrad.check.tolerance import FLOAT64
from handgrad.core import Accumulate, Buffer, Chain, Layer, Layout, Run, Watch
from handgrad.generate.cache import KVCache
from handgrad.layers import headwise
from handgrad.layers.block import mlp, post_norm, pre_norm
from handgrad.layers.head import Head
from handgrad.layers.headwise import HeadwiseAttention
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.mask import EVERYONE, Window
from handgrad.layers.mirror import Mirror
from handgrad.layers.multihead import MultiHead
from handgrad.rules.attend import ATTEND, softmax
from handgrad.rules.gelu import GELU_TANH
from handgrad.who.split import by, down, split, total

ORDER = torch.tensor([3, 0, 4, 1, 2])


def drawn(layer: Layer, seed: int = 1) -> Buffer:
    """Random parameters, none at its first value."""
    p = Layout(layer.slots()).zeros(torch.float64)
    for name in p:
        p[name].copy_(normal(p[name].shape, seed, name) * 0.5)
    return p


def a_of(width: int = C, tokens: int = T, seed: int = 1) -> Tensor:
    return normal((B, tokens, width), seed, "a")


def permuted(layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Att(P a) and P Att(a), then the errors of the inputs: of P a under P Δ, and P times that of a under Δ."""
    p, a = drawn(layer), a_of()
    y, below = there_and_back(layer, p, a)
    y_turned, below_turned = there_and_back(layer, p, a[:, ORDER], ORDER)
    return y_turned, y[:, ORDER], below_turned, below[:, ORDER]


def there_and_back(layer: Layer, p: Buffer, a: Tensor, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
    y, saved = layer.forward(p.tree, a, Run())
    Delta = normal(y.shape, 2, "Delta")
    Delta = Delta if order is None else Delta[:, order]
    below = layer.backward(p.tree, Delta, saved, Accumulate({}), Run())
    assert isinstance(below, Tensor)
    return y, below


def permutation_equivariance() -> None:
    """Att(P a) = P Att(a) and the same for errors, without a mask; under the causal mask it must fail."""
    y, right, below, right_below = permuted(Head(C, D, 11, mask=EVERYONE))
    same(y, right, "Att(P a)")
    same(below, right_below, "the error of P a")
    y, right, _, _ = permuted(Head(C, D, 11))
    require(off(y, right) > 0.1, "the causal head does not care for order, so its mask does nothing")


def permutation_invariance() -> None:
    """The mean of all tokens' outputs does not change when the tokens change places; under the mask it does."""
    y, right, _, _ = permuted(Head(C, D, 11, mask=EVERYONE))
    same(y.mean(1), right.mean(1), "the pooled output of P a")
    y, right, _, _ = permuted(Head(C, D, 11))
    require(off(y.mean(1), right.mean(1)) > 0.01, "pooled causal attention does not care for order")


def shift_invariance() -> None:
    """softmax(x + c 1ᵗ) = softmax(x) by rows; so rows of Δ_raw sum to 0, and the keys' offset changes nothing."""
    x, c = normal((B, H, T, T), 3, "x"), normal((B, H, T, 1), 3, "c")
    same(softmax(x + c, None), softmax(x, None), "the softmax of shifted rows")

    layer, w = MultiHead(C, H), Watch(("Delta_raw", "Delta_causal", "raw"))
    p, a = drawn(layer), a_of()
    y, saved = layer.forward(p.tree, a, Run(signals=w))
    g = p.layout.zeros(torch.float64)
    layer.backward(p.tree, normal(y.shape, 2, "Delta"), saved, Accumulate(g.tree), Run(signals=w))
    for name in ("Delta_causal", "Delta_raw"):
        require(float(w[name].sum(-1).norm()) <= FLOAT64 * float(w[name].norm()), f"rows of {name} do not sum to 0")
    require(float(g["key.b"].norm()) <= FLOAT64 * float(g.flat.norm()), "the keys' offset has a gradient")

    raw = w["raw"]
    p["key.b"].add_(0.7)
    shifted = layer.forward(p.tree, a, Run(signals=w))[0]
    require(off(w["raw"], raw) > 0.1, "the offset of the keys does not even reach the scores")
    same(shifted, y, "the output under another offset of the keys")


def row_sums() -> None:
    """rowsum(Δ_ρ ∘ ρ) = rowsum(Δ ∘ a_h): what a form without ρ needs, it can have from the output."""
    q, k, v, Delta = (normal((B, H, T, D), seed, "qkvd") for seed in range(4))
    w = Watch(("rho", "out", "Delta_rho"))
    _, saved = ATTEND.forward(q, k, v, None, run=Run(signals=w))
    ATTEND.backward(Delta, saved, Run(signals=w))
    same((w["Delta_rho"] * w["rho"]).sum(-1), (Delta * w["out"]).sum(-1), "rowsum(Delta_rho * rho)")


def quadratic_cost() -> None:
    """Twice the tokens, four times the weights and four times the operations of attention, forward and backward."""
    flops, weights = [], []
    for tokens in (T, 2 * T):
        q, k, v, Delta = (normal((B, H, tokens, D), seed, "qkvd") for seed in range(4))
        w = Watch(("rho",))
        with FlopCounterMode(display=False) as counter:
            _, saved = ATTEND.forward(q, k, v, None, run=Run(signals=w))
            ATTEND.backward(Delta, saved, Run(signals=w))
        flops.append(counter.get_total_flops())
        weights.append(w["rho"].numel())
    require(weights == [B * H * T * T, 4 * B * H * T * T], f"rho has {weights} elements at {T} and {2 * T} tokens")
    least = 12 * B * H * T * T * D  # two products forward, four backward, 2·T·T·D each
    require(flops == [least, 4 * least], f"attention takes {flops} operations, and {[least, 4 * least]} are right")


def composition() -> None:
    """A score of the first layer is about two tokens; a score of the second is about what these two have read."""
    layer = Chain({"one": MultiHead(C, H), "two": MultiHead(C, H)})
    p, a, seen = drawn(layer), a_of(), []
    moved = a.clone()
    moved[:, 1] += 1.0  # token 1; the score looked at is that of tokens 4 and 2
    for x in (a, moved):
        w = Watch(("one.raw", "two.raw"))
        layer.forward(p.tree, x, Run(signals=w))
        seen.append([w[name][:, :, 4, 2] for name in ("one.raw", "two.raw")])
    require(torch.equal(seen[0][0], seen[1][0]), "a score of the first layer depends on a third token")
    require(off(seen[1][1], seen[0][1]) > 1e-3, "a score of the second layer does not depend on a third token")


def in_steps(layer: Layer, p: Buffer, a: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, KVCache]:
    """The same input in pieces, each after what the cache has kept."""
    cache, pieces = KVCache(a.shape[1]), []
    for piece in a.split(list(sizes), 1):
        pieces.append(layer.forward(p.tree, piece, Run(cache=cache, position=cache.length))[0])
    return torch.cat(pieces, 1), cache


def kv_cache() -> None:
    """Token by token, or in chunks, with the keys and values of earlier tokens kept: the same as the full pass."""
    for layer in (
        Head(C, D, 11),
        MultiHead(C, H, kv_heads=1),
        MultiHead(C, H, mask=Window(3)),
        HeadwiseAttention((Head(C, 7, 3), Head(C, 2, 11))),
    ):
        p, a = drawn(layer), a_of(tokens=8)
        full = layer.forward(p.tree, a, Run())[0]
        for sizes in ((1,) * 8, (5, 3), (2, 1, 5)):
            same(in_steps(layer, p, a, sizes)[0], full, f"{type(layer).__name__} in pieces of {sizes}")


def qv_cache() -> None:
    """Mirror attention token by token with queries and values kept: the same as the full pass; keys are not kept."""
    head = Head(C, D, 11)
    p, a = drawn(head), a_of(tokens=8)
    full = Mirror(head).forward(p.tree, a, Run())[0]
    for sizes in ((1,) * 8, (5, 3)):
        stepped, cache = in_steps(Mirror(head), p, a, sizes)
        same(stepped, full, f"mirror attention in pieces of {sizes}")
    same(cache.layers[""].k[:, 0], a @ p["query.w"] + p["query.b"], "what a QV cache keeps beside the values")
    require(off(full, head.forward(p.tree, a, Run())[0]) > 0.1, "mirror attention is no other than attention")


def cache_bytes() -> None:
    """2 · layers · tokens · kv heads · d_h · bytes a number, for each sample."""
    for kv_heads in (1, 2, 4):
        layer = Chain({str(i): MultiHead(4 * D, 4, kv_heads=kv_heads) for i in range(3)})
        _, cache = in_steps(layer, drawn(layer), a_of(4 * D), (2, 3))
        right = B * 2 * 3 * T * kv_heads * D * 8
        require(cache.nbytes == right, f"the cache takes {cache.nbytes} bytes, and {right} are right")


def sum_of_heads() -> None:
    """concat_h(a_h) w_o = Σ_h ρ_h (a V_h) where V_h = w_v^h w_o^h, outputs and errors below."""
    narrow = tuple(Head(C, d_rho, d_h, value_bias=False) for d_rho, d_h in ((7, 3), (2, 11)))
    concat, added = (
        HeadwiseAttention(narrow, bias=False),
        headwise.sum_of_heads(tuple(replace(h, d_h=C) for h in narrow)),
    )
    p, full, row = drawn(concat), drawn(added), 0
    for h, head in enumerate(narrow):
        for name in ("query.w", "query.b", "key.w", "key.b"):
            full[f"{h}.{name}"] = p[f"heads.{h}.{name}"]
        full[f"{h}.value.w"] = p[f"heads.{h}.value.w"] @ p["out.w"][row : row + head.d_h]
        row += head.d_h
    a = a_of()
    for found, right, what in zip(
        there_and_back(added, full, a), there_and_back(concat, p, a), ("output", "error below"), strict=True
    ):
        same(found, right, f"the sum of heads: its {what}")


def equal_heads() -> None:
    """Heads of equal width, one by one, are the packed layer: outputs, errors and all gradients, block by block."""
    packed, single = MultiHead(C, H), HeadwiseAttention((Head(C, D, D),) * H)
    p, q, a = drawn(packed), drawn(single), a_of()
    move(p, q)
    y, saved = packed.forward(p.tree, a, Run())
    y_single, saved_single = single.forward(q.tree, a, Run())
    same(y_single, y, "heads one by one")
    Delta, g, g_single = normal(y.shape, 2, "Delta"), p.layout.zeros(torch.float64), q.layout.zeros(torch.float64)
    below = packed.backward(p.tree, Delta, saved, Accumulate(g.tree), Run())
    below_single = single.backward(q.tree, Delta, saved_single, Accumulate(g_single.tree), Run())
    same(below_single, below, "the error below heads one by one")
    g["key.b"].zero_()
    turned = q.layout.zeros(torch.float64)
    move(g, turned)
    for name in turned:
        if not name.endswith("key.b"):
            same(g_single[name], turned[name], f"the gradient of {name}")


def move(packed: Buffer, single: Buffer) -> None:
    """Columns of the packed matrices to their heads."""
    for h in range(H):
        mine = slice(h * D, (h + 1) * D)
        for branch in ("query", "key", "value"):
            single[f"heads.{h}.{branch}.w"] = packed[f"{branch}.w"][:, mine]
            single[f"heads.{h}.{branch}.b"] = packed[f"{branch}.b"][mine]
    single["out.w"], single["out.b"] = packed["out.w"], packed["out.b"]


def exact_split() -> None:
    """The named parts of a block's error add up to the whole, and so do the gradients: pre-norm, post-norm."""
    attention, unequal = MultiHead(C, H), HeadwiseAttention((Head(C, 7, 3), Head(C, 2, 11)))
    inner = mlp(C, 13, GELU_TANH, True, 0.1, 0.1)
    blocks = (
        pre_norm(LayerNorm(C), attention, LayerNorm(C), inner),
        pre_norm(LayerNorm(C), unequal, LayerNorm(C), inner),
        pre_norm(LayerNorm(C), MultiHead(C, H, kv_heads=1), LayerNorm(C), inner),
        post_norm(attention, LayerNorm(C), inner, LayerNorm(C)),
    )
    for block, heads in zip(blocks, (H, 2, H, H), strict=True):
        p, a, Delta = drawn(block), a_of(), normal((B, T, C), 2, "Delta")
        whole, gradient = down(block, p, a, Delta, Run())
        parts, gradients = split(block, p, a, Delta)
        require(len(parts) == 2 + 3 * heads, f"{len(parts)} parts: {', '.join(parts)}")
        require(all(bool(part.any()) for part in parts.values()), "a part is 0, so nothing is split")
        same(total(parts), whole, "the sum of all parts")
        same(total(gradients), gradient.flat, "the sum of all parts' gradients")
        for axis in (0, 1):
            same(sum(g.flat for g in by(block, p, a, Delta, axis)), gradient.flat, f"the sum along axis {axis}")
