"""Recurrent layers and pairwise scores by torch's own modules, or by plain loops, written apart from our rules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from handgrad.check.references import Named, known


def rnn(p: Named, at: str, a: Tensor) -> Tensor:
    p = known(p)
    n_in, n = p[f"{at}w_x"].shape
    module = torch.nn.RNN(n_in, n, batch_first=True, dtype=a.dtype)
    return ours_in(module, p[f"{at}w_x"].mT, p[f"{at}w_h"].mT, p[f"{at}b"], a)


def lstm(p: Named, at: str, a: Tensor) -> Tensor:
    """torch keeps its gates in the order i, f, g, o; ours are i, f, o, g."""
    p = known(p)
    n_in, n = p[f"{at}w_x"].shape[0], p[f"{at}w_h"].shape[0]

    def turned(w: Tensor) -> Tensor:
        i, f, o, g = w.split(n, -1)
        return torch.cat((i, f, g, o), -1)

    module = torch.nn.LSTM(n_in, n, batch_first=True, dtype=a.dtype)
    return ours_in(module, turned(p[f"{at}w_x"]).mT, turned(p[f"{at}w_h"]).mT, turned(p[f"{at}b"]), a)


def ours_in(module: torch.nn.RNNBase, w_x: Tensor, w_h: Tensor, b: Tensor, a: Tensor) -> Tensor:
    zero = torch.zeros_like(b)
    named = {"weight_ih_l0": w_x, "weight_hh_l0": w_h, "bias_ih_l0": b, "bias_hh_l0": zero}
    return torch.func.functional_call(module, {n: w.contiguous() for n, w in named.items()}, (a,))[0]


def additive(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """Pair by pair, function by function."""
    out = torch.zeros(q.shape[0], w.shape[1], q.shape[1], k.shape[1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            for s in range(k.shape[1]):
                out[b, :, t, s] = torch.mv(w.mT, torch.tanh(q[b, t] + k[b, s]))
    return out


def additive_score(p: Named, at: str, a: Tensor, b: Tensor) -> Tensor:
    p = known(p)
    q = F.linear(a, p[f"{at}end.w"].mT)
    return additive(q, F.linear(b, p[f"{at}source.w"].mT, p[f"{at}source.b"]), p[f"{at}w"])


def growing_memory(p: Named, a: Tensor) -> Tensor:
    """Every step reads a list of all states so far."""
    p = known(p)
    n = p["w_h"].shape[0]
    states: list[Tensor] = []
    for x in a.unbind(1):
        h = context = torch.zeros(a.shape[0], n, dtype=a.dtype)
        if states:
            h, memory = states[-1], torch.stack(states, 1)
            rho = F.softmax(additive_score(p, "score.", h[:, None], memory)[:, 0, 0], -1)
            context = torch.einsum("bs,bsn->bn", rho, memory)
        both: Any = torch.cat((x, context), -1)
        states.append(torch.tanh(F.linear(both, p["w_x"].mT, p["b"]) + F.linear(h, p["w_h"].mT)))
    return torch.stack(states, 1)
