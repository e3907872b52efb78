"""Laws of attention: symmetry, causality, caches, padding, the exact split; and that each check can fail."""

from __future__ import annotations

import pytest
import torch

import handgrad as hg
from handgrad.check import numeric_attention as numeric
from handgrad.check.case import B, C, D, H, T
from handgrad.check.plant import Mistake, planted
from handgrad.check.report import LawBroken
from handgrad.core import Accumulate, Run, combine
from handgrad.core.errors import ConfigError
from handgrad.generate.cache import KVCache
from handgrad.layers import headwise, mask, mirror, multihead
from handgrad.layers.cross import CrossAttention
from handgrad.layers.head import Head
from handgrad.layers.mask import CAUSAL, EVERYONE, KeyPadding, Window
from handgrad.layers.multihead import MultiHead
from handgrad.rules import attend
from handgrad.who.block import split_in_model
from handgrad.who.split import total

CHECKS = [
    numeric.permutation_equivariance,
    numeric.permutation_invariance,
    numeric.shift_invariance,
    numeric.row_sums,
    numeric.quadratic_cost,
    numeric.composition,
    numeric.kv_cache,
    numeric.qv_cache,
    numeric.cache_bytes,
    numeric.sum_of_heads,
    numeric.equal_heads,
    numeric.exact_split,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_check(check):
    check()


EVERY = "return None"
BREAKS = [
    (numeric.permutation_equivariance, mask.Everyone.__call__, EVERY, "return CAUSAL(n_queries, n_keys, first)"),
    (numeric.permutation_equivariance, mask.Causal.__call__, "n_keys, first, str", "n_keys, first + 99, str"),
    (numeric.permutation_invariance, mask.Everyone.__call__, EVERY, "return CAUSAL(n_queries, n_keys, first)"),
    (numeric.permutation_invariance, mask.Causal.__call__, "n_keys, first, str", "n_keys, first + 99, str"),
    (numeric.shift_invariance, attend.softmax, "return causal.softmax(-1)", "return causal.sigmoid()"),
    (numeric.shift_invariance, attend.backward, "rho * (Delta_rho - along_rho)", "rho * Delta_rho"),
    (numeric.row_sums, attend.backward, "Delta @ v.mT", "2 * Delta @ v.mT"),
    (numeric.quadratic_cost, attend.backward, "Delta_raw.mT @ q", "Delta_raw.mT @ (rho @ k)"),
    (numeric.composition, attend.forward, "product(q, k.mT)", "product(q + k.sum(-2, keepdim=True), k.mT)"),
    (numeric.composition, multihead.MultiHead.forward, "joined(heads)", "0 * joined(heads)"),
    (numeric.kv_cache, mask.Window.__call__, "query - self.width", "query - self.width - first"),
    (numeric.kv_cache, mask.Causal.__call__, "n_keys, first, str", "n_keys, 0, str"),
    (numeric.qv_cache, mirror.Mirror.forward, "q, v = run.cache.extend(run.path, q, v)", "q, v = q, v"),
    (numeric.qv_cache, mirror.Mirror.forward, "ATTEND.forward(k, q, v", "ATTEND.forward(q, k, v"),
    (numeric.cache_bytes, KVCache.room, "self.capacity", "2 * self.capacity"),
    (numeric.sum_of_heads, headwise.HeadwiseAttention.forward, "cat(outputs, -1)", "cat(outputs, -1).flip(-1)"),
    (numeric.equal_heads, multihead.cut, "(-1, d_h)).transpose(-3, -2)", "(d_h, -1)).movedim(-1, -3)"),
    (numeric.exact_split, combine.Residual.backward, "Delta + self.f", "2 * Delta + self.f"),
    (numeric.exact_split, attend.backward, "Delta_raw.mT @ q", "Delta_raw.mT @ q + 1"),
    (numeric.exact_split, Accumulate.total, "g += Delta", "g += Delta.abs()"),
]


@pytest.mark.parametrize(("check", "function", "line", "wrong"), BREAKS)
def test_each_check_can_fail(check, function, line, wrong):
    with planted(Mistake("for this test", function, line, wrong, "", "")), pytest.raises((LawBroken, RuntimeError)):
        check()


def test_every_check_is_broken_once():
    assert {broken[0] for broken in BREAKS} == set(CHECKS)


def test_causality_both_ways_token_by_token():
    head = Head(C, D, 11)
    p, a = numeric.drawn(head), numeric.a_of()
    y = head.forward(p.tree, a, Run())[0]
    for t in range(T):
        moved = a.clone()
        moved[:, t] += 1
        changed = (head.forward(p.tree, moved, Run())[0] != y).any(-1).any(0)
        assert changed.tolist() == [s >= t for s in range(T)]  # up: from t on
        Delta = torch.zeros_like(y)
        Delta[:, t] = 1
        saved = head.forward(p.tree, a, Run())[1]
        below = head.backward(p.tree, Delta, saved, Accumulate({}), Run())
        assert below.ne(0).any(-1).any(0).tolist() == [s <= t for s in range(T)]  # down: up to t


def gpt(context=13, **more):
    config = hg.GPT2Config(vocabulary=11, context=context, n_layers=2, n_heads=3, d_model=21, d_mlp=13, **more)
    model = hg.build(config, seed=1, dtype=torch.float64)
    noise = torch.Generator().manual_seed(2)
    for w in model.params.values():
        w.add_(0.3 * torch.randn(w.shape, generator=noise, dtype=torch.float64))
    return model


ids = torch.tensor([[0, 0, 3, 1, 4], [5, 9, 2, 6, 5]])  # the first sample has three tokens and two of padding
pads = torch.tensor([2, 0])


def test_left_padded_prompts_give_the_logits_of_each_alone_in_case_a04():
    model = gpt()
    together = model(ids, Run(position=-pads))
    assert (together[:1, 2:] - model(ids[:1, 2:])).abs().max() < 1e-10
    assert (together[1:] - model(ids[1:])).abs().max() < 1e-10
    assert (together[:1, 2:] - model(ids)[:1, 2:]).abs().max() > 1e-3  # positions that count padding are another run
    other_padding = ids.clone()
    other_padding[0, :2] = 7
    assert torch.equal(model(other_padding, Run(position=-pads))[:, 2:], together[:, 2:])


def test_left_padded_prompts_go_on_with_a_cache():
    model, cache = gpt(), KVCache(8)
    new = torch.tensor([[1, 2, 3], [4, 5, 6]])
    model(ids, Run(cache=cache, position=-pads))
    first = model(new[:, :1], Run(cache=cache, position=cache.length - pads))
    rest = model(new[:, 1:], Run(cache=cache, position=cache.length - pads))
    stepped = torch.cat([first, rest], 1)
    for b in range(2):
        alone = model(torch.cat([ids[b : b + 1, pads[b] :], new[b : b + 1]], 1))[:, -3:]
        assert (stepped[b : b + 1] - alone).abs().max() < 1e-10


def test_padding_adds_nothing_to_loss_and_gradient():
    model = gpt()
    targets = torch.tensor([[-1, -1, 1, 4, 7], [9, 2, 6, 5, 3]])
    loss = float(model.loss(ids, targets, run=Run(position=-pads)))
    together = model.backward().flat
    losses, gradients = [], []
    for b in range(2):
        losses.append(float(model.loss(ids[b : b + 1, pads[b] :], targets[b : b + 1, pads[b] :], n_valid=8)))
        gradients.append(model.backward().flat)
    assert loss == pytest.approx(sum(losses), rel=1e-12)
    assert (together - sum(gradients)).norm() <= 1e-12 * together.norm()


def test_positions_beyond_the_context_are_refused_for_any_row():
    with pytest.raises(hg.core.errors.ShapeError, match="6 tokens do not fit the context of 5"):
        gpt(context=5)(ids, Run(position=torch.tensor([0, 1])))


def test_key_padding_is_the_same_as_leaving_the_keys_out():
    valid = torch.tensor([[True, True, False, True, False]]).expand(B, T)
    layer = MultiHead(C, H, mask=KeyPadding(valid))
    p, a = numeric.drawn(layer), numeric.a_of()
    kept = MultiHead(C, H, mask=EVERYONE).forward(p.tree, a[:, [0, 1, 3]], Run())[0]
    assert (layer.forward(p.tree, a, Run())[0][:, [0, 1, 3]] - kept).abs().max() < 1e-14


@pytest.mark.parametrize("width", [1, 3])
def test_a_window_with_a_cache_is_the_full_pass_at_every_step_in_case_a07(width):
    layer = MultiHead(C, H, mask=Window(width))
    p, a, cache = numeric.drawn(layer), numeric.a_of(tokens=width + 5), KVCache(width + 5)
    for t in range(width + 5):
        step = layer.forward(p.tree, a[:, t : t + 1], Run(cache=cache, position=t))[0]
        full = layer.forward(p.tree, a[:, : t + 1], Run())[0][:, -1:]
        assert (step - full).abs().max() < 1e-13
    alone = layer.forward(p.tree, a[:, -width:], Run())[0][:, -1:]  # what lies before the window is not read
    assert (step - alone).abs().max() < 1e-13


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_chunk_after_a_cache_in_case_a05(size):
    layer = MultiHead(C, H, kv_heads=1)
    p, a = numeric.drawn(layer), numeric.a_of(tokens=13)
    sizes = (5, *([size] * (8 // size)), *([8 % size] if 8 % size else []))
    stepped, _ = numeric.in_steps(layer, p, a, sizes)
    assert (stepped - layer.forward(p.tree, a, Run())[0]).abs().max() < 1e-13
    assert CAUSAL(3, 8, 5)[0].tolist() == [True] * 6 + [False] * 2


def test_the_attention_map_is_there_when_asked_for_in_case_a15():
    model = gpt()
    before = model(ids)
    with hg.watch(model, "*.rho") as signals:
        watched = model(ids)
    assert list(signals) == ["blocks.0.attention.rho", "blocks.1.attention.rho"]
    assert (watched - before).abs().max() < 1e-12
    for rho in signals.values():
        assert rho.shape == (2, 3, 5, 5)
        assert (rho.sum(-1) - 1).abs().max() < 1e-14
        assert not rho.triu(1).any()


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_error_inside_a_model_splits_exactly(block, dropout):
    model = gpt(dropout=dropout)
    (parts, gradients), whole = split_in_model(model, ids, block)
    assert len(parts) == 2 + 3 * 3
    assert whole.norm() > 0
    assert (total(parts) - whole).norm() <= 1e-12 * whole.norm()
    model.loss(ids)
    gradient = model.backward()
    for name in gradients["mlp"]:
        right = gradient[f"blocks.{block}.{name}"]
        found = sum(part[name] for part in gradients.values())
        size = gradient.flat.norm() if name.endswith("key.b") else right.norm()
        assert (found - right).norm() <= 1e-12 * size, name


def test_a_split_of_what_is_no_block_is_refused():
    from handgrad.who.split import split

    layer = MultiHead(C, H)
    with pytest.raises(ConfigError, match="a split needs a sequence of residuals, and MultiHead is none"):
        split(layer, numeric.drawn(layer), numeric.a_of(), numeric.a_of())


def test_cross_attention_of_a_padded_sequence():
    pair = (numeric.a_of(C), numeric.a_of(C, tokens=3, seed=4))
    layer = CrossAttention(C, C, H)
    p = numeric.drawn(layer)
    padded = layer.forward(p.tree, pair, Run(position=-pads))[0]
    assert torch.equal(padded, layer.forward(p.tree, pair, Run())[0])
    with pytest.raises(hg.core.errors.ShapeError, match=r"cross attention under Causal.* cannot tell"):
        CrossAttention(C, C, H, mask=CAUSAL).forward(p.tree, pair, Run(position=-pads))
