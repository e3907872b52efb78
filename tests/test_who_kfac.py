"""K-FAC statistics, against matrices that are formed whole."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import Tensor
from who_models import TOKENS, B, T, close, gpt, gradient_of, llama

import handgrad as hg
from handgrad.core.errors import ConfigError, NumericError
from handgrad.who.kfac import Kronecker, drawn_targets, kfac

NAME = "blocks.1.attention.value.w"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of(a: Tensor, Delta: Tensor) -> Kronecker:
    return Kronecker("w", a, Delta, a.flatten(0, 1).mT @ Delta.flatten(0, 1))


def whole_moment(g: Tensor) -> Tensor:
    """E[vec(g) vec(g)ᵗ], formed whole, of g ~ (N, n, m)."""
    flat = g.flatten(1)
    return flat.mT @ flat / len(flat)


@pytest.mark.parametrize("make", [gpt, llama])
def test_moments_are_those_of_watched_signals(make) -> None:
    model = make()
    with hg.watch(model, "blocks.1.norm_1", "blocks.1.attention.Delta_value") as signals:
        gradient = gradient_of(model)
    a = signals["blocks.1.norm_1"].flatten(0, 1)
    Delta = B * (T - 1) * signals["blocks.1.attention.Delta_value"].flatten(0, 1)  # of the sum of 18 surprises
    found = kfac(model, TOKENS)[NAME]
    close(found.A, sum(row[:, None] * row for row in a) / (B * T))
    close(found.G, sum(row[:, None] * row for row in Delta) / (B * T))
    close(found.gradient, gradient[NAME])
    close(found.a.flatten(0, 1).mT @ found.Delta.flatten(0, 1) / (B * (T - 1)), gradient[NAME])


def test_the_fit_is_that_of_whole_matrices() -> None:
    found = kfac(gpt(d_model=9, d_mlp=5), TOKENS)[NAME]
    product = torch.kron(found.A, found.G)
    tokens = torch.einsum("btn,btm->btnm", found.a, found.Delta)
    for fit, C, times in (
        (found.fit(), whole_moment(tokens.flatten(0, 1)), 1),
        (found.fit_of_sequences(), whole_moment(tokens.sum(1)), T),
    ):
        assert fit.cosine == pytest.approx(float((C * product).sum() / (C.norm() * product.norm())), rel=1e-12)
        assert fit.error == pytest.approx(float((C - times * product).norm() / C.norm()), rel=1e-10)
        assert 0 < fit.cosine < 1


def test_independent_factors_fit_exactly() -> None:
    """Every a meets every Delta equally often."""
    a, Delta = normal(5, 3, seed=1), normal(7, 2, seed=2)
    found = of(a.repeat_interleave(7, 0)[None], Delta.repeat(5, 1)[None])
    fit = found.fit()
    assert fit.cosine == pytest.approx(1, abs=1e-12)
    assert fit.error < 1e-6  # the root of a difference that is rounding


def test_many_tokens_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kfac(gpt(), TOKENS)[NAME]
    right = found.fit()
    monkeypatch.setattr("handgrad.who.kfac.ROWS", 4)
    assert found.fit() == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("damping", [1e-4, 0.3])
def test_the_preconditioned_gradient_solves_the_whole_system(damping: float) -> None:
    found = of(normal(2, 5, 4, seed=3), normal(2, 5, 3, seed=4))
    pi = sqrt(float(found.A.trace() / 4) / float(found.G.trace() / 3))
    A = found.A + pi * sqrt(damping) * torch.eye(4, dtype=torch.float64)
    G = found.G + sqrt(damping) / pi * torch.eye(3, dtype=torch.float64)
    other = normal(4, 3, seed=5)
    for g, right in ((None, found.gradient), (other, other)):
        solved = torch.linalg.solve(torch.kron(A, G), right.flatten()).view(4, 3)
        close(found.preconditioned(damping, g), solved, 1e-11)


def test_a_large_damping_leaves_the_direction_of_the_gradient() -> None:
    found = kfac(gpt(), TOKENS)[NAME]
    moved = found.preconditioned(1e12)
    close(moved * found.gradient.norm() / moved.norm(), found.gradient, 1e-3)


def test_a_step_against_the_preconditioned_gradient_lowers_the_loss() -> None:
    model = gpt()
    before = float(model.loss(TOKENS))
    for name, found in kfac(model, TOKENS).items():
        model.params[name].sub_(1e-3 * found.preconditioned(0.1))
    assert float(model.loss(TOKENS)) < before


def test_drawn_targets_follow_the_prediction() -> None:
    model = gpt(std=0.1)
    many = TOKENS[:1].expand(4000, T)
    targets = drawn_targets(model, many, 0)
    assert torch.equal(targets, drawn_targets(model, many, 0))
    P = model(TOKENS[:1]).softmax(-1)[0]
    for t in (0, T - 1):
        share = torch.bincount(targets[:, t], minlength=11) / len(many)
        assert (share - P[t]).abs().max() < 5 * sqrt(0.25 / len(many))
    found, empirical = kfac(model, TOKENS, drawn=1)[NAME], kfac(model, TOKENS)[NAME]
    close(found.A, empirical.A)
    assert (found.G - empirical.G).norm() > 0.1 * empirical.G.norm()


def test_what_cannot_be_is_refused() -> None:
    model = gpt()
    for name in ("head.w_emb", "norm.gamma", "norm.beta"):
        with pytest.raises(ConfigError, match="is not the matrix of one linear layer"):
            kfac(model, TOKENS, [name])
    with pytest.raises(ConfigError, match="targets were given and are to be drawn as well"):
        kfac(model, TOKENS, targets=TOKENS, drawn=0)
    found = kfac(model, TOKENS)[NAME]
    for damping in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"damping is {damping}, and must be above 0"):
            found.preconditioned(damping)
    with pytest.raises(NumericError, match="all gradients of w are 0"):
        of(normal(2, 5, 4), torch.zeros(2, 5, 3, dtype=torch.float64)).fit()
