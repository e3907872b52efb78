"""A cache whose shapes never change: all its room takes part in every pass, and a mask hides what is still empty.

A compiled pass is made for one set of shapes. `KVCache` hands out ever longer keys and values; here they are always
`capacity` long, and where the next token goes is a number in a tensor, which a compiled pass reads when it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError
from handgrad.generate.cache import Kept


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


@dataclass
class StaticCache:
    """Keys and values of `capacity` tokens a layer. Passes run with `position = cache.position`, the tensor itself.

    Who runs a pass over T tokens asks `reserve(T)` before it and says `advance(T)` after it.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> cache, tokens = StaticCache(8), torch.tensor([[1, 2, 3, 4]])
    >>> for part in tokens.split([3, 1], dim=1):
    ...     logits = model(part, hg.Run(cache=cache, position=cache.position))
    ...     cache.advance(part.shape[1])
    >>> torch.allclose(logits, model(tokens)[:, 3:])
    True
    """

    capacity: int
    position: Tensor = field(default_factory=zero)
    layers: dict[str, Kept] = field(default_factory=dict)
    length: int = 0

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ConfigError(f"a cache for {self.capacity} tokens holds nothing; its capacity must be at least 1")

    def extend(self, path: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep k, v ~ (B, H, T, D) of T new tokens from `position` on; all the room comes back, (B, H, capacity, D)."""
        if path not in self.layers:
            self.layers[path] = Kept(self.room(k), self.room(v))
        kept = self.layers[path]
        where = self.position + torch.arange(k.shape[-2], device=self.position.device)
        kept.k[:, :, where] = k
        kept.v[:, :, where] = v
        return kept.k, kept.v

    def room(self, new: Tensor) -> Tensor:
        """Zeros: what is hidden is weighed by 0, and 0 times what lies in fresh memory could be NaN."""
        batch, heads, _, width = new.shape
        return torch.zeros((batch, heads, self.capacity, width), dtype=new.dtype, device=new.device)

    def reserve(self, n: int) -> None:
        """Raises ShapeError where n more tokens do not fit."""
        if self.length + n > self.capacity:
            raise ShapeError(
                f"the cache has room for {self.capacity} tokens; {self.length} are kept and {n} more came. "
                "Make it larger, or rewind it"
            )

    def advance(self, n: int) -> None:
        self.length += n
        self.position += n

    def rewind(self, length: int = 0) -> None:
        """Forget all but the first `length` tokens: what lies beyond is hidden, and written over."""
        if not 0 <= length <= self.length:
            raise ConfigError(f"cannot rewind the cache to {length} tokens: it holds {self.length}")
        self.length = length
        self.position.fill_(length)
