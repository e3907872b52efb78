"""The laws of `core.layer.Layer`. Each function holds one case to one law and raises `LawBroken`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from handgrad.check.case import Case
from handgrad.check.oracle import compare, through
from handgrad.check.report import LawBroken, Report
from handgrad.check.tolerance import DIFFERENCE, FLOAT64
from handgrad.core import Accumulate, Buffer, Recompute
from handgrad.rules.fused import attend_tiled, headloss_chunked


def require(ok: bool, what: str) -> None:
    if not ok:
        raise LawBroken(what)


def off(found: Tensor, right: Tensor) -> float:
    """Relative norm of the difference, without a floor."""
    require(found.shape == right.shape, f"shape {tuple(found.shape)}, and {tuple(right.shape)} is right")
    size = float(right.norm())
    require(size > 0, "the right value is 0 here, so nothing is compared")
    return float((found - right).norm()) / size


def same(found: Tensor, right: Tensor, what: str, tolerance: float = FLOAT64) -> None:
    error = off(found, right)
    require(error <= tolerance, f"{what} differs by {error:.1e} (allowed {tolerance:g})")


def passes(case: Case, p: Buffer, a: Any, Delta: Tensor) -> tuple[Tensor, Any, Buffer]:
    """Output, error below and gradient of one forward and one backward pass."""
    g = p.layout.zeros(p.flat.dtype)
    y, saved = case.layer.forward(p.tree, a, case.run)
    below = case.layer.backward(p.tree, Delta, saved, Accumulate(g.tree), case.run)
    return y, below, g


def flat(below: Any, g: Buffer) -> Tensor:
    """Everything a backward pass gives, as one vector."""
    belows = below if isinstance(below, tuple) else (below,)
    return torch.cat([*(D.flatten() for D in belows if D is not None), g.flat])


def oracle(case: Case, seed: int = 1) -> Report:
    """Every Delta_x and every gradient is autograd's, through the same forward."""
    p, a, Delta = case.draw(seed)
    return compare(case.layer, p, a, Delta, case.run, case.zeros).require()


def reference(case: Case, seed: int = 2) -> None:
    """The forward pass is the one that was meant."""
    if case.reference is not None:
        p, a, _ = case.draw(seed)
        same(case.layer.forward(p.tree, a, case.run)[0], case.reference(p, a), "forward")


def adjoint(case: Case, seed: int = 3, h: float = 1e-6) -> None:
    """⟨Δ, J v⟩ = ⟨Jᵗ Δ, v⟩, J v by central difference along a random direction of input and parameters."""
    p, a, Delta = case.draw(seed)
    dp, da, _ = case.draw(seed + 100)
    moved = lambda s: case.layer.forward(  # noqa: E731
        p.like(p.flat + s * h * dp.flat).tree, added(a, da, s * h), case.run
    )[0]
    along = float((Delta * (moved(1) - moved(-1))).sum()) / (2 * h)
    _, below, g = passes(case, p, a, Delta)
    back = float(g.flat @ dp.flat) + inner(below, da)
    scale = float(Delta.norm()) * float((moved(1) - moved(-1)).norm()) / (2 * h)
    require(scale > 0, "the output does not move, so nothing is compared")
    require(abs(along - back) <= DIFFERENCE * scale, f"<Delta, J v> = {along:.12g} but <Jt Delta, v> = {back:.12g}")


def linearity(case: Case, seed: int = 4) -> None:
    """backward(2Δ - 3Δ') = 2 backward(Δ) - 3 backward(Δ')."""
    p, a, Delta = case.draw(seed)
    other = case.draw(seed + 100)[2]
    results = [flat(*passes(case, p, a, D)[1:]) for D in (2 * Delta - 3 * other, Delta, other)]
    same(results[0], 2 * results[1] - 3 * results[2], "backward of a combination", 10 * FLOAT64)


def accumulation(case: Case, seed: int = 5) -> None:
    """Two backward passes into one receiver give twice the gradient."""
    p, a, Delta = case.draw(seed)
    if not len(p):
        return
    _, _, once = passes(case, p, a, Delta)
    g = p.layout.zeros(p.flat.dtype)
    for _ in range(2):
        _, saved = case.layer.forward(p.tree, a, case.run)
        case.layer.backward(p.tree, Delta, saved, Accumulate(g.tree), case.run)
    same(g.flat, 2 * once.flat, "the accumulated gradient")


def purity(case: Case, seed: int = 6) -> None:
    """Parameters, input, Delta and every saved tensor are bit for bit what they were."""
    p, a, Delta = case.draw(seed)
    y, saved = case.layer.forward(p.tree, a, case.run)
    held = [*tensors(a), *tensors(saved), p.flat, Delta, y]
    before = [x.clone() for x in held]
    case.layer.backward(p.tree, Delta, saved, Accumulate(p.layout.zeros(p.flat.dtype).tree), case.run)
    require(all(map(torch.equal, held, before)), "backward wrote into its inputs, its parameters, Delta or saved")


