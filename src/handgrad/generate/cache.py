"""Keys and values of the tokens that have been read, kept so that no token is ever read twice.

A layer hands over the keys and values of its new tokens and gets those of all tokens back: views of memory that is
taken once, at the first token, for `capacity` tokens. The views are valid until the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError


@dataclass
class Kept:
    """The memory of one layer: k, v ~ (B, H, capacity, D), of which the first `length` tokens are filled."""

    k: Tensor
    v: Tensor
    length: int = 0


@dataclass
class KVCache:
    """Room for the keys and values of `capacity` tokens, layer by layer; a layer is known by its path.

    A pass over T new tokens runs with `position = cache.length`, and T may be any number that still fits.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> cache, tokens = KVCache(8), torch.tensor([[1, 2, 3, 4]])
    >>> _ = model(tokens[:, :3], hg.Run(cache=cache))
    >>> last = model(tokens[:, 3:], hg.Run(cache=cache, position=cache.length))
    >>> cache.length, torch.allclose(last, model(tokens)[:, 3:])
    (4, True)
    """

    capacity: int
    layers: dict[str, Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ConfigError(f"a cache for {self.capacity} tokens holds nothing; its capacity must be at least 1")

    @property
    def length(self) -> int:
        """Tokens that every layer has read."""
        return min((kept.length for kept in self.layers.values()), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken, filled or not."""
        return sum(kept.k.nbytes + kept.v.nbytes for kept in self.layers.values())

    def extend(self, path: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep k, v ~ (B, H, T, D) of T new tokens of the layer at `path`; k and v of all its tokens come back.

        Raises ShapeError where the tokens do not fit the room that is left, or belong to another batch.
        """
        kept = self.layers.get(path)
        if kept is None:
            kept = self.layers[path] = Kept(self.room(k), self.room(v))
        for name, memory, new in (("keys", kept.k, k), ("values", kept.v, v)):
            if memory[..., :0, :].shape != new[..., :0, :].shape:
                raise ShapeError(
                    f"the cache of {path or 'the model'} was started with {name} (batch, heads, tokens, width) of "
                    f"{tuple(memory.shape)}; found {tuple(new.shape)}. One cache serves one batch; make a new one"
                )
        end = kept.length + k.shape[-2]
        if end > self.capacity:
            raise ShapeError(
                f"the cache has room for {self.capacity} tokens; {kept.length} are kept and {k.shape[-2]} more came. "
                "Make it larger, or rewind it"
            )
        kept.k[..., kept.length : end, :] = k
        kept.v[..., kept.length : end, :] = v
        kept.length = end
        return kept.k[..., :end, :], kept.v[..., :end, :]

    def rewind(self, length: int = 0) -> None:
        """Forget all but the first `length` tokens. The memory stays and is used again."""
        if not 0 <= length <= self.length:
            raise ConfigError(f"cannot rewind the cache to {length} tokens: it holds {self.length}")
        for kept in self.layers.values():
            kept.length = length

    def room(self, new: Tensor) -> Tensor:
        batch, heads, _, width = new.shape
        return torch.empty((batch, heads, self.capacity, width), dtype=new.dtype, device=new.device)
