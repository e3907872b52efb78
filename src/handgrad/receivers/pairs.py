"""What has been handed over for one slot and waits: factors, joined or multiplied with each other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError
from handgrad.core.gradients import Gradients
from handgrad.receivers.products import columns_at, mixed_products, products, row_products
from handgrad.receivers.samples import Range


class Into(NamedTuple):
    """Who is to have the sum, Σ_b X_bᵗ D_b, as well."""

    grads: Gradients
    name: str


class Outer(NamedTuple):
    """Xᵗ D, of x ~ (b, T, n) and D ~ (b, T, m); once `at` is there, only those columns of x are left."""

    where: Range
    x: Tensor
    D: Tensor
    at: Tensor | None = None  # (b, T')
    into: Into | None = None

    def of(self, some: slice) -> Outer:
        return self._replace(x=self.x[some], D=self.D[some], at=None if self.at is None else self.at[some])


class Rows(NamedTuple):
    """OHE(ids)ᵗ D, of ids ~ (b, T) and D ~ (b, T, m)."""

    where: Range
    ids: Tensor
    D: Tensor

    def of(self, some: slice) -> Rows:
        return self._replace(ids=self.ids[some], D=self.D[some])


Factors = Outer | Rows


def joined(factors: list[Factors]) -> list[Factors]:
    """Factors of the same samples as one, along the tokens: what they stand for adds up."""
    kinds: dict[tuple[type, Range], list[Factors]] = {}
    for one in factors:
        kinds.setdefault((type(one), one.where), []).append(one)
    return [
        some[0] if len(some) == 1 else type(some[0])(where, *(torch.cat([f[i] for f in some], 1) for i in (1, 2)))
        for (_, where), some in kinds.items()
    ]


def inner(one: Factors, other: Factors) -> Tensor:
    """⟨g_b, g'_b⟩ ~ (b,) of two gradients of one slot."""
    if isinstance(one, Outer) and isinstance(other, Outer):
        if one.at is not None or other.at is not None:
            raise ConfigError("a matrix that was to be looked up by `tokens` is multiplied twice; leave tokens out")
        return products(one.x, one.D, other.x, other.D)
    if isinstance(one, Rows) and isinstance(other, Rows):
        return row_products(one.ids, one.D, other.ids, other.D)
    outer, rows = (one, other) if isinstance(one, Outer) else (other, one)
    assert isinstance(outer, Outer), "one of them is a product"
    assert isinstance(rows, Rows), "and the other is not"
    if outer.at is None:
        return mixed_products(columns_at(outer.x, rows.ids), outer.D, rows.D)
    if not torch.equal(outer.at, rows.ids):
        raise ShapeError("the embedding is looked up with other ids than the `tokens` that were given beforehand")
    return mixed_products(outer.x, outer.D, rows.D)