def causality(case: Case, seed: int = 7) -> None:
    """A later input changes no earlier output, and Delta at t reaches no later position. Others must break it."""
    p, a, Delta = case.draw(seed)
    if case.blind or isinstance(a, tuple) or Delta.ndim != 3 or a.shape[:2] != Delta.shape[:2]:
        return  # no axis of tokens that input and output share, or nothing of the input is read
    t = a.shape[1] // 2
    later = a.clone()
    later[:, t + 1 :] = later[:, t + 1 :].flip(0) if case.ids else later[:, t + 1 :] + 1
    y, y_later = (case.layer.forward(p.tree, x, case.run)[0] for x in (a, later))
    require(not torch.equal(y, y_later), "the later input changes nothing at all, so nothing is compared")
    only = Delta.clone()
    only[:, t + 1 :] = 0
    _, below, _ = passes(case, p, a, only)
    holds = torch.equal(y[:, : t + 1], y_later[:, : t + 1]) and (below is None or not below[:, t + 1 :].any())
    require(holds == case.causal, "not causal" if case.causal else "causal although nothing is masked")
    if below is not None:
        require(bool(below[:, : t + 1].any()), "no error reaches position t or earlier, so nothing is compared")


def batch(case: Case, seed: int = 8) -> None:
    """Each sample's output and error are those it has alone; the gradient is the sum over samples."""
    if not case.samplewise:
        return
    p, a, Delta = case.draw(seed)
    y, below, g = passes(case, p, a, Delta)
    alone = [passes(case, p, through(a, lambda x, i=i: x[i : i + 1]), Delta[i : i + 1]) for i in range(len(Delta))]
    same(y, torch.cat([one[0] for one in alone]), "the output of a batch")
    if below is not None:
        stacked = [torch.cat(parts) for parts in zip(*(as_tuple(one[1]) for one in alone), strict=True)]
        for D, right in zip(as_tuple(below), stacked, strict=True):
            same(D, right, "the error below a batch")
    if len(p):
        same(g.flat, sum(one[2].flat for one in alone), "the gradient of a batch")


def recompute(case: Case, seed: int = 9) -> None:
    """Recompute(f) = f, bit for bit."""
    p, a, Delta = case.draw(seed)
    plain = passes(case, p, a, Delta)
    again = passes(replace(case, layer=Recompute(case.layer)), p, a, Delta)
    require(torch.equal(plain[0], again[0]), "the output changes under Recompute")
    require(torch.equal(flat(*plain[1:]), flat(*again[1:])), "the backward pass changes under Recompute")


def agreement(case: Case, seed: int = 10) -> None:
    """Every fused pair gives what the explicit pair gives, in one piece and in several; where a layer has none, all
    runs are the explicit one."""
    p, a, Delta = case.draw(seed)
    run = lambda how: passes(replace(case, run=replace(case.run, implementation=how)), p, a, Delta)  # noqa: E731
    explicit = run("explicit")
    with small_pieces():
        cut = run("fused")
    for fused in (run("fused"), cut):
        same(fused[0], explicit[0], "the fused output")
        same(flat(*fused[1:]), flat(*explicit[1:]), "the fused backward pass")


@contextmanager
def small_pieces() -> Iterator[None]:
    """Tiles of two rows and chunks of three, so that a small case has several of them."""
    before = attend_tiled.ROWS, headloss_chunked.CHUNK, headloss_chunked.WIDE
    attend_tiled.ROWS, headloss_chunked.CHUNK, headloss_chunked.WIDE = 2, 3 * 8 * 11, 11
    try:
        yield
    finally:
        attend_tiled.ROWS, headloss_chunked.CHUNK, headloss_chunked.WIDE = before


LAWS: tuple[Callable[..., Any], ...] = (
    oracle,
    reference,
    adjoint,
    linearity,
    accumulation,
    purity,
    causality,
    batch,
    recompute,
    agreement,
)


def as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def tensors(x: Any) -> list[Tensor]:
    """All tensors inside what a forward pass saved, whatever it is made of."""
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for part in parts for t in tensors(part)]


def added(a: Any, da: Any, s: float) -> Any:
    if isinstance(a, tuple):
        return tuple(added(x, dx, s) for x, dx in zip(a, da, strict=True))
    return a + s * da if a.is_floating_point() else a


def inner(below: Any, da: Any) -> float:
    return sum(float((D * v).sum()) for D, v in zip(as_tuple(below), as_tuple(da), strict=True) if D is not None)
