"""Norms, activations, gates, low-rank updates by hand: the numbers of docs/rules, and computations that can fail."""

import math

import pytest
import torch

import handgrad as hg
from handgrad.check import numeric_gates as numeric
from handgrad.check.plant import Mistake, planted
from handgrad.check.report import LawBroken
from handgrad.core import Accumulate, Layout, Run, combine
from handgrad.core.errors import ConfigError
from handgrad.layers.gated import geglu, swiglu
from handgrad.layers.linear import Linear
from handgrad.layers.lowrank import LowRank
from handgrad.layers.pointwise import ACTIVATIONS
from handgrad.rules import dropout, gelu, layernorm, linear, lowrank, relu, rmsnorm, sigmoid, silu, tanh


def close(found, right, tolerance=1e-8):
    right = torch.as_tensor(right, dtype=torch.float64)
    assert found.shape == right.shape
    assert (found - right).abs().max() <= tolerance, found


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_linear_of_the_docs():
    a, w, b = f64([1, 2, 0], [0, 1, 3]), f64([1, 0], [0, 1], [2, 1]), torch.tensor([1.0, -1.0]).double()
    y, saved = linear.forward(a, w, b)
    close(y, [[2, 1], [7, 3]], 0)
    g = {"w": torch.zeros(3, 2).double(), "b": torch.zeros(2).double()}
    below = linear.backward(f64([1, 0], [2, 1]), saved, w, Accumulate(g))
    close(below, [[1, 0, 2], [2, 1, 5]], 0)
    close(g["w"], [[1, 0], [4, 1], [6, 3]], 0)
    close(g["b"], [3, 1], 0)


def test_layer_norm_of_the_docs():
    a, gamma, beta = f64([1, 2, 3], [2, 2, 5]), torch.tensor([1.0, 2, 1]).double(), torch.tensor([0.0, 1, 0]).double()
    y, saved = layernorm.forward(a, gamma, beta, 0.0, Run())
    half = math.sqrt(1.5)
    close(saved.x, [[-half, 0, half], [-math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2)]], 1e-12)
    close(y, [[-1.22474487, 1, 1.22474487], [-0.70710678, -0.41421356, 1.41421356]])
    g = {"gamma": torch.zeros(3).double(), "beta": torch.zeros(3).double()}
    below = layernorm.backward(f64([1, 0, 0], [0, 1, 0]), saved, gamma, Accumulate(g), Run())
    # row 1: D = [1, 0, 0], mean 1/3, mean(D∘x) = -√1.5/3, σ = √(2/3);   row 2: D = [0, 2, 0], 2/3, -√2/3, σ = √2
    close(below, [[half / 6, -half / 3, half / 6], [-math.sqrt(0.5), math.sqrt(0.5), 0]], 1e-12)
    close(below, [[0.20412415, -0.40824829, 0.20412415], [-0.70710678, 0.70710678, 0]])
    close(g["gamma"], [-half, -math.sqrt(0.5), 0], 1e-12)
    close(g["beta"], [1, 1, 0], 0)


def test_rms_norm_of_the_docs():
    a, gamma = f64([2, 1, 2], [1, -1, 1]), torch.tensor([1.0, 2, 1]).double()
    y, saved = rmsnorm.forward(a, gamma, 0.0, Run())
    r = math.sqrt(3)
    close(saved.x, [[2 / r, 1 / r, 2 / r], [1, -1, 1]], 1e-12)
    close(y, [[2 / r, 2 / r, 2 / r], [1, -2, 1]], 1e-12)
    g = {"gamma": torch.zeros(3).double()}
    below = rmsnorm.backward(f64([3, 0, 0], [0, 3, 0]), saved, gamma, Accumulate(g), Run())
    # row 1: D = [3, 0, 0], mean(D∘x) = 2/√3, D - x∘… = [3 - 4/3, -2/3, -4/3];   row 2: D = [0, 6, 0], -2, [2, 4, 2]
    close(below, [[5 / (3 * r), -2 / (3 * r), -4 / (3 * r)], [2, 4, 2]], 1e-12)
    close(below[0], [0.96225045, -0.38490018, -0.76980036])
    close(g["gamma"], [6 / r, -3, 0], 1e-12)


