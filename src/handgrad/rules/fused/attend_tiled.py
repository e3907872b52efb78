"""Attention by tiles of query rows: the weights ρ exist for ROWS queries at a time, never T × S, and are formed twice.

forward      for the rows i of a tile     ρ_i = softmax((q_i/√d_ρ) kᵗ where allowed)     out_i = ρ_i v
backward     the same ρ_i again, then     Δ_v += ρ_iᵗ Δ_i          Δ_ρ = Δ_i vᵗ
             Δ_s = ρ_i ∘ (Δ_ρ - rowsum(Δ_ρ ∘ ρ_i) 1ᵗ)
             Δ_q_i = Δ_s k/√d_ρ           Δ_k += Δ_sᵗ q_i/√d_ρ
from         `attend.py`, line by line: rows of queries do not meet but in the sums over queries, Δ_k and Δ_v
shapes       as in `attend.py`; keys beyond a tile's last allowed one are not even multiplied
assumes      nothing of the mask; a row that may attend to nothing has ρ = 0, output 0 and error 0
cost         a causal mask: half the products of the explicit pair, and a fifth more for the second ρ. Saves q, k, v
             alone (and ρ where all queries fit one tile): memory grows with T, not with T². Sums over queries are
             formed in float32 at least
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.allowed import Mask, Tile, require_bool, tile
from handgrad.core.run import Run, widened

ROWS = 128  # queries of one tile


class Saved(NamedTuple):
    q: Tensor  # (B, H, T, d_ρ)
    k: Tensor  # (B, H, S, d_ρ)
    v: Tensor  # (B, H, S, d_h)
    allowed: Mask
    rho: Tensor | None  # (B, H, T, keys) where all queries fit one tile: then it is not formed twice


def forward(q: Tensor, k: Tensor, v: Tensor, allowed: Mask, run: Run) -> tuple[Tensor, Saved]:
    if isinstance(allowed, Tensor):
        require_bool(allowed)
    q, k, v = run.show("q", q), run.show("k", k), run.show("v", v)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # one copy, kept for backward: products are faster on it
    out = v.new_empty(*q.shape[:-1], v.shape[-1])
    kept = None
    for rows, keys, rho in weights(q, k, allowed):
        out[..., rows, :] = rho @ v[..., keys, :]
        kept = rho if q.shape[-2] <= ROWS else None
    return run.show("out", out), Saved(q, k, v, allowed, kept)


def weights(q: Tensor, k: Tensor, allowed: Mask, kept: Tensor | None = None) -> Iterator[tuple[slice, slice, Tensor]]:
    """Tile by tile: which queries, which keys, and ρ ~ (B, H, rows, keys)."""
    if kept is not None:
        part = tile(allowed, 0, q.shape[-2], k.shape[-2])
        yield slice(0, q.shape[-2]), slice(part.first, part.end), kept
        return
    scaled_q, kt, n_queries, n_keys = q / sqrt(q.shape[-1]), k.mT.contiguous(), q.shape[-2], k.shape[-2]
    for start in range(0, n_queries, ROWS):
        rows = slice(start, min(start + ROWS, n_queries))
        part = tile(allowed, rows.start, rows.stop, n_keys)
        keys = slice(part.first, part.end)
        yield rows, keys, softmax(scaled_q[..., rows, :] @ kt[..., keys], part)


def softmax(scores: Tensor, part: Tile) -> Tensor:
    """By rows, where allowed; written over `scores`, which nobody else holds. Inside, in float32 at least."""
    if part.allowed is None:
        return scores.softmax(-1)
    forbidden = ~part.allowed
    scores[..., part.free - part.first :].masked_fill_(forbidden, -inf)
    if part.certain or part.free > part.first or not bool((empty := forbidden.all(-1, keepdim=True)).any()):
        return scores.softmax(-1)
    return scores.softmax(-1).masked_fill_(empty, 0.0)


def backward(Delta: Tensor, saved: Saved, run: Run) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, allowed, kept = saved
    Delta = run.show("Delta_out", Delta).contiguous()
    Delta_q, Delta_k, Delta_v = torch.empty_like(q), torch.zeros_like(widened(k)), torch.zeros_like(widened(v))
    vt = v.mT.contiguous()
    for rows, keys, rho in weights(q, k, allowed, kept):
        Delta_i = Delta[..., rows, :]
        Delta_v[..., keys, :] += rho.mT @ Delta_i  #                            of  rho @ v, by v
        Delta_rho = Delta_i @ vt[..., keys]  #                                 of  rho @ v, by rho
        Delta_s = torch._softmax_backward_data(Delta_rho, rho, -1, rho.dtype)  # of  softmax
        Delta_q[..., rows, :] = Delta_s @ k[..., keys, :]  #                    of  q @ kᵗ, by q
        Delta_k[..., keys, :] += Delta_s.mT @ q[..., rows, :]  #                of  q @ kᵗ, by k
    over = 1 / sqrt(q.shape[-1])  #                                             of  q / √d_ρ
    Delta_q, Delta_k, Delta_v = Delta_q.mul_(over), Delta_k.mul_(over).to(k.dtype), Delta_v.to(v.dtype)
    return run.show("Delta_q", Delta_q), run.show("Delta_k", Delta_k), run.show("Delta_v", Delta_v)
