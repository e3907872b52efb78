"""The worked examples of docs/rules/attend.md and docs/rules/heads.md: every number there is asserted here."""

from __future__ import annotations

from math import log

import pytest
import torch

import handgrad as hg
from handgrad.core import Accumulate, Chain, Residual, Run, Watch
from handgrad.core.errors import ConfigError, ShapeError
from handgrad.layers.head import Head
from handgrad.layers.headwise import HeadwiseAttention, sum_of_heads
from handgrad.layers.mask import CAUSAL, EVERYONE, And, BlockSparse, KeyPadding, Window
from handgrad.layers.multihead import MultiHead
from handgrad.layers.temperature import Temperature
from handgrad.rules import attend, group, temperature

L = log(3)
q = [[1, 0, 0, 0], [2 * L, 0, 0, 0]]
k = [[1, 0, 0, 0], [0, 1, 0, 0]]
v = [[4, 0], [0, 8]]
Delta = [[1, 0], [1, 1]]
nothing = [0, 0, 0, 0]


def f64(x):
    return torch.tensor(x, dtype=torch.float64)


def one(x):
    """(T, D) -> (1, 1, T, D)."""
    return f64(x)[None, None]


def close(found, right, tolerance=1e-14):
    right = f64(right)
    assert found.shape == right.shape, (found.shape, right.shape)
    assert (found - right).abs().max() <= tolerance, found


def attended(allowed, q=q):
    w = Watch(("*",))
    out, saved = attend.forward(one(q), one(k), one(v), allowed, Run(signals=w))
    below = attend.backward(one(Delta), saved, Run(signals=w))
    return out[0, 0], [D[0, 0] for D in below], {name: x[0, 0] for name, x in w.items()}


def test_one_head_step_by_step():
    out, (Delta_q, Delta_k, Delta_v), w = attended(CAUSAL(2, 2, 0))
    close(w["raw"], [[1, 0], [2 * L, 0]])
    close(w["scaled"], [[0.5, 0], [L, 0]])
    close(w["rho"], [[1, 0], [3 / 4, 1 / 4]])
    close(out, [[4, 0], [3, 2]])
    close(Delta_v, [[1.75, 0.75], [0.25, 0.25]])
    close(w["Delta_rho"], [[4, 0], [4, 8]])
    close((w["Delta_rho"] * w["rho"]).sum(-1), [4, 5])
    close((f64(Delta) * out).sum(-1), [4, 5])
    close(w["Delta_causal"], [[0, 0], [-3 / 4, 3 / 4]])
    close(w["Delta_raw"], [[0, 0], [-3 / 8, 3 / 8]])
    close(Delta_q, [nothing, [-3 / 8, 3 / 8, 0, 0]])
    close(Delta_k, [[-0.75 * L, 0, 0, 0], [0.75 * L, 0, 0, 0]])
    close(Delta_k.sum(0), nothing)  # the gradient of the keys' offset


def test_the_same_without_a_mask():
    out, _, w = attended(EVERYONE(2, 2, 0))
    weight = 1 / (1 + torch.tensor(-0.5, dtype=torch.float64).exp())
    close(w["rho"], [[float(weight), 1 - float(weight)], [3 / 4, 1 / 4]])
    assert float(weight) == pytest.approx(0.6225, abs=5e-5)
    close(out[1], [3, 2])


def test_temperature_one_half():
    cooled, saved = temperature.forward(one(q), f64([0.5]))
    out, (Delta_q, _, _), w = attended(CAUSAL(2, 2, 0), cooled[0, 0].tolist())
    close(w["scaled"], [[1, 0], [2 * L, 0]])
    close(w["rho"], [[1, 0], [0.9, 0.1]])
    close(out, [[4, 0], [3.6, 0.8]])
    close(w["Delta_causal"], [[0, 0], [-0.36, 0.36]])
    g = {"tau": torch.zeros(1, dtype=torch.float64)}
    below = temperature.backward(Delta_q[None, None], saved, f64([0.5]), Accumulate(g))
    close(Delta_q[1], [-0.18, 0.18, 0, 0])
    close(below[0, 0, 1], [-0.36, 0.36, 0, 0])
    close(g["tau"], [1.44 * L])
    assert float(g["tau"]) == pytest.approx(1.5820, abs=5e-5)


