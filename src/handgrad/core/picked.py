"""Which part of a signal: some positions, some heads.

The axes follow from the signal's shape (docs/notation.md gives them all):

    (B, T, d)         positions on axis 1
    (B, H, T, …)      heads on axis 1, positions on axis 2: of scores and weights (B, H, T, S), the tokens that ask
    (B, T, S, d_a)    `pair`, the one other signal of four axes: positions on axis 1
    (B, n)            in a recurrent cell: neither; the token is part of the path

Every axis stays: one position of (B, T, d) is (B, 1, d).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError, cut

Places: TypeAlias = "int | slice | Iterable[int] | Tensor | None"


@dataclass(frozen=True)
class Picked:
    """Positions and heads by number, from the end where negative; None is all of them.

    >>> x = torch.arange(12.0).view(1, 2, 3, 2)
    >>> Picked(positions=-1, heads=[1]).of("blocks.0.attention.rho", x)
    tensor([[[[10., 11.]]]])
    """

    positions: Places = None
    heads: Places = None

    def __post_init__(self) -> None:
        for name in ("positions", "heads"):
            asked = getattr(self, name)
            if asked is None or isinstance(asked, slice):
                continue
            numbers: Any = asked.tolist() if hasattr(asked, "tolist") else asked  # of a tensor, or of NumPy
            if type(numbers) is int:
                numbers = [numbers]
            if not isinstance(numbers, Iterable) or isinstance(numbers, str | Mapping):
                raise ConfigError(f"{name} is {cut(asked)}, and must be a whole number, a slice, or a list of numbers")
            numbers = tuple(numbers)
            if not numbers or not all(type(n) is int for n in numbers):
                raise ConfigError(f"{name} is {cut(asked)}, and must be one or several whole numbers, or a slice")
            object.__setattr__(self, name, numbers)

    @property
    def whole(self) -> bool:
        return self.positions is None and self.heads is None

    def of(self, path: str, x: Tensor) -> Tensor:
        """That part of x, as a copy: x itself need not be kept for it. All of x is x."""
        for axis, index in self._indices(path, x).items():
            x = x.index_select(axis, index)
        return x

    def put(self, path: str, x: Tensor, part: Tensor) -> Tensor:
        """x with that part exchanged; x itself is not written to."""
        if self.whole:
            return part
        indices = self._indices(path, x)
        x, last = x.clone(memory_format=torch.contiguous_format), max(indices)
        if len(indices) == 1:
            return x.index_copy_(last, indices[last], part)
        x[:, indices[1][:, None], indices[2]] = part  # heads and positions: (B, H, T, …)
        return x

    def _indices(self, path: str, x: Tensor) -> dict[int, Tensor]:
        """Axis -> the numbers on it, from 0."""
        found, there = {}, axes(path, x.ndim)
        for name in ("heads", "positions"):
            asked = getattr(self, name)
            if asked is None:
                continue
            if name not in there:
                hint = "; such as q, k, v, raw, rho and out of an attention have one" if name == "heads" else ""
                raise ShapeError(
                    f"{name} were asked for, and the signal {path} ~ {tuple(x.shape)} has no axis of {name}{hint}. "
                    f"Watch it without {name}, in a watch of its own"
                )
            found[there[name]] = torch.tensor(numbered(asked, x.shape[there[name]], name, path), device=x.device)
        return found


def axes(path: str, n_axes: int) -> dict[str, int]:
    """
    >>> axes("blocks.0.attention.Delta_rho", 4), axes("blocks.0.mlp", 3), axes("0.pre", 2)
    ({'heads': 1, 'positions': 2}, {'positions': 1}, {})
    """
    name = path.rpartition(".")[2].removeprefix("Delta_")
    if n_axes == 3 or (n_axes == 4 and name == "pair"):
        return {"positions": 1}
    return {"heads": 1, "positions": 2} if n_axes == 4 else {}


def numbered(asked: slice | tuple[int, ...], n: int, name: str, path: str) -> list[int]:
    """Which of n, in the order asked for."""
    if isinstance(asked, slice):
        chosen = list(range(n)[asked])
    else:
        if out := [i for i in asked if not -n <= i < n]:
            raise ShapeError(
                f"{name} {out[0]} was asked for, and the signal {path} has {n}: 0 to {n - 1}, or -{n} to -1"
            )
        chosen = [i % n for i in asked]
    if not chosen:
        raise ShapeError(f"{name} {asked} picks nothing of the signal {path}, which has {n}")
    if len(set(chosen)) < len(chosen):
        raise ShapeError(f"{name} {asked} names one of the {n} of the signal {path} twice")
    return chosen
