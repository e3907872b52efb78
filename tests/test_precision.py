"""float32, bfloat16: the hand-written pass errs no more than torch, both against float64 (`check/tolerance.py`)."""

import pytest
import torch

from handgrad.check.cases import CASES
from handgrad.check.laws import flat, passes
from handgrad.check.oracle import through
from handgrad.check.tolerance import OVER_TORCH

DRAWS = range(20)


def widest(x):
    return x.double() if x.is_floating_point() else x


def by_autograd(case, p, a, Delta):
    theta = p.like(p.flat.clone().requires_grad_())
    a = through(a, lambda x: x.clone().requires_grad_() if x.is_floating_point() else x)
    y, _ = case.layer.forward(theta.tree, a, case.run)
    (y * Delta).sum().backward()
    parts = [x.grad.flatten() for x in (a if isinstance(a, tuple) else (a,)) if x.is_floating_point()]
    grad = theta.flat.grad if theta.flat.grad is not None else torch.zeros_like(p.flat)
    return torch.cat([*parts, grad])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_errs_no_more_than_twice_torch(case, dtype):
    """Errors are added over many draws, so that chance does not decide."""
    hand = torchs = size = 0.0
    for seed in DRAWS:
        rounded = case.draw(seed, dtype)
        p, a, Delta = rounded  # the exact value at the rounded numbers: only the pass itself is judged
        exact = flat(*passes(case, p.like(p.flat.double()), through(a, widest), Delta.double())[1:])
        hand += float((flat(*passes(case, *rounded)[1:]).double() - exact).square().sum())
        torchs += float((by_autograd(case, *rounded).double() - exact).square().sum())
        size += float(exact.square().sum())
    assert size > 0
    assert hand**0.5 <= OVER_TORCH * torchs**0.5, (hand / size, torchs / size)