def test_windows_and_a_fully_masked_row():
    out, below, w = attended(Window(1)(2, 2, 0))
    close(w["rho"], [[1, 0], [0, 1]])
    close(out, [[4, 0], [0, 8]])
    close(below[0], [nothing, nothing])
    close(below[2], Delta)
    out, below, w = attended(torch.tensor([[True, False], [False, False]]))
    close(w["rho"], [[1, 0], [0, 0]])
    close(out, [[4, 0], [0, 0]])
    close(below[2], [[1, 0], [0, 0]])


A = [[1, 0, 1], [0, 1, 1]]
WEIGHTS = {"query.w": [*q, nothing], "key.w": [*k, nothing], "value.w": [*v, [0, 0]]}
W_O = [[1, 0, 2], [0, 1, 1]]


def test_three_branches_meet_at_the_input():
    head = Head(3, 4, 2, False, False, False)
    p = hg.Layout(head.slots()).zeros(torch.float64)
    for name, w in WEIGHTS.items():
        p[name] = f64(w)
    g, signals = p.layout.zeros(torch.float64), Watch(("*",))
    out, saved = head.forward(p.tree, f64(A)[None], Run(signals=signals))
    close(out[0], [[4, 0], [3, 2]])
    below = head.backward(p.tree, f64(Delta)[None], saved, Accumulate(g.tree), Run(signals=signals))
    close(signals["Delta_from_query"][0], [[0, 0, 0], [-3 / 8, -0.75 * L, 0]])
    close(signals["Delta_from_key"][0], [[-0.75 * L, 0, 0], [0.75 * L, 0, 0]])
    close(signals["Delta_from_value"][0], [[7, 6, 0], [1, 2, 0]])
    close(below[0], [[7 - 0.75 * L, 6, 0], [5 / 8 + 0.75 * L, 2 - 0.75 * L, 0]])
    close(g["query.w"], [nothing, [-3 / 8, 3 / 8, 0, 0], [-3 / 8, 3 / 8, 0, 0]])
    close(g["value.w"], [[1.75, 0.75], [0.25, 0.25], [2, 1]])


def test_a_residual_head_split_by_hand():
    layer = Residual("out", Chain({"attention": HeadwiseAttention((Head(3, 4, 2, False, False, False),), bias=False)}))
    p = hg.Layout(layer.slots()).zeros(torch.float64)
    for name, w in WEIGHTS.items():
        p[f"attention.heads.0.{name}"] = f64(w)
    p["attention.out.w"] = f64(W_O)
    a, Delta_out = f64(A)[None], f64([[1, 0, 0], [1, 1, 0]])[None]
    y, saved = layer.forward(p.tree, a, Run())
    close(y[0], [[5, 0, 9], [3, 3, 9]])  # a + (4, 0) w_o and a + (3, 2) w_o
    g = p.layout.zeros(torch.float64)
    signals = Watch(("*",))
    below = layer.backward(p.tree, Delta_out, saved, Accumulate(g.tree), Run(signals=signals))
    close(signals["attention.Delta_concat"][0], Delta)  # by columns: Δ_1 = (1, 1), Δ_2 = (0, 1)
    close(below[0], [[8 - 0.75 * L, 6, 0], [13 / 8 + 0.75 * L, 3 - 0.75 * L, 0]])
    close(g["attention.out.w"], [[7, 3, 0], [2, 2, 0]])  # concatᵗ Δ'

    from handgrad.who.split import split

    parts, _ = split(hg.Sequence((layer,)), p, a, Delta_out)
    assert list(parts) == ["skip", *(f"attention.heads.0.0.{n}" for n in ("query", "key", "value"))]
    close(parts["attention.heads.0.0.value"][0], [[7, 6, 0], [1, 2, 0]])
    close(sum(parts.values())[0], below[0].tolist())


