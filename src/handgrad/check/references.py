"""The same forward passes by torch's own library functions, written apart from our rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Named = Mapping[str, Tensor]


def token(p: Named, ids: Tensor) -> Tensor:
    return F.embedding(ids, p["w_emb"])


def attend_rows(a: Any, allowed: Tensor) -> Tensor:
    """Row by row and head by head, with plain loops; a row without any key is 0."""
    q, k, v = a
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=v.dtype)
    for i in range(q.shape[-2]):
        keys = allowed[i].nonzero().flatten()
        if len(keys):
            score = torch.einsum("bhd,bhsd->bhs", q[:, :, i], k[:, :, keys]) / q.shape[-1] ** 0.5
            out[:, :, i] = torch.einsum("bhs,bhsd->bhd", F.softmax(score, -1), v[:, :, keys])
    return out


def linear(p: Named, at: str, a: Tensor) -> Tensor:
    return F.linear(a, p[f"{at}w"].mT, p.get(f"{at}b"))


def norm(p: Named, at: str, a: Tensor, epsilon: float = 1e-5) -> Tensor:
    return F.layer_norm(a, a.shape[-1:], p[f"{at}gamma"], p.get(f"{at}beta"), epsilon)


def attention(p: Named, at: str, a: Tensor, heads: int, causal: bool) -> Tensor:
    cut = lambda x: x.view(*x.shape[:2], heads, -1).transpose(1, 2)  # noqa: E731
    q, k, v = (cut(linear(p, f"{at}{n}.", a)) for n in ("query", "key", "value"))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(a.shape)
    return linear(p, f"{at}out.", y)


def multihead(heads: int, causal: bool) -> Callable[[Named, Tensor], Tensor]:
    return lambda p, a: attention(known(p), "", a, heads, causal)


def mlp(p: Named, at: str, a: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    p = known(p)
    return linear(p, f"{at}down.", f(linear(p, f"{at}up.", a)))


def residuals(p: Named, a: Tensor) -> Tensor:
    h = a + linear(known(p), "one.", a)
    return h + norm(known(p), "two.", h)


def gpt2(p: Named, ids: Tensor, c: Any) -> Tensor:
    """The whole network, pre-norm, in a dozen lines of library calls."""
    p = known(p)
    f = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": F.gelu, "relu": F.relu}[c.activation]
    a = F.embedding(ids, p["embedding.token.w_emb"]) + p["embedding.position.w_pos"][: ids.shape[1]]
    for i in range(c.n_layers):
        at = f"blocks.{i}."
        a = a + attention(p, f"{at}attention.", norm(p, f"{at}norm_1.", a, c.epsilon), c.n_heads, True)
        a = a + mlp(p, f"{at}mlp.", norm(p, f"{at}norm_2.", a, c.epsilon), f)
    return F.linear(norm(p, "norm.", a, c.epsilon), p["embedding.token.w_emb" if c.tied else "head.w_emb"])


def llama(p: Named, ids: Tensor, c: Any, turned: Callable[[Tensor], Tensor]) -> Tensor:
    """Pre-norm with root mean squares; keys and values repeated by an index, the window by a list of allowed keys."""
    p, rows = known(p), torch.arange(ids.shape[1])
    cut = lambda x: x.view(*x.shape[:2], -1, c.head).transpose(1, 2)  # noqa: E731
    rms = lambda at, a: F.rms_norm(a, a.shape[-1:], p[f"{at}gamma"], c.epsilon)  # noqa: E731
    hidden = [[j > i or 0 < c.window <= i - j for j in range(len(rows))] for i in range(len(rows))]
    a = F.embedding(ids, p["embedding.token.w_emb"])
    for i in range(c.n_layers):
        at = f"blocks.{i}."
        x = rms(f"{at}norm_1.", a)
        q, k, v = (cut(linear(p, f"{at}attention.{n}.", x)) for n in ("query", "key", "value"))
        share = torch.arange(c.n_heads) * k.shape[1] // c.n_heads
        score = (turned(q) @ turned(k)[:, share].mT / c.head**0.5).masked_fill(torch.tensor(hidden), float("-inf"))
        a = a + linear(p, f"{at}attention.out.", (score.softmax(-1) @ v[:, share]).transpose(1, 2).flatten(-2))
        x = rms(f"{at}norm_2.", a)
        a = a + linear(p, f"{at}mlp.down.", F.silu(linear(p, f"{at}mlp.gate.", x)) * linear(p, f"{at}mlp.up.", x))
    return F.linear(rms("norm.", a), p["embedding.token.w_emb" if c.tied else "head.w_emb"])


def known(p: Named) -> dict[str, Tensor]:
    """A plain dict, so that a bias that is not there can be asked for."""
    return {name: p[name] for name in p}
