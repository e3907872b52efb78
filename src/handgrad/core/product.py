"""Products of activations, as layers and rules ask for them."""

from __future__ import annotations

import torch
from torch import Tensor, compiler

from handgrad.core.roomy import mm
from handgrad.core.run import widened

FEW = 8  # rows, of a product with a matrix that is no parameter: the heads of a group
STREAMS = 4  # places of a matrix that are read at once


def product(a: Tensor, w: Tensor) -> Tensor:
    """a w, for a ~ (..., T, n) and w ~ (..., n, m).

    Where a pass is being compiled for one token, it is written as the sum it stands for, Σ_i a_i w_i: a compiler makes
    one loop of it, which reads w as fast as memory gives it. A library's product of one row takes up to three times
    as long.

    >>> import torch
    >>> product(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[4., 6.]])
    """
    if compiler.is_compiling() and a.shape[:-1].numel() <= w.shape[:-2].numel() * (FEW if w.ndim > 2 else 1):
        return summed(a, w) if w.ndim > 2 else of_row(a.flatten(), w).view(*a.shape[:-1], w.shape[-1])
    return mm(a, w)


def summed(a: Tensor, w: Tensor) -> Tensor:
    """a ~ (..., n), w ~ (..., n, m) -> Σ_i a_i w_i ~ (..., m), summed in float32 at least."""
    return (widened(a).unsqueeze(-1) * w.unsqueeze(-3)).sum(-2).to(a.dtype)


def of_row(a: Tensor, w: Tensor) -> Tensor:
    """a ~ (n,), w ~ (n, m) -> a w ~ (m,): loops over STREAMS parts of the outputs, which become one loop.

    One output after the other would wait for each of its sums, and convert `a` again for each.
    """
    a = a.as_strided(a.shape, (1,))  # written to memory first: else a norm or gate is formed again for each output
    m = w.shape[1]
    width = max(1, m // STREAMS)
    parts = [w[:, first : first + width] for first in range(0, m, width)]
    return torch.cat([(widened(a)[:, None] * part).sum(0) for part in parts]).to(a.dtype)


def perhaps(x: Tensor) -> bool:
    """Is any of x true? A pass that is being compiled cannot know, and has to be ready for it."""
    return compiler.is_compiling() or bool(x.any())
