"""The numbers of a model, laid out for writing one token at a time: each is read once a token, from end to end.

A product with one row of activations reads its matrix once, so writing is as fast as memory is read. Two things help:
the matrix of a linear layer lies column by column, so that each output's sum runs along memory; and memory comes in
large pages, where the system gives them (Linux), so that fewer addresses have to be looked up.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from handgrad.core.params import Layout, Tree, nested

LARGE_PAGE, ADVICE = 1 << 21, 14  # Linux: 2 MiB, MADV_HUGEPAGE


@dataclass(frozen=True)
class Place:
    """Where one matrix or vector starts in the flat buffer; `turned` where its columns lie one after the other."""

    start: int
    shape: tuple[int, ...]
    turned: bool

    def of(self, flat: Tensor) -> Tensor:
        part = flat[self.start : self.start + prod(self.shape)]
        return part.view(self.shape[::-1]).mT if self.turned else part.view(self.shape)


def places_of(layout: Layout) -> dict[str, Place]:
    """Every name of the layout, tied ones too. The matrices named `w` are turned; embeddings are rows already."""
    owners = {
        name: Place(start, shape, len(shape) == 2 and name.rpartition(".")[2] == "w")
        for name, (start, shape) in layout.places.items()
    }
    return {name: owners[layout.owner(name)] for name in layout.slots}


def tree_of(places: Mapping[str, Place], flat: Tensor) -> Tree:
    """What layers walk, as views of `flat`: the same names and shapes as `Buffer.tree`."""
    return nested({name: place.of(flat) for name, place in places.items()})


def laid_out(layout: Layout, copies: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """For each of several parts that share a layout, a flat copy of its numbers, each matrix as `places_of` says.

    >>> from handgrad.core.params import Slot
    >>> b = Layout({"w": Slot((2, 3), std=1.0)}).draw(seed=0)
    >>> (flat,) = laid_out(b.layout, [b])
    >>> torch.equal(tree_of(places_of(b.layout), flat)["w"], b["w"])
    True
    """
    like, places = next(iter(copies[0].values())), places_of(layout)
    flats = in_large_pages(len(copies) * layout.size, like.dtype, like.device).zero_().view(len(copies), -1)
    for flat, numbers in zip(flats, copies, strict=True):
        for name in layout.places:
            places[name].of(flat).copy_(numbers[name])
    return list(flats)


def in_large_pages(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """n numbers not yet written; ordinary memory where the system has no large pages."""
    x = torch.empty(n, dtype=dtype, device=device)
    if sys.platform != "linux" or device.type != "cpu":
        return x
    first = -(-x.data_ptr() // LARGE_PAGE) * LARGE_PAGE
    length = (x.data_ptr() + x.nbytes - first) // LARGE_PAGE * LARGE_PAGE
    if length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), ADVICE)  # advice: may be ignored
    return x
