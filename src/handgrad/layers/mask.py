"""Which keys a query may attend to: frozen objects that give a bool matrix, True = may attend.

`first` is the position of the first query: a number, or one for each sample, (B,), where samples were padded on the
left; their padding stands at negative positions, which nobody may attend to. The last key is the last query's own
token, so a mask works the same over a whole sequence and over the tokens that follow a cache. Only where `first` is a
tensor of one number do keys stand from position 0 on, however many there are: those after the last query are room
still empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from handgrad.core.allowed import Tile, require_bool, tile
from handgrad.core.errors import ConfigError, ShapeError

First = int | Tensor
Device = str | torch.device


class Mask(Protocol):
    """-> allowed ~ (n_queries, n_keys), or (B, 1, n_queries, n_keys), or what broadcasts to it; None: all of them."""

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor | None: ...


@dataclass(frozen=True)
class Bound:
    """A mask with its numbers of queries and keys: what a rule of attention asks for whole, or rows at a time.

    >>> Bound(Causal(), 4, 4, 0).tile(2, 4)
    Tile(first=0, free=2, end=4, allowed=tensor([[ True, False],
            [ True,  True]]), certain=True)
    """

    mask: Mask
    n_queries: int
    n_keys: int
    first: First
    device: Device = "cpu"

    def whole(self) -> Tensor | None:
        return self.mask(self.n_queries, self.n_keys, self.first, self.device)

    def tile(self, start: int, stop: int) -> Tile:
        """By the mask's own `tile`, where it has one and keys end with the queries; else some rows of the whole.

        Heads that share their keys may come as rows of one query: more rows than queries, and the whole is one row.
        """
        own = getattr(self.mask, "tile", None) if stop <= self.n_queries else None
        if own is not None and isinstance(self.first, int) and self.first + self.n_queries == self.n_keys:
            return own(start + self.first, stop + self.first, self.device)
        return tile(self.whole(), start, stop, self.n_keys)


@dataclass(frozen=True)
class Causal:
    """Query i of n_queries stands at position first + i, and may attend to keys 0 … first + i.

    >>> Causal()(2, 4, 2)
    tensor([[ True,  True,  True, False],
            [ True,  True,  True,  True]])
    """

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor | None:
        if isinstance(first, int):
            return None if n_queries == 1 == n_keys - first else lower(n_queries, n_keys, first, str(device))
        query, key = positions(n_queries, n_keys, first, device)
        return (key <= query) & (key >= 0)

    def tile(self, start: int, stop: int, device: Device) -> Tile:
        """Queries at the positions start … stop - 1: all of them may attend to what stands before `start`."""
        return Tile(0, start, stop, lower(stop - start, stop - start, 0, str(device)), True)


@lru_cache(maxsize=64)
def lower(n_queries: int, n_keys: int, first: int, device: str) -> Tensor:
    query, key = positions(n_queries, n_keys, first, device)
    return key <= query


@dataclass(frozen=True)
class Everyone:
    """Every query may attend to every key: attention without a mask."""

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor | None:
        if isinstance(first, int):
            return None
        key = positions(n_queries, n_keys, first, device)[1]
        return key < first + n_queries if first.ndim == 0 else key >= 0


@dataclass(frozen=True)
class Window:
    """A sliding window: a query may attend to itself and to the width - 1 tokens before it.

    >>> Window(2)(2, 4, 2).int()
    tensor([[0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"a window of {self.width} tokens leaves nothing to attend to; give at least 1 (oneself)")

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor:
        query, key = positions(n_queries, n_keys, first, device)
        return (key <= query) & (key > query - self.width) & (key >= 0)

    def tile(self, start: int, stop: int, device: Device) -> Tile:
        """Queries at the positions start … stop - 1: the keys of their windows and no others."""
        first = max(0, start - self.width + 1)
        return Tile(first, first, stop, self(stop - start, stop - first, start - first, device), True)


@dataclass(frozen=True)
class BlockSparse:
    """Tokens in blocks of `size`: queries of block i may attend to keys of block j where pattern[i][j].

    >>> BlockSparse(((True, False), (True, True)), size=2)(3, 3, 0).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """

    pattern: tuple[tuple[bool, ...], ...]
    size: int

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.pattern}
        if self.size < 1 or lengths != {len(self.pattern)}:
            raise ConfigError(
                f"a block pattern is a square of bools over blocks of at least 1 token; found {len(self.pattern)} rows "
                f"of lengths {sorted(lengths)} and size {self.size}"
            )

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor:
        query, key = positions(n_queries, n_keys, first, device)
        room = len(self.pattern) * self.size
        if int(query.max()) >= room:
            raise ShapeError(
                f"the block pattern covers {room} tokens, and position {int(query.max())} was asked for; "
                "give fewer tokens, or a larger pattern"
            )
        pattern = torch.tensor(self.pattern, dtype=torch.bool, device=device)
        rows, columns = (x.clamp(min=0).div(self.size, rounding_mode="floor") for x in (query, key))
        return pattern[rows, columns] & (key >= 0)


@dataclass(frozen=True, eq=False)
class KeyPadding:
    """Keys that are no tokens are attended to by nobody: valid ~ (B, S) bool, True = a token.

    >>> KeyPadding(torch.tensor([[False, True, True]]))(2, 3, 0).shape
    torch.Size([1, 1, 1, 3])
    """

    valid: Tensor

    def __post_init__(self) -> None:
        require_bool(self.valid)

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor:
        if n_keys > self.valid.shape[-1]:
            raise ShapeError(
                f"the padding mask tells of {self.valid.shape[-1]} keys, and there are {n_keys}; "
                "give it a column for every key"
            )
        return self.valid[:, None, None, :n_keys].to(device)


@dataclass(frozen=True)
class And:
    """What every one of several masks allows.

    >>> And((Causal(), Window(1)))(2, 2, 0).int()
    tensor([[1, 0],
            [0, 1]], dtype=torch.int32)
    """

    parts: tuple[Mask, ...]

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor | None:
        allowed: Tensor | None = None
        for part in self.parts:
            one = part(n_queries, n_keys, first, device)
            allowed = one if allowed is None else allowed if one is None else allowed & one
        return allowed


def positions(n_queries: int, n_keys: int, first: First, device: Device) -> tuple[Tensor, Tensor]:
    """Of the queries (T, 1) and of the keys (1, S); (B, 1, T, 1) and (B, 1, 1, S) where `first` is one a sample."""
    query = torch.arange(n_queries, device=device)[:, None]
    key = torch.arange(n_keys, device=device)[None]
    if isinstance(first, int) or first.ndim == 0:
        return query + first, key
    first = first.to(device)[:, None, None, None]
    return query + first, key + (first + n_queries - n_keys)


CAUSAL, EVERYONE = Causal(), Everyone()
