"""Squared norms and inner products of gradients that are given as factors, sample by sample.

G_b = X_bᵗ D_b                          x ~ (B, T, n), D ~ (B, T, m), G ~ (B, n, m): the gradient of each sample
‖G_b‖² = ⟨X_b X_bᵗ, D_b D_bᵗ⟩           tr(D_bᵗ X_b X_bᵗ D_b): T² numbers instead of n m
⟨G_b, G'_b⟩ = ⟨X_b X'_bᵗ, D_b D'_bᵗ⟩    the same for two gradients of one parameter, handed over at two places

Sums are formed in float32 at least. Everything is done in slices of at most PIECE numbers, or of one sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from handgrad.core.run import widened

PIECE = 1 << 22  # elements


@dataclass
class Grams:
    """X Xᵗ of inputs that several matrices share, such as those of query, key and value; each is formed once.

    `uses` counts the matrices beforehand. Gram matrices of more than PIECE numbers are not held.
    """

    uses: Counter[Any] = field(default_factory=Counter)
    made: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)  # the input stays, so that its key is its own

    def expect(self, x: Tensor, times: int) -> None:
        self.uses[key(x)] += times

    def shared(self, x: Tensor) -> int:
        return max(1, self.uses[key(x)]) if len(x) * x.shape[1] ** 2 <= PIECE else 1

    def of(self, x: Tensor) -> Tensor:
        if key(x) not in self.made:
            self.made[key(x)] = x, gram(x)
        return self.made[key(x)][1]


def key(x: Tensor) -> Any:
    return x.data_ptr(), x.shape, x.stride(), x.dtype


def gram(x: Tensor) -> Tensor:
    return widened(x) @ widened(x).mT


def squares(x: Tensor, D: Tensor, grams: Grams | None = None) -> Tensor:
    """‖X_bᵗ D_b‖² ~ (B,), by the Gram matrices where they are cheaper, T²(n + m) < T n m, else directly.

    >>> x, D = torch.ones(1, 2, 3), torch.ones(1, 2, 5)
    >>> squares(x, D), (x.mT @ D).square().sum()
    (tensor([60.]), tensor(60.))
    """
    _, T, n = x.shape
    m, shared = D.shape[-1], 1 if grams is None else grams.shared(x)
    if T * (n / shared + m) >= n * m:
        return direct(x, D)
    if grams is None or shared == 1:
        return products(x, D, x, D)
    return (grams.of(x) * gram(D)).sum((1, 2))


def direct(x: Tensor, D: Tensor) -> Tensor:
    """The same with each sample's gradient formed, some of its rows at a time."""
    B, n, m = len(x), x.shape[-1], D.shape[-1]
    found = []
    for some in slices(B, n * m):
        rows = max(1, PIECE // (len(range(*some.indices(B))) * m))
        parts = [widened(part).mT @ widened(D[some]) for part in torch.split(x[some], rows, -1)]
        found.append(torch.stack([g.flatten(1).square().sum(1) for g in parts]).sum(0))
    return torch.cat(found)


def direct_with_sum(x: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """‖X_bᵗ D_b‖² ~ (B,) and Σ_b X_bᵗ D_b ~ (n, m), of the same products."""
    found, total = [], None
    for some in slices(len(x), x.shape[-1] * D.shape[-1]):
        g = x[some].mT @ D[some]
        found.append(g.flatten(1).square().sum(1))
        total = g.sum(0) if total is None else total.add_(g.sum(0))
    assert total is not None, "a batch has samples"
    return torch.cat(found), total


def products(x: Tensor, D: Tensor, x2: Tensor, D2: Tensor) -> Tensor:
    """⟨X_bᵗ D_b, X'_bᵗ D'_b⟩ ~ (B,), of x, D ~ (B, T, ·) and x', D' ~ (B, T', ·)."""
    B, T, _ = x.shape
    found = []
    for some in slices(B, T * x2.shape[1]):
        left = widened(x[some]) @ widened(x2[some]).mT
        found.append((left * (widened(D[some]) @ widened(D2[some]).mT)).sum((1, 2)))
    return torch.cat(found)


def row_squares(ids: Tensor, D: Tensor) -> Tensor:
    """‖OHE(ids_b)ᵗ D_b‖² ~ (B,), of ids ~ (B, T) and D ~ (B, T, m): the rows of a repeated id are one row.

    >>> row_squares(torch.tensor([[7, 7], [7, 2]]), torch.ones(2, 2, 1))
    tensor([4., 2.])
    """
    found = []
    for some in slices(len(ids), D[0].numel()):
        order = ids[some].argsort(1)
        known = ids[some].gather(1, order)
        row = torch.zeros_like(known)
        row[:, 1:] = (known[:, 1:] != known[:, :-1]).cumsum(1)  # equal ids, which are neighbours now, share a row
        by_id = widened(D[some]).gather(1, order.unsqueeze(-1).expand_as(D[some]))
        g = torch.zeros_like(by_id).scatter_add_(1, row.unsqueeze(-1).expand_as(by_id), by_id)
        found.append(g.square().sum((1, 2)))
    return torch.cat(found)


def row_products(ids: Tensor, D: Tensor, ids2: Tensor, D2: Tensor) -> Tensor:
    """⟨OHE(ids_b)ᵗ D_b, OHE(ids'_b)ᵗ D'_b⟩ ~ (B,)."""
    found = []
    for some in slices(len(ids), ids.shape[1] * ids2.shape[1]):
        same = ids[some, :, None] == ids2[some, None, :]
        found.append((widened(D[some]) @ widened(D2[some]).mT).masked_fill(~same, 0.0).sum((1, 2)))
    return torch.cat(found)


def mixed_products(x_at: Tensor, D: Tensor, D2: Tensor) -> Tensor:
    """⟨X_bᵗ D_b, OHE(ids_b)ᵗ D'_b⟩ = Σ_{ts} x_t[ids_s] D_t·D'_s ~ (B,), of x_at = x[..., ids] ~ (B, T, T')."""
    found = []
    for some in slices(len(D), x_at[0].numel()):
        found.append((widened(x_at[some]) * (widened(D[some]) @ widened(D2[some]).mT)).sum((1, 2)))
    return torch.cat(found)


def columns_at(x: Tensor, ids: Tensor) -> Tensor:
    """x[..., ids] ~ (B, T, T'), of x ~ (B, T, n) and ids ~ (B, T')."""
    return x.gather(-1, ids[:, None].expand(-1, x.shape[1], -1))


def slices(n: int, each: int) -> Iterator[slice]:
    """0 … n - 1 in pieces of as many as give at most PIECE elements, and of one at least."""
    size = max(1, PIECE // max(1, each))
    return (slice(i, i + size) for i in range(0, n, size))
