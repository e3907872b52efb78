"""Logits and their loss, some rows of logits at a time: N × V is never formed.

for some rows   z = a w_embᵗ      m = max z      s = Σ exp(z - m)      surprise = log s + m - z[y]
                Δ_z = Δ' (exp(z - m)/s - OHE(y))/n on valid rows, 0 elsewhere, written over z
                Δ = Δ_z w_emb     ∂L/∂w_emb += Δ_zᵗ a
from            `headloss.py`: rows of logits never meet, but in the sums L and ∂L/∂w_emb
shapes          as in `headloss.py`
cost            `both` forms each row of logits once, as the explicit pair does: a training step, whose Δ' is known to
                be 1 before the loss is. `forward` then `backward` form them twice, a third more products
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients, of_samples
from handgrad.core.run import Run, widened

CHUNK = 1 << 25  # bytes of logits of one product: little enough to lie in the heap, where errors will
WIDE = 1 << 20  # logits that are held in float32 at a time: small enough to stay in a processor's cache


class Saved(NamedTuple):
    a: Tensor  # (..., d)  the logits are formed again from a and w_emb
    w_emb: Tensor  # (V, d)
    y: Tensor  # (...)
    valid: Tensor  # (...)
    n: float


def forward(a: Tensor, w_emb: Tensor, y: Tensor, valid: Tensor, n: float, run: Run) -> tuple[Tensor, Saved]:
    saved = Saved(a, w_emb, y, valid, n)
    return walk(saved, None, None)[0], saved


def backward(Delta: Tensor, saved: Saved, grads: Gradients, run: Run) -> Tensor:
    return below(walk(saved, Delta, grads))


def both(
    a: Tensor, w_emb: Tensor, y: Tensor, valid: Tensor, n: float, Delta: Tensor, grads: Gradients
) -> tuple[Tensor, Tensor]:
    """Loss and Δ of a in one walk over the rows, for a Δ' that is known beforehand."""
    loss, found = walk(Saved(a, w_emb, y, valid, n), Delta, grads)
    return loss, below((loss, found))


def walk(saved: Saved, Delta: Tensor | None, grads: Gradients | None) -> tuple[Tensor, Tensor | None]:
    """The loss; and Δ of a, with ∂L/∂w_emb handed over on the way, where there is a receiver."""
    if grads is not None and Delta is not None and not getattr(grads, "only_sums", False):
        return apart(saved, Delta, grads)
    a, w_emb, y, valid, n = saved
    rows, y, valid = a.reshape(-1, a.shape[-1]), column(y), column(valid)
    y = y.where(valid, 0)
    total = torch.zeros((), dtype=widened(a[:0]).dtype, device=a.device)
    Delta_a = None if grads is None else torch.empty_like(rows)
    size = max(1, CHUNK // (len(w_emb) * rows.element_size()))
    room = rows.new_empty(min(size, len(rows)), len(w_emb))  # every chunk's logits in the same memory
    for chunk in (slice(i, i + size) for i in range(0, len(rows), size)):
        z = torch.mm(rows[chunk], w_emb.mT, out=room[: len(rows[chunk])])
        scale = None if Delta is None else Delta / max(n, 1)
        total += surprise(z, y[chunk], valid[chunk], scale)
        if grads is not None and Delta_a is not None:
            grads.outer("w_emb", z, rows[chunk])  # ∂L/∂w_emb = Δ_zᵗ a     of  a w_embᵗ, by w_emb
            Delta_a[chunk] = z @ w_emb  # Δ = Δ_z w_emb                    of  a w_embᵗ, by a
    return total / max(n, 1), None if Delta_a is None else Delta_a.view(a.shape)


def apart(saved: Saved, Delta: Tensor, grads: Gradients) -> tuple[Tensor, Tensor]:
    """The same walk for a receiver that tells samples apart: whole samples at a time, each in memory of its own."""
    a, w_emb, y, valid, n = saved
    y = y.where(valid, 0)
    total = torch.zeros((), dtype=widened(a[:0]).dtype, device=a.device)
    Delta_a = torch.empty_like(a)
    size = max(1, CHUNK // (len(w_emb) * a[0, ..., 0].numel() * a.element_size()))
    for i in range(0, len(a), size):
        some = slice(i, min(i + size, len(a)))
        piece = grads if size >= len(a) else of_samples(grads, some.start, some.stop, len(a))
        z = a[some] @ w_emb.mT
        total += surprise(z.view(-1, len(w_emb)), column(y[some]), column(valid[some]), Delta / max(n, 1))
        piece.outer("w_emb", z, a[some])  # ∂L/∂w_emb = Δ_zᵗ a     of  a w_embᵗ, by w_emb
        Delta_a[some] = z @ w_emb  # Δ = Δ_z w_emb                 of  a w_embᵗ, by a
        if piece is not grads:
            piece.finished()
    return total / max(n, 1), Delta_a


def column(x: Tensor) -> Tensor:
    return x.reshape(-1, 1)


def surprise(z: Tensor, y: Tensor, valid: Tensor, scale: Tensor | None) -> Tensor:
    """Σ_valid -log P[y] of logits z ~ (rows, V). With a scale, z becomes its own error, scale · (P - OHE(y))."""
    sums, size = [], max(1, WIDE // z.shape[1])
    for part in (slice(i, i + size) for i in range(0, len(z), size)):
        wide, y_part, valid_part = widened(z[part]), y[part], valid[part]
        at_y, top = wide.gather(-1, y_part), wide.amax(-1, keepdim=True)
        P = torch.sub(wide, top, out=wide).exp_()
        s = P.sum(-1, keepdim=True)
        sums.append((s.log() + top - at_y).where(valid_part, 0).sum())
        if scale is not None:
            factor = scale / s
            P.mul_(factor).scatter_add_(-1, y_part, -factor * s)  # Δ_z     of  log s + m - z[y]
            P.masked_fill_(~valid_part, 0.0)  #                            of  where(valid, ·, 0)
            if P.dtype != z.dtype:
                z[part] = P
    return torch.stack(sums).sum()


def below(found: tuple[Tensor, Tensor | None]) -> Tensor:
    assert found[1] is not None, "a walk with a receiver gives an error"
    return found[1]