def test_activations_of_the_docs():
    a, Delta = f64([-1, 0, 1], [-2, 0.5, 2]), torch.ones(2, 3).double()
    table = {
        (relu.forward, relu.backward): ([[0, 0, 1], [0, 0.5, 2]], [[0, 0, 1], [0, 1, 1]]),
        (sigmoid.forward, sigmoid.backward): (
            [[0.26894142, 0.5, 0.73105858], [0.11920292, 0.62245933, 0.88079708]],
            [[0.19661193, 0.25, 0.19661193], [0.10499359, 0.23500371, 0.10499359]],
        ),
        (tanh.forward, tanh.backward): (
            [[-0.76159416, 0, 0.76159416], [-0.96402758, 0.46211716, 0.96402758]],
            [[0.41997434, 1, 0.41997434], [0.07065082, 0.78644773, 0.07065082]],
        ),
        (silu.forward, silu.backward): (
            [[-0.26894142, 0, 0.73105858], [-0.23840584, 0.31122967, 1.76159416]],
            [[0.07232949, 0.5, 0.92767051], [-0.09078425, 0.73996119, 1.09078425]],
        ),
        (gelu.erf_forward, gelu.erf_backward): (
            [[-0.15865525, 0, 0.84134475], [-0.04550026, 0.34573123, 1.95449974]],
            [[-0.08331547, 0.5, 1.08331547], [-0.08523180, 0.86749513, 1.08523180]],
        ),
        (gelu.tanh_forward, gelu.tanh_backward): (
            [[-0.15880801, 0, 0.84119199], [-0.04540231, 0.34571401, 1.95459769]],
            [[-0.08296408, 0.5, 1.08296408], [-0.08609926, 0.86736990, 1.08609926]],
        ),
    }
    for (forward, backward), (right, slope) in table.items():
        y, saved = forward(a, Run())
        close(y, right)
        close(backward(Delta, saved, Run()), slope)
        close(backward(3 * Delta, saved, Run()), 3 * torch.tensor(slope, dtype=torch.float64), 3e-8)


def test_activations_are_known_by_name_and_build_a_model():
    assert set(ACTIVATIONS) == {"gelu_tanh", "gelu_erf", "relu", "silu", "tanh", "sigmoid"}
    model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6, activation="silu"))
    model.loss(torch.tensor([[1, 2, 3]]))
    assert all(bool(g.any()) for name, g in model.backward().items() if not name.endswith("key.b"))


def test_gate_of_the_docs():
    f = combine.Gate("gated", combine.Fork({"gate": Linear(2, 3, False), "up": Linear(2, 3, False)}))
    p = Layout(f.slots()).zeros(torch.float64)
    p["gate.w"].copy_(f64([1, 0, 1], [0, 1, 1]))
    p["up.w"].copy_(f64([2, 0, 0], [0, 0, 1]))
    y, saved = f.forward(p.tree, f64([1, 2], [3, 0]), Run())
    close(y, [[2, 0, 6], [18, 0, 0]], 0)  # [1, 2, 3]∘[2, 0, 2],   [3, 0, 3]∘[6, 0, 0]
    g = p.layout.zeros(torch.float64)
    below = f.backward(p.tree, f64([1, 1, 1], [1, 0, 0]), saved, Accumulate(g.tree), Run())
    # Δ_gate = Δ' ∘ up = [2, 0, 2], [6, 0, 0];   Δ_up = Δ' ∘ gate = [1, 2, 3], [3, 0, 0]
    close(below, [[4 + 2, 2 + 3], [6 + 6, 0]], 0)
    close(g["gate.w"], [[20, 0, 2], [4, 0, 4]], 0)
    close(g["up.w"], [[10, 2, 3], [2, 4, 6]], 0)


def test_gated_mlps_have_the_parameters_of_three_matrices():
    assert set(swiglu(6, 4).slots()) == {"gate.w", "up.w", "down.w"}
    assert set(geglu(6, 4, bias=True).slots()) == {f"{n}.{k}" for n in ("gate", "up", "down") for k in ("w", "b")}


def test_residual_of_the_docs():
    f = combine.Residual("h", combine.Chain({"f": Linear(3, 3, False)}))
    w = f64([0, 1, 0], [0, 0, 1], [1, 0, 0])  # moves feature i to i + 1
    tree = {"f": {"w": w}}
    y, saved = f.forward(tree, f64([1, 2, 3], [0, 0, 1]), Run())
    close(y, [[4, 3, 5], [1, 0, 1]], 0)
    below = f.backward(tree, f64([1, 0, 0], [0, 2, 0]), saved, Accumulate({}), Run())
    close(below, [[1, 0, 1], [2, 2, 0]], 0)


def test_dropout_of_the_docs():
    m = torch.tensor([[True, False, True], [True, True, True]])
    below = dropout.backward(f64([1, 2, 3], [4, 5, 6]), dropout.Saved(m, 0.25), Run())
    close(below, [[4 / 3, 0, 4], [16 / 3, 20 / 3, 8]], 1e-12)
    a = torch.ones(100, 100).double()
    y, saved = dropout.forward(a, 0.25, Run(seed=1))
    close(y, saved.m.double() / 0.75, 1e-15)
    assert saved.m.double().mean() == pytest.approx(0.75, abs=0.02)
    assert dropout.forward(a, 0.25, Run())[0] is a


