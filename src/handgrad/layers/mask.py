"""Which keys a query may attend to: frozen objects that give a bool matrix, True = may attend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Causal:
    """Query i of n_queries stands at position first + i, and may attend to keys 0 … first + i.

    >>> Causal()(2, 4, 2)
    tensor([[ True,  True,  True, False],
            [ True,  True,  True,  True]])
    """

    def __call__(self, n_queries: int, n_keys: int, first: int, device: str | torch.device = "cpu") -> Tensor:
        return lower(n_queries, n_keys, first, str(device))


@lru_cache(maxsize=64)
def lower(n_queries: int, n_keys: int, first: int, device: str) -> Tensor:
    query = torch.arange(first, first + n_queries, device=device)[:, None]
    return torch.arange(n_keys, device=device) <= query


@dataclass(frozen=True)
class Everyone:
    """Every query may attend to every key: attention without a mask."""

    def __call__(self, n_queries: int, n_keys: int, first: int, device: str | torch.device = "cpu") -> None:
        return None


Mask = Causal | Everyone
CAUSAL = Causal()
