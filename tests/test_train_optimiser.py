"""AdamW and clipping on flat vectors: exact values, torch's own optimiser, and the two implementations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import handgrad as hg
from handgrad.train import optimiser
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State, clip, fused_agrees, update_all, uses_fused

BOTH = ("explicit", "fused")


@pytest.mark.parametrize("implementation", BOTH)
def test_the_first_step_by_hand(implementation: str) -> None:
    p, g = torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    update_all(p, g, State.zeros(p), 0.1, TrainConfig(weight_decay=0.01, implementation=implementation), n_decayed=1)
    assert p.item() == pytest.approx(0.899000002, abs=1e-12)
    assert g.item() == 0.5


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_gradient_matrices_shrink_and_gains_and_biases_keep_every_bit(implementation: str, dtype) -> None:
    model = hg.build(hg.GPT2Config(vocabulary=7, context=5, n_layers=1, n_heads=1, d_model=6), seed=0, dtype=dtype)
    params = model.params
    for i, name in enumerate(params):  # none at its first value: a bias of 0 would shrink unnoticed
        params[name].add_(0.1 + i)
    before = params.flat.clone()
    config = TrainConfig(weight_decay=0.1, implementation=implementation)
    update_all(params.flat, torch.zeros_like(before), State.zeros(before), 0.1, config, params.layout.n_decayed)
    was = params.like(before)
    for name in params:
        if params[name].ndim >= 2:
            torch.testing.assert_close(params[name], was[name] * 0.99, rtol=2e-7, atol=0)
        else:
            assert torch.equal(params[name], was[name]), name
    assert sum(params[name].ndim < 2 for name in params) == 12


def ten_steps(implementation: str, dtype: torch.dtype) -> torch.Tensor:
    p = torch.linspace(-2, 2, 101, dtype=dtype)
    state, config = State.zeros(p), TrainConfig(weight_decay=0.3, beta1=0.8, beta2=0.95, implementation=implementation)
    for t in range(1, 11):
        update_all(p, gradient(p, t), state, 0.01 * t, config, n_decayed=64)
    assert state.step == 10
    return p


def gradient(p: torch.Tensor, t: int) -> torch.Tensor:
    return (p * t).sin() * 10.0 ** (t % 3 - 1)


def test_ten_steps_are_those_of_torchs_adamw() -> None:
    w, b = (x.clone().requires_grad_() for x in torch.linspace(-2, 2, 101, dtype=torch.float64).split([64, 37]))
    groups = [{"params": [w], "weight_decay": 0.3}, {"params": [b], "weight_decay": 0.0}]
    torch_own = torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-8, fused=False, foreach=False)
    for t in range(1, 11):
        for group in torch_own.param_groups:
            group["lr"] = 0.01 * t
        w.grad, b.grad = gradient(w.detach(), t), gradient(b.detach(), t)
        torch_own.step()
    oracle = torch.cat([w.detach(), b.detach()])
    for implementation in BOTH:
        ours = ten_steps(implementation, torch.float64)
        assert float((ours - oracle).norm() / oracle.norm()) < 1e-12, implementation


def test_fused_is_explicit_in_both_types() -> None:
    assert fused_agrees("cpu")
    explicit, fused = (ten_steps(implementation, torch.float64) for implementation in BOTH)
    assert float((explicit - fused).norm() / explicit.norm()) < 1e-12
    explicit, fused = (ten_steps(implementation, torch.float32) for implementation in BOTH)
    assert float((explicit - fused).norm() / explicit.norm()) < 1e-5


def test_the_probe_finds_an_operator_that_is_missing_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uses_fused(TrainConfig(), "cpu")
    assert not uses_fused(TrainConfig(implementation="explicit"), "cpu")
    real = torch._fused_adamw_

    def gone(*_, **__):
        raise RuntimeError("no such operator")

    def wrong(*given, **how):
        real(*given, **{**how, "eps": how["eps"] * 1.1})

    for bad in (gone, wrong):
        monkeypatch.setattr(torch, "_fused_adamw_", bad)
        fused_agrees.cache_clear()
        assert not fused_agrees("cpu"), bad.__name__
        assert not uses_fused(TrainConfig(implementation="fused"), "cpu")
    monkeypatch.delattr(torch, "_fused_adamw_")
    fused_agrees.cache_clear()
    assert not fused_agrees("cpu")
    monkeypatch.undo()
    fused_agrees.cache_clear()
    assert fused_agrees("cpu")


def test_explicit_never_calls_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(optimiser.torch, "_fused_adamw_")
    assert torch.isfinite(ten_steps("explicit", torch.float64)).all()


@pytest.mark.parametrize("n_decayed", [0, 16, 32])
def test_only_the_leading_slice_is_decayed(n_decayed: int) -> None:
    for implementation in BOTH:
        p = torch.ones(32)
        config = TrainConfig(weight_decay=0.5, implementation=implementation)
        update_all(p, torch.zeros(32), State.zeros(p), 0.5, config, n_decayed)
        assert p.tolist() == [0.75] * n_decayed + [1.0] * (32 - n_decayed)


def test_clip_scales_only_what_is_above_and_returns_the_norm_from_before() -> None:
    g = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64)
    assert clip(g, 0.0) == 5.0
    assert clip(g, 5.0) == 5.0
    assert clip(g, 7.0) == 5.0
    assert g.tolist() == [3.0, 0.0, 4.0]
    assert clip(g, 2.5) == 5.0
    assert g.tolist() == pytest.approx([1.5, 0.0, 2.0], abs=1e-15)
    assert clip(torch.zeros(3), 1.0) == 0.0


def test_clip_leaves_what_is_not_finite_to_be_looked_at() -> None:
    for bad in (float("nan"), float("inf")):
        g = torch.tensor([1.0, bad])
        assert not torch.isfinite(torch.tensor(clip(g, 1.0)))
        assert g[0].item() == 1.0


def test_tied_parameters_count_once() -> None:
    shape = hg.GPT2Config(vocabulary=7, context=5, n_layers=1, n_heads=1, d_model=6)
    tokens = torch.tensor([[1, 2, 3, 1]])
    norms = []
    for tied in (True, False):
        model = hg.build(replace(shape, tied=tied), seed=0, dtype=torch.float64)
        if not tied:
            model.params["head.w_emb"] = model.params["embedding.token.w_emb"]
        model.loss(tokens)
        g = model.backward()
        if not tied:
            g["embedding.token.w_emb"] += g["head.w_emb"]
            g["head.w_emb"].zero_()
        norms.append(clip(g.flat, 0.0))
    assert norms[0] == pytest.approx(norms[1], rel=1e-14)
