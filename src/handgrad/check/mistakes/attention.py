"""Planted: attention, one head and many."""

from handgrad.check.plant import Mistake
from handgrad.layers import multihead
from handgrad.rules import attend
from handgrad.rules.fused import attend_tiled

MISTAKES = (
    Mistake("ρ not transposed", attend.backward, "rho.mT @ Delta", "rho @ Delta", "attend", "Delta_v"),
    Mistake(
        "row sums forgotten",
        attend.backward,
        "rho * (Delta_rho - along_rho)",
        "rho * Delta_rho",
        "attend",
        "Delta_causal",
    ),
    Mistake(
        "sum by columns",
        attend.backward,
        "(Delta_rho * rho).sum(-1, keepdim=True)",
        "(Delta_rho * rho).sum(-2, keepdim=True)",
        "attend",
        "Delta_causal",
    ),
    Mistake(
        "√d forgotten going down",
        attend.backward,
        "Delta_scaled / sqrt(q.shape[-1])",
        "Delta_scaled * 1.0",
        "attend",
        "Delta_raw",
    ),
    Mistake(
        "√ of the values' width",
        attend.forward,
        "raw / sqrt(q.shape[-1])",
        "raw / sqrt(v.shape[-1])",
        "attend",
        "forward",
    ),
    Mistake("Δ_raw not transposed", attend.backward, "Delta_raw.mT @ q", "Delta_raw @ q", "attend", "Delta_k"),
    Mistake("queries for keys", attend.backward, "Delta_raw @ k", "Delta_raw @ q", "attend", "Delta_q"),
    Mistake("Δ_ρ from the output", attend.backward, "Delta @ v.mT", "Delta @ (rho @ v).mT", "attend", "Delta_rho"),
    Mistake(
        "softmax over queries",
        attend.softmax,
        "return causal.softmax(-1)",
        "return causal.softmax(-2)",
        "attend to everyone",
        "forward",
    ),
    Mistake("the mask upside down", attend.forward, "where(allowed", "where(~allowed", "attend", "forward"),
    Mistake(
        "heads joined unturned",
        multihead.joined,
        "a.transpose(-3, -2).flatten(-2)",
        "a.reshape(a.shape[0], a.shape[2], -1)",
        "multi-head",
        "forward",
    ),
    Mistake(
        "a tile's keys overwrite those of the tiles before",
        attend_tiled.backward,
        "Delta_v[..., keys, :] += rho.mT @ Delta_i",
        "Delta_v[..., keys, :] = rho.mT @ Delta_i",
        "attend",
        "agreement",
    ),
    Mistake(
        "√d forgotten in one of two places",
        attend_tiled.backward,
        "Delta_k.mul_(over)",
        "Delta_k",
        "attend",
        "agreement",
    ),
    Mistake(
        "the mask upside down",
        attend_tiled.softmax,
        "forbidden = ~part.allowed",
        "forbidden = part.allowed",
        "attend",
        "agreement",
    ),
    Mistake(
        "a row masked whole is 0/0",
        attend_tiled.softmax,
        ".masked_fill_(empty, 0.0)",
        "",
        "attend, a row masked whole",
        "agreement",
    ),
    Mistake(
        "the keys' error made of keys",
        attend_tiled.backward,
        "Delta_s.mT @ q[..., rows, :]",
        "Delta_s.mT @ k[..., rows, :]",
        "attend",
        "agreement",
    ),
)