def test_groups_by_hand():
    shared, saved = group.forward(f64([[[[1, 2]], [[3, 4]]]]), 2, Run())
    close(shared[0, :, 0], [[1, 2], [1, 2], [3, 4], [3, 4]])
    below = group.backward(f64([[[[1, 0]], [[10, 1]], [[2, 5]], [[4, 4]]]]), saved, Run())
    close(below[0, :, 0], [[11, 1], [6, 9]])


def test_mask_polarity_true_may_attend_of_case_a03():
    only_first = torch.tensor([[True, False], [True, False]])
    out, _, _ = attended(only_first)
    close(out, [[4, 0], [4, 0]])


@pytest.mark.parametrize("mask", [torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[1, 0], [1, 1]])])
def test_a_mask_of_zeros_and_ones_is_refused_in_case_a03(mask):
    with pytest.raises(ShapeError, match=rf"must be bool, True = may attend; found {mask.dtype}.*mask == 1"):
        attended(mask)
    with pytest.raises(ShapeError, match="must be bool"):
        KeyPadding(mask)


def test_masks_by_hand():
    tokens = KeyPadding(torch.tensor([[False, True, True, True], [True, True, True, False]]))
    both = And((Window(2), EVERYONE, tokens))(3, 4, 1)
    assert both.shape == (2, 1, 3, 4)
    assert both[0, 0].int().tolist() == [[0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert both[1, 0].int().tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]]
    assert And((EVERYONE,))(3, 4, 1) is None
    diagonal = BlockSparse(((True, False), (False, True)), 2)
    assert diagonal(3, 4, 1).int().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    padded = Window(2)(3, 3, torch.tensor([-2, 0]))
    assert padded[0, 0].int().tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert padded[1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert EVERYONE(3, 3, torch.tensor([-1]))[0, 0].int().tolist() == [[0, 1, 1]]
    blocks = diagonal(2, 4, torch.tensor([0, 1]))  # two keys of padding before the first sample, one before the second
    assert blocks[0, 0].int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert blocks[1, 0].int().tolist() == [[0, 1, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "a window of 0 tokens"),
        (lambda: BlockSparse(((True,), (True,)), 2), r"found 2 rows of lengths \[1\] and size 2"),
        (lambda: BlockSparse(((True,),), 2)(3, 3, 0), "covers 2 tokens, and position 2 was asked for"),
        (lambda: KeyPadding(torch.ones(1, 2).bool())(3, 3, 0), "tells of 2 keys, and there are 3"),
        (lambda: Temperature(0.0), "a temperature of 0 cannot divide"),
        (lambda: Temperature(float("nan")), "a temperature of nan"),
        (lambda: MultiHead(10, 3), "a width of 10 cannot be cut into 3 heads"),
        (lambda: MultiHead(12, 4, kv_heads=3), "4 query heads cannot share 3 key and value heads"),
        (lambda: MultiHead(12, 4, kv_heads=-1), "4 query heads cannot share -1"),
        (lambda: MultiHead(12, 4, kv_heads=8), "4 query heads cannot share 8"),
        (lambda: HeadwiseAttention(()), "at least one head"),
        (lambda: HeadwiseAttention((Head(6, 2, 2), Head(5, 2, 2))), r"expect widths \[5, 6\]"),
        (lambda: sum_of_heads((Head(6, 2, 6), Head(6, 2, 3))), "as wide as the stream, 6; found d_h = 3"),
    ],
)
def test_what_cannot_be_is_refused_with_its_numbers(make, message):
    with pytest.raises((ConfigError, ShapeError), match=message):
        make()


def test_cross_attention_refuses_a_width_that_cannot_be_cut():
    from handgrad.layers.cross import CrossAttention

    with pytest.raises(ConfigError, match="a width of 10 cannot be cut into 3 heads"):
        CrossAttention(10, 4, 3)
