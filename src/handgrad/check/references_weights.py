"""The rungs pair by pair: the matrix W_{αβ} is written down for every pair, then o_α = Σ_β x_β W_{αβ}. Plain loops."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from handgrad.check.references import Named, known
from handgrad.check.references_recurrent import additive_score as additive_score

Weights = Callable[[int, int, int], Tensor]  # (sample, α, β) -> W_{αβ} ~ (d, m)


def output(x: Tensor, W: Weights, reads: Callable[[int, int], bool] = lambda end, source: source <= end) -> Tensor:
    """o_α = Σ x_β W_{αβ} over the β that α reads."""
    tokens = range(x.shape[1])
    rows = []
    for b in range(x.shape[0]):
        rows.append(torch.stack([sum_of(x[b, s] @ W(b, t, s) for s in tokens if reads(t, s)) for t in tokens]))
    return torch.stack(rows)


def sum_of(parts: object) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def lower(score: Tensor) -> Tensor:
    return torch.tril(torch.ones(score.shape[-2:], dtype=torch.bool)).expand(score.shape)


def softmax(score: Tensor, tau: float = 1.0) -> Tensor:
    """By loops over rows, each over its own length."""
    rho = torch.zeros_like(score)
    for t in range(score.shape[-2]):
        rho[..., t, : t + 1] = F.softmax(score[..., t, : t + 1] / tau, -1)
    return rho


def divide(score: Tensor) -> Tensor:
    rho = torch.zeros_like(score)
    for t in range(score.shape[-2]):
        rho[..., t, : t + 1] = F.normalize(score[..., t, : t + 1], p=1.0, dim=-1)  # for scores above 0
    return rho


def fixed(p: Named, a: Tensor) -> Tensor:
    d = a.shape[-1]
    return output(a, lambda b, t, s: p[f"{t}.w"][s * d : (s + 1) * d])


def matrices(p: Named, functions: int) -> Tensor:
    """V_1 … V_F, the row blocks of `out.w`."""
    return torch.stack(list(p["out.w"].chunk(functions)))


def source_only(p: Named, a: Tensor, functions: int, everyone: bool = False) -> Tensor:
    f = F.linear(a, p["score.function.w"].mT, p["score.function.b"])
    V = matrices(p, functions)
    reads = (lambda t, s: True) if everyone else (lambda t, s: s <= t)
    return output(a, lambda b, t, s: torch.einsum("f,fij->ij", f[b, s], V), reads)


def self_only(p: Named, a: Tensor, functions: int) -> Tensor:
    f = F.linear(a, p["score.function.w"].mT, p["score.function.b"])
    V = matrices(p, functions)
    return torch.stack([sum_of(f[:, :, j, None] * (a @ V[j]) for j in range(functions))])[0]


def full_matrix(p: Named, a: Tensor) -> Tensor:
    f = additive_score(p, "score.", a, a)
    return output(a, lambda b, t, s: f[b, :, t, s].view(a.shape[-1], a.shape[-1]))


def diagonal(p: Named, a: Tensor) -> Tensor:
    f = additive_score(p, "score.", a, a)
    return output(a, lambda b, t, s: torch.diag(f[b, :, t, s]))


def matrix_sum(p: Named, a: Tensor, rho: Tensor) -> Tensor:
    V = matrices(p, rho.shape[1])
    return output(a, lambda b, t, s: torch.einsum("f,fij->ij", rho[b, :, t, s], V))


def bilinear_score(p: Named, at: str, a: Tensor, functions: int) -> Tensor:
    A = p[f"{at}end.w"].chunk(functions, -1)
    return torch.stack([torch.einsum("bti,ij,bsj->bts", a, A[j], a) for j in range(functions)], 1)


def low_rank_score(p: Named, at: str, a: Tensor, functions: int) -> Tensor:
    parts = zip(p[f"{at}end.w"].chunk(functions, -1), p[f"{at}source.w"].chunk(functions, -1), strict=True)
    return torch.stack([torch.einsum("bti,ij,bsj->bts", a, w_q @ w_k.mT, a) for w_q, w_k in parts], 1)


def terms(p: Named, a: Tensor, functions: int) -> Tensor:
    g = F.linear(a, p["end_term.function.w"].mT, p["end_term.function.b"])
    h = F.linear(a, p["source_term.function.w"].mT, p["source_term.function.b"])
    score = low_rank_score(p, "interaction.", a, functions)
    for t in range(a.shape[1]):
        for s in range(a.shape[1]):
            score[:, :, t, s] += g[:, t] + h[:, s]
    return score


def heads(p: Named, a: Tensor, functions: int, at: str = "") -> Tensor:
    """W_{αβ} = Σ_f ρ_f w_v^f W_o^f, a matrix of rank r for each head."""
    p = {n.removeprefix(at): w for n, w in known(p).items() if n.startswith(at)}
    rho = softmax(low_rank_score(p, "score.", a, functions))
    pairs = zip(p["value.w"].chunk(functions, -1), p["out.w"].chunk(functions), strict=True)
    V = torch.stack([w_v @ w_o for w_v, w_o in pairs])
    return output(a, lambda b, t, s: torch.einsum("f,fij->ij", rho[b, :, t, s], V))


def unit(p: Named, a: Tensor, functions: int) -> Tensor:
    p = known(p)
    o = heads(p, a, functions, "mixing.")
    o = F.linear(o, p["up.w"].mT, p.get("up.b")) if "up.w" in p else o
    return a + F.linear(F.relu(o), p["down.w"].mT, p["down.b"])


def bare_unit(p: Named, a: Tensor, functions: int, f: Callable[[Tensor], Tensor]) -> Tensor:
    """No matrix around the activation, and perhaps no activation."""
    return a + f(heads(p, a, functions, "mixing."))


def two_skips(p: Named, a: Tensor, functions: int) -> Tensor:
    p = known(p)
    h = a + heads(p, a, functions, "mixing.")
    x = F.layer_norm(h, h.shape[-1:], p["norm.gamma"], p["norm.beta"], 1e-5) if "norm.gamma" in p else h
    return h + F.linear(F.relu(F.linear(x, p["up.w"].mT, p["up.b"])), p["down.w"].mT, p["down.b"])
