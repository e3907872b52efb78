"""Results with a little memory behind them: the hole that one leaves in the heap takes a block of its own size.

torch asks for blocks aligned to 64 bytes, and glibc finds one in a hole that is larger by 96 bytes (`plan/heap.py`).
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

LARGE = 1 << 20  # bytes: what lies in such holes
SLACK = 256  # bytes


def roomy(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Fresh memory, of the type and device of another.

    >>> x = roomy((2, 3), torch.ones(1))
    >>> x.shape, x.untyped_storage().nbytes()
    (torch.Size([2, 3]), 280)
    """
    n = prod(shape)
    return like.new_empty(n + SLACK // like.element_size())[:n].view(shape)


def pays(n: int, like: Tensor) -> bool:
    """Whether n elements are worth it; never where an oracle or a compiler follows the pass."""
    return n * like.element_size() >= LARGE and not torch.is_grad_enabled() and get_proxy_mode() is None


def moved(y: Any) -> Any:
    """A copy elsewhere: a result that is kept while all around it is given up would cut that memory in two."""
    return roomy(tuple(y.shape), y).copy_(y) if isinstance(y, Tensor) and pays(y.numel(), y) else y


def mm(a: Tensor, w: Tensor) -> Tensor:
    """a w for a ~ (..., n) and w ~ (n, m).

    >>> mm(torch.ones(1, 2, 3), torch.ones(3, 1)).tolist()
    [[[3.0], [3.0]]]
    """
    if w.ndim != 2 or a.ndim < 2 or not pays(a.shape[:-1].numel() * w.shape[1], a):
        return a @ w
    out = roomy((*a.shape[:-1], w.shape[1]), a)
    torch.mm(a.reshape(-1, a.shape[-1]), w, out=out.view(-1, w.shape[1]))
    return out