def test_low_rank_of_the_docs():
    a, A, B = f64([1, 2, 0], [0, 1, 3]), f64([1], [0], [1]), f64([2, -1])
    y, saved = lowrank.forward(a, A, B, 2.0, Run())
    close(saved.low, [[1], [3]], 0)
    close(y, [[4, -2], [12, -6]], 0)
    g = {"A": torch.zeros(3, 1).double(), "B": torch.zeros(1, 2).double()}
    below = lowrank.backward(f64([1, 0], [0, 1]), saved, A, B, 2.0, Accumulate(g), Run())
    close(below, [[4, 0, 4], [-2, 0, -2]], 0)
    close(g["B"], [[2, 6]], 0)
    close(g["A"], [[4], [6], [-6]], 0)
    close(lowrank.merged(torch.zeros(3, 2).double(), A, B, 2.0), [[4, -2], [0, 0], [4, -2]], 0)


def test_a_frozen_base_changes_no_other_gradient():
    """Frozen means absent from the gradient's layout: everything else is as it was, and nothing is stored for it."""
    f = LowRank(Linear(7, 5), rank=2, alpha=3)
    p = Layout(f.slots()).draw(1, torch.float64)
    p["lora.B"].add_(0.3)
    a, Delta = torch.randn(2, 3, 7).double(), torch.randn(2, 3, 5).double()
    results = []
    for names in (set(p), {"lora.A", "lora.B"}):
        g = Layout({name: slot for name, slot in f.slots().items() if name in names}).zeros(torch.float64)
        _, saved = f.forward(p.tree, a, Run())
        results.append((f.backward(p.tree, Delta, saved, Accumulate(g.tree), Run()), g))
    (below, everything), (below_frozen, few) = results
    assert torch.equal(below, below_frozen)
    assert set(few) == {"lora.A", "lora.B"}
    assert all(torch.equal(few[name], everything[name]) and bool(few[name].any()) for name in few)
    assert everything["base.w"].any()


def test_low_rank_scale_of_case_p02():
    assert LowRank(Linear(8, 8), 8, 16).s == 2.0
    assert LowRank(Linear(8, 8), 4, 16, rslora=True).s == 8.0


def test_low_rank_dropout_of_case_p10():
    f = LowRank(Linear(7, 5), rank=2, alpha=3, dropout=0.5)
    p = Layout(f.slots()).draw(1, torch.float64)
    p["lora.B"].add_(0.3)
    a = torch.randn(2, 3, 7).double()
    base = a @ p["base.w"] + p["base.b"]
    one, two = (f.forward(p.tree, a, Run())[0] for _ in range(2))
    assert torch.equal(one, two)
    dropped = f.forward(p.tree, a, Run(seed=3))[0]
    assert (dropped - one).abs().max() > 1e-3
    p["lora.B"].zero_()
    close(f.forward(p.tree, a, Run(seed=3))[0], base, 1e-15)  # the base's input is never dropped


def test_low_rank_updates_that_cannot_be():
    for how, says in (
        ({"rank": 0, "alpha": 1}, "rank of a low-rank update is 0, and must be a whole number of at least 1"),
        ({"rank": 1.5, "alpha": 1}, "is 1.5, and must be a whole number"),
        ({"rank": 1, "alpha": 0}, "alpha of a low-rank update is 0, and must be a number above 0"),
        ({"rank": 1, "alpha": 1, "dropout": 1.0}, "dropout of a low-rank update is 1.0, and must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            LowRank(Linear(3, 3), **how)


CAN_FAIL = [
    (numeric.layer_norm_orthogonal, layernorm.backward, "addcmul(D - along_1", "addcmul(D"),
    (numeric.rms_norm_orthogonal, rmsnorm.backward, "addcmul(D,", "addcmul(D - D.mean(-1, keepdim=True),"),
    (numeric.rms_norm_orthogonal, rmsnorm.backward, "torch.addcmul(D, x, along_x, value=-1)", "D.clone()"),
    (numeric.residual_adds, combine.Residual.backward, "Delta + self.f", "self.f"),
    (numeric.gate_product_rule, combine.Gate.backward, "Delta * f)", "Delta)"),
    (numeric.low_rank_at_first, lowrank.backward, '"A", a, Delta_low', '"A", a, D[..., :2]'),
    (numeric.low_rank_merges, lowrank.merged, "w + s * (A @ B)", "w + (A @ B)"),
    (numeric.low_rank_merges, lowrank.backward, "Delta_low @ A.mT", "Delta @ B.mT @ A.mT"),
]


@pytest.mark.parametrize("check", sorted({c for c, *_ in CAN_FAIL}, key=lambda c: c.__name__), ids=lambda c: c.__name__)
def test_numeric_check(check):
    check()


@pytest.mark.parametrize(("check", "function", "line", "wrong"), CAN_FAIL, ids=lambda x: getattr(x, "__name__", ""))
def test_numeric_check_can_fail(check, function, line, wrong):
    with planted(Mistake("", function, line, wrong, "", "")), pytest.raises(LawBroken):
        check()
