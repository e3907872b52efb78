"""Groups of query heads that share one key and value head: fewer keys and values to compute and to keep.

forward      k'_h = k_g for every query head h of group g = h // n        (each of the G heads n times in a row)
backward     Δ_g = Σ_h Δ'_h over the n query heads of group g
from         Σ_h Δ'_h·dk'_h = Σ_g (Σ_{h in g} Δ'_h)·dk_g
shapes       k, Δ ~ (B, G, S, D)   k', Δ' ~ (B, G·n, S, D)   n a count
assumes      heads are the axis before the tokens; n = 1 changes nothing, G = 1 shares one head among all queries
cost         no FLOPs forward, n - 1 additions an element backward; saves nothing but n
source       docs/equations.md, row "grouped queries"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run


class Saved(NamedTuple):
    n: int  # query heads of one group


def forward(k: Tensor, n: int, run: Run) -> tuple[Tensor, Saved]:
    return k.repeat_interleave(n, dim=-3), Saved(n)


def backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    return torch.unflatten(Delta, -3, (-1, saved.n)).sum(-3)  # Δ_g = Σ_{h in g} Δ'_h     of  repeat_interleave(n)


GROUP = Rule("group", Pair(forward, backward))
