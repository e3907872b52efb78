"""Closed-form cases that a reader can redo by hand, and the published values of the cases of other tools."""

import math

import pytest
import torch

import handgrad as hg
from handgrad.check.report import LawBroken
from handgrad.core import Accumulate, Run
from handgrad.rules import attend, crossentropy, embed, gelu, layernorm, linear, relu


def close(found, right, tolerance=1e-8):
    right = torch.as_tensor(right, dtype=torch.float64)
    assert found.shape == right.shape
    assert (found - right).abs().max() <= tolerance, found


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def zeros(**shapes):
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}


def test_linear_two_tokens_by_hand():
    a, w, b = f64([1, 2], [3, 4]), f64([1, 0, 2], [0, 1, 1]), f64(1, 1, 1)[:]
    y, saved = linear.forward(a, w, b.flatten())
    close(y, [[2, 3, 5], [4, 5, 11]], 0)
    g = zeros(w=(2, 3), b=(3,))
    below = linear.backward(f64([1, 0, 1], [0, 1, 0]), saved, w, Accumulate(g))
    close(below, [[3, 1], [0, 1]], 0)
    close(g["w"], [[1, 3, 1], [2, 4, 2]], 0)
    close(g["b"], [1, 1, 1], 0)


def test_layer_norm_values_of_case_n01_and_n02():
    a = f64([1, 2, 3, 4])
    ones, none = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    y, saved = layernorm.forward(a, ones, none, 1e-5, Run())
    close(y, [[-1.34163542, -0.44721181, 0.44721181, 1.34163542]])
    g = zeros(gamma=(4,), beta=(4,))
    below = layernorm.backward(f64([1, 0, 0, 0]), saved, ones, Accumulate(g), Run())
    close(below, [[0.26833030, -0.35776837, -0.08944343, 0.17888150]])
    assert abs(below.sum()) < 1e-12


def test_layer_norm_error_is_orthogonal_to_one_and_x_at_epsilon_zero():
    a, gamma, Delta = torch.randn(3, 7).double(), torch.randn(7).double(), torch.randn(3, 7).double()
    _, saved = layernorm.forward(a, gamma, None, 0.0, Run())
    below = layernorm.backward(Delta, saved, gamma, Accumulate({}), Run())
    assert below.sum(-1).abs().max() < 1e-13
    assert (below * saved.x).sum(-1).abs().max() < 1e-13
    assert below.norm() > 0.1


def test_gelu_forms_of_case_n08():
    one = f64([1.0])
    close(gelu.tanh_forward(one, Run())[0], [[0.8411919906]], 1e-10)
    close(gelu.erf_forward(one, Run())[0], [[0.8413447461]], 1e-10)
    x = torch.linspace(-5, 5, 100_001, dtype=torch.float64)
    gap = (gelu.tanh_forward(x, Run())[0] - gelu.erf_forward(x, Run())[0]).abs()
    assert gap.max() == pytest.approx(4.732e-4, rel=1e-3)
    assert x[gap.argmax()].abs() == pytest.approx(2.699, abs=2e-3)
    slopes = [
        backward(torch.ones_like(x), forward(x, Run())[1], Run())
        for forward, backward in ((gelu.tanh_forward, gelu.tanh_backward), (gelu.erf_forward, gelu.erf_backward))
    ]
    assert (slopes[0] - slopes[1]).abs().max() == pytest.approx(8.685e-4, rel=1e-3)


def test_relu_by_hand():
    y, saved = relu.forward(f64([-1, 0, 2]), Run())
    close(y, [[0, 0, 2]], 0)
    close(relu.backward(f64([5, 6, 7]), saved, Run()), [[0, 0, 7]], 0)


def test_repeated_tokens_add_in_case_w02():
    ids, Delta = torch.tensor([[1, 1, 1]]), f64([1, 10], [2, 20], [3, 30])[None]
    g = zeros(w_emb=(4, 2))
    embed.backward("w_emb", Delta, embed.Saved(ids), Accumulate(g))
    close(g["w_emb"], [[0, 0], [6, 60], [0, 0], [0, 0]], 0)


def test_attention_of_two_tokens_by_hand():
    # raw = [[0, -], [0, 0]]: the second token's weights are equal, 1/2 each
    q, k, v = torch.zeros(1, 1, 2, 4).double(), torch.ones(1, 1, 2, 4).double(), f64([2, 0], [0, 4])[None, None]
    out, saved = attend.forward(q, k, v, torch.tensor([[True, False], [True, True]]), Run())
    close(out[0, 0], [[2, 0], [1, 2]], 1e-15)
    Delta_q, Delta_k, Delta_v = attend.backward(f64([0, 0], [1, 1])[None, None], saved, Run())
    # Δ_ρ = [2, 4] in row 2, rowsum(Δ_ρ ∘ ρ) = 3, Δ_causal = [-1/2, 1/2], Δ_raw = [-1/4, 1/4]
    close(Delta_q[0, 0], [[0] * 4, [0] * 4], 1e-15)  # the keys are equal, so their weighted difference is 0
    close(Delta_k[0, 0], [[0] * 4, [0] * 4], 1e-15)  # the queries are 0
    close(Delta_v[0, 0], [[0.5, 0.5], [0.5, 0.5]], 1e-15)


