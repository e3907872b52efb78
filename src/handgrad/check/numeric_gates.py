"""Equations about norms, gates, residuals and low-rank updates, each a computation that raises `LawBroken`."""

from __future__ import annotations

import torch

from handgrad.check.case import normal
from handgrad.check.laws import require, same
from handgrad.core.combine import Chain, Fork, Gate, Residual
from handgrad.core.gradients import Accumulate
from handgrad.core.params import Layout
from handgrad.core.run import Run
from handgrad.layers.linear import Linear
from handgrad.layers.lowrank import LowRank
from handgrad.rules import layernorm, lowrank, rmsnorm

one_row = (5, 7)


def layer_norm_orthogonal() -> None:
    """At ε = 0 the error below a layer norm is orthogonal to 1 and to x, row by row."""
    a, gamma, Delta = normal(one_row, 1, "a"), normal((7,), 1, "gamma"), normal(one_row, 1, "Delta")
    _, saved = layernorm.forward(a, gamma, None, 0.0, Run())
    below = layernorm.backward(Delta, saved, gamma, Accumulate({}), Run())
    require(float(below.norm()) > 0.1, "there is no error below")
    require(float(below.sum(-1).abs().max()) < 1e-13, "the error below has a part along 1")
    require(float((below * saved.x).sum(-1).abs().max()) < 1e-13, "the error below has a part along x")


def rms_norm_orthogonal() -> None:
    """At ε = 0 the error below an RMS norm is orthogonal to x; it is not to 1, since nothing was centred."""
    a, gamma, Delta = normal(one_row, 1, "a"), normal((7,), 1, "gamma"), normal(one_row, 1, "Delta")
    _, saved = rmsnorm.forward(a, gamma, 0.0, Run())
    below = rmsnorm.backward(Delta, saved, gamma, Accumulate({}), Run())
    require(float((below * saved.x).sum(-1).abs().max()) < 1e-13, "the error below has a part along x")
    require(float(below.sum(-1).abs().max()) > 1e-2, "the error below has no part along 1, as if it had been centred")


def residual_adds() -> None:
    """Δ = Δ' + f*(Δ'): with f = a w, that is Δ' (1 + wᵗ)."""
    f = Residual("h", Chain({"f": Linear(7, 7, bias=False)}))
    p, Delta = Layout(f.slots()).draw(1, torch.float64), normal(one_row, 1, "Delta")
    p["f.w"].copy_(normal((7, 7), 1, "w"))
    _, saved = f.forward(p.tree, normal(one_row, 1, "a"), Run())
    below = f.backward(p.tree, Delta, saved, Accumulate({}), Run())
    same(below, Delta @ (torch.eye(7).double() + p["f.w"]).mT, "the error below a residual")


def gate_product_rule() -> None:
    """a' = f(a) ∘ g(a): with f = a u and g = a w, Δ = (Δ' ∘ a w) uᵗ + (Δ' ∘ a u) wᵗ."""
    f = Gate("product", Fork({"f": Linear(7, 3, bias=False), "g": Linear(7, 3, bias=False)}))
    p, a, Delta = Layout(f.slots()).draw(1, torch.float64), normal(one_row, 1, "a"), normal((5, 3), 1, "Delta")
    u, w = p["f.w"].copy_(normal((7, 3), 1, "u")), p["g.w"].copy_(normal((7, 3), 1, "w"))
    _, saved = f.forward(p.tree, a, Run())
    below = f.backward(p.tree, Delta, saved, Accumulate({}), Run())
    same(below, (Delta * (a @ w)) @ u.mT + (Delta * (a @ u)) @ w.mT, "the error below a gate")


def low_rank_at_first() -> None:
    """B = 0: the output is the base's, bit for bit, ∂L/∂A = 0 exactly, ∂L/∂B is not; frozen names get nothing."""
    f = LowRank(Linear(7, 5), rank=2, alpha=3)
    p = Layout(f.slots()).draw(1, torch.float64)
    p["base.b"].copy_(normal((5,), 1, "b"))
    a, Delta = normal((2, 3, 7), 1, "a"), normal((2, 3, 5), 1, "Delta")
    y, saved = f.forward(p.tree, a, Run())
    require(torch.equal(y, a @ p["base.w"] + p["base.b"]), "a fresh update changes the output")
    g = Layout({name: slot for name, slot in f.slots().items() if name.startswith("lora.")}).zeros(torch.float64)
    below = f.backward(p.tree, Delta, saved, Accumulate(g.tree), Run())
    require(bool(p["lora.A"].any()) and not p["lora.B"].any(), "A is not random, or B is not 0, at first")
    require(not g["lora.A"].any(), "A has a gradient although B = 0")
    same(g["lora.B"], 1.5 * (a @ p["lora.A"]).flatten(0, 1).mT @ Delta.flatten(0, 1), "the gradient of B")
    same(below, Delta @ p["base.w"].mT, "the error below")


def low_rank_merges() -> None:
    """w + s A B gives the same output and the same error below as the pair, with s = α/r and with s = α/√r."""
    a, Delta = normal((2, 3, 7), 1, "a"), normal((2, 3, 5), 1, "Delta")
    for rslora, s in ((False, 3 / 4), (True, 3 / 2)):
        f = LowRank(Linear(7, 5), rank=4, alpha=3, rslora=rslora)
        p = Layout(f.slots()).zeros(torch.float64)
        for name in p:
            p[name].copy_(normal(p[name].shape, 1, name))
        y, saved = f.forward(p.tree, a, Run())
        below = f.backward(p.tree, Delta, saved, Accumulate({}), Run())
        w = lowrank.merged(p["base.w"], p["lora.A"], p["lora.B"], s)
        same(y, a @ w + p["base.b"], "the merged output")
        same(below, Delta @ w.mT, "the error below the merged matrix")
