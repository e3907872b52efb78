"""Attention: each token's output is a weighted mean of values; the weights come from agreements of queries and keys.

forward      raw = q kᵗ          scaled = raw/√d_ρ      causal = scaled where allowed, -∞ elsewhere
             ρ = softmax(causal) by rows                 out = ρ v
backward     Δ_v = ρᵗ Δ          Δ_ρ = Δ vᵗ
             Δ_causal = ρ ∘ (Δ_ρ - rowsum(Δ_ρ ∘ ρ) 1ᵗ)   Δ_scaled = Δ_causal   Δ_raw = Δ_scaled/√d_ρ
             Δ_q = Δ_raw k       Δ_k = Δ_rawᵗ q
from         Δ·d(ρ v) = (Δ vᵗ)·dρ + (ρᵗ Δ)·dv,   dρ = ρ ∘ (dcausal - rowsum(ρ ∘ dcausal) 1ᵗ),
             Δ_raw·d(q kᵗ) = (Δ_raw k)·dq + (Δ_rawᵗ q)·dk
shapes       q ~ (B, H, T, d_ρ)   k ~ (B, H, S, d_ρ)   v ~ (B, H, S, d_h)   out, Δ ~ (B, H, T, d_h)
             raw, scaled, causal, ρ ~ (B, H, T, S)   allowed ~ (T, S), (B, 1, T, S) or (B, 1, 1, S): bool,
             True = may attend
assumes      nothing of the mask but its type: a row that may attend to nothing has ρ = 0, output 0 and error 0
cost         2·B·H·T·S·(d_ρ + d_h) FLOPs forward, twice that backward; saves q, k, v and ρ
source       Boué, arXiv 2512.23329, sections 3.1 and 3.2; docs/equations.md, "One attention head"
             (temperature is a rule of its own, on q)
"""

from __future__ import annotations

from math import inf, sqrt
from typing import NamedTuple

from torch import Tensor

from handgrad.core.allowed import Mask, whole
from handgrad.core.product import perhaps, product
from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run, widened
from handgrad.rules.fused import attend_tiled


class Saved(NamedTuple):
    q: Tensor  # (B, H, T, d_ρ)
    k: Tensor  # (B, H, S, d_ρ)
    v: Tensor  # (B, H, S, d_h)
    rho: Tensor  # (B, H, T, S)  kept: forming it again is the whole forward pass


def forward(q: Tensor, k: Tensor, v: Tensor, allowed: Mask, run: Run) -> tuple[Tensor, Saved]:
    allowed = whole(allowed)
    q, k, v = run.show("q", q), run.show("k", k), run.show("v", v)
    raw = run.show("raw", product(q, k.mT))
    scaled = run.show("scaled", raw / sqrt(q.shape[-1]))
    causal = run.show("causal", scaled if allowed is None else scaled.where(allowed, -inf))
    rho = run.show("rho", softmax(causal, allowed).to(v.dtype))
    return run.show("out", product(rho, v)), Saved(q, k, v, rho)


def softmax(causal: Tensor, allowed: Tensor | None) -> Tensor:
    """exp(causal) / rowsum(exp(causal)), by rows; a row with nothing allowed is 0, not 0/0."""
    causal = widened(causal)
    if allowed is None or not perhaps(empty := ~allowed.any(-1, keepdim=True)):
        return causal.softmax(-1)
    return causal.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def backward(Delta: Tensor, saved: Saved, run: Run) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, rho = saved
    Delta = run.show("Delta_out", Delta)
    Delta_v = rho.mT @ Delta  #                                                     of  rho @ v, by v
    Delta_rho = run.show("Delta_rho", Delta @ v.mT)  #                              of  rho @ v, by rho
    along_rho = (Delta_rho * rho).sum(-1, keepdim=True)  # rowsum(Δ_ρ ∘ ρ)
    Delta_causal = run.show("Delta_causal", rho * (Delta_rho - along_rho))  #       of  softmax(causal)
    Delta_scaled = run.show("Delta_scaled", Delta_causal)  #                        of  where: zeros of ρ mask it
    Delta_raw = run.show("Delta_raw", Delta_scaled / sqrt(q.shape[-1]))  #          of  raw / √d_ρ
    Delta_q = Delta_raw @ k  #                                                      of  q @ kᵗ, by q
    Delta_k = Delta_raw.mT @ q  #                                                   of  q @ kᵗ, by k
    return run.show("Delta_q", Delta_q), run.show("Delta_k", Delta_k), run.show("Delta_v", Delta_v)


INNER = ("raw", "scaled", "causal", "rho", "Delta_rho", "Delta_causal", "Delta_scaled", "Delta_raw")
TILED = Pair(attend_tiled.forward, attend_tiled.backward)
ATTEND = Rule("attend", Pair(forward, backward), TILED, INNER)