def test_every_row_of_delta_raw_sums_to_zero():
    q, k, v, Delta = (torch.randn(2, 3, 5, 7).double() for _ in range(4))
    w = hg.core.Watch(("Delta_raw",))
    _, saved = attend.forward(q, k, v, None, Run())
    attend.backward(Delta, saved, Run(signals=w))
    assert w["Delta_raw"].norm() > 0.1
    assert w["Delta_raw"].sum(-1).abs().max() < 1e-14


def test_masked_rows_of_case_a01_are_finite_and_contribute_nothing():
    allowed = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
    q, k, v = (torch.randn(1, 1, 3, 5).double() for _ in range(3))
    Delta = torch.randn(1, 1, 3, 5).double()
    out, saved = attend.forward(q, k, v, allowed, Run())
    with_row = attend.backward(Delta, saved, Run())
    Delta[:, :, 2] = 0
    without = attend.backward(Delta, saved, Run())
    assert not out[0, 0, 2].any()
    assert all(torch.isfinite(D).all() for D in with_row)
    assert all(map(torch.equal, with_row, without))


def loss_of(logits, y, n=None):
    valid = y >= 0
    n = int(valid.sum()) if n is None else n
    loss, saved = crossentropy.forward(logits, y, valid, n, Run())
    return loss, crossentropy.backward(torch.ones((), dtype=logits.dtype), saved, Run())


def test_cross_entropy_values_of_case_l02():
    loss, Delta = loss_of(f64([2, 0, -1], [0.5, 1.5, 0], [3, -2, 1]), torch.tensor([0, 1, -100]))
    close(loss, 0.3171074018, 1e-10)
    close(Delta[0], [-0.0781026328, 0.0570975997, 0.0210050331], 1e-10)
    assert not Delta[2].any()


def test_no_target_at_all_gives_zero_in_case_l01():
    loss, Delta = loss_of(torch.randn(4, 5).double(), torch.full((4,), -100))
    assert float(loss) == 0.0
    assert not Delta.any()


def test_no_target_and_broken_logits_still_give_zero():
    loss, Delta = loss_of(torch.full((2, 3), math.nan).double(), torch.full((2,), -1))
    assert float(loss) == 0.0
    assert not Delta.any()


def test_large_logits_of_case_l09():
    loss, Delta = loss_of(f64([1000, 0]), torch.tensor([1]))
    assert float(loss) == 1000.0
    close(Delta, [[1, -1]], 0)


def test_a_vocabulary_column_at_minus_infinity_of_case_l10():
    loss, Delta = loss_of(f64([1, -math.inf, 2]), torch.tensor([0]))
    close(loss, math.log(1 + math.e), 1e-12)
    assert Delta[0, 1] == 0
    assert torch.isfinite(Delta).all()


def test_micro_batches_of_case_l04_add_up():
    # one token with loss 4, three with loss 1: 7/4, not the mean of means 2.5
    row = lambda nats: [0.0, math.log(math.expm1(nats))]  # noqa: E731
    A, B = f64(row(4)), f64(row(1), row(1), row(1))
    ya, yb = torch.zeros(1, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    (loss_a, Delta_a), (loss_b, Delta_b) = loss_of(A, ya, 4), loss_of(B, yb, 4)
    loss, Delta = loss_of(torch.cat([A, B]), torch.cat([ya, yb]))
    close(loss_a + loss_b, 1.75, 1e-12)
    close(loss, 1.75, 1e-12)
    close(torch.cat([Delta_a, Delta_b]), Delta, 1e-15)


def test_shifting_the_queries_bias_matters_and_the_keys_does_not():
    model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=3, d_model=21), 1, torch.float64)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    before = model(tokens)
    model.params["blocks.0.attention.key.b"].add_(0.7)
    close(model(tokens), before, 1e-14)
    model.params["blocks.0.attention.query.b"].add_(0.7)
    assert (model(tokens) - before).abs().max() > 1e-6


def test_helper_close_can_fail():
    with pytest.raises(AssertionError):
        close(f64(1.0), [1.1])
    assert issubclass(LawBroken, AssertionError)
