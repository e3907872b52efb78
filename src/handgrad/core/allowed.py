"""Which keys each query may attend to, asked for as a whole or for some rows of queries at a time.

A rule of attention is given one of three things: None (every key), a bool matrix (True = may attend), or an `Allowed`,
which forms the matrix, or only the tile of it that is being worked on, when it is asked to.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from handgrad.core.errors import ShapeError


class Tile(NamedTuple):
    """Some rows of queries: their keys are first … end - 1; no other may be attended to.

    allowed   bool over the keys free … end - 1, broadcast to (B, H, rows, end - free); None: all of them
    Every row may attend to all of first … free - 1. `certain` says that no row is without a key to attend to.
    """

    first: int
    free: int
    end: int
    allowed: Tensor | None
    certain: bool


class Allowed(Protocol):
    def whole(self) -> Tensor | None: ...
    def tile(self, start: int, stop: int) -> Tile: ...


Mask = Tensor | Allowed | None


def whole(allowed: Mask) -> Tensor | None:
    """The bool matrix, or None where every key may be attended to."""
    mask = allowed if allowed is None or isinstance(allowed, Tensor) else allowed.whole()
    require_bool(mask)
    return mask


def tile(allowed: Mask, start: int, stop: int, n_keys: int) -> Tile:
    """The rows start … stop - 1.

    >>> tile(torch.ones(4, 4, dtype=torch.bool).tril(), 1, 3, 4).allowed.int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0]], dtype=torch.int32)
    """
    if allowed is None:
        return Tile(0, n_keys, n_keys, None, True)
    if not isinstance(allowed, Tensor):
        return allowed.tile(start, stop)
    require_bool(allowed)
    rows = allowed if allowed.shape[-2] == 1 else allowed[..., start:stop, :]
    return Tile(0, 0, n_keys, rows, False)


def require_bool(allowed: Tensor | None) -> None:
    """A mask of numbers means another thing to everybody: 1 = may attend to some, a score to be added to others."""
    if allowed is not None and allowed.dtype != torch.bool:
        raise ShapeError(
            f"a mask must be bool, True = may attend; found {allowed.dtype}, which could as well be scores to add. "
            "Compare it yourself, for example mask == 1"
        )
