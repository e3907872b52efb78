"""What a computation costs, counted while it runs: products, bytes moved, bytes alive.

The same code runs on tensors that hold numbers and on tensors of the device "meta", which have a shape and no memory.
On those, an answer that depends on numbers is that of the batch one plans for: ids are 1, every target counts, no row
of a mask is empty.

Limits: what an operator takes for itself and gives back before it returns is known for `WORKSPACE` only (the tests
compare whole steps with what torch's allocator reports); a compiled function counts as the formulas it was made from.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from handgrad.core.errors import ConfigError
from handgrad.plan.heap import Heap

aten = torch.ops.aten
PRODUCTS = {  # operator -> place of its two factors
    **dict.fromkeys((aten.mm, aten.bmm, aten.mv, aten.dot), 0),
    **dict.fromkeys((aten.addmm, aten.addmm_, aten.baddbmm, aten.baddbmm_, aten.addmv, aten.addmv_), 1),
}
GATHERS = (aten.index, aten.index_select, aten.gather, aten.embedding)  # read as much as they write
VIEWS = (aten._unsafe_view, aten._reshape_alias, aten.lift_fresh)  # beside those that torch marks as views
SCATTERS = (aten.index_add_, aten.scatter_add_, aten.index_put_)  # read, add to and write as much as their source has


def logsumexp_workspace(x: Tensor, *args: Any, **kwargs: Any) -> int:
    return x.nbytes  # exp(x - max)


def sum_workspace(x: Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> int:
    return x.numel() * dtype.itemsize if dtype not in (None, x.dtype) else 0  # x in the type that is asked for


def add_workspace(x: Tensor, other: Any, *args: Any, **kwargs: Any) -> int:
    mixed = isinstance(other, Tensor) and other.dtype != x.dtype
    return other.numel() * x.dtype.itemsize if mixed else 0  # the other in the type of x


WORKSPACE: dict[Any, Callable[..., int]] = {
    aten.logsumexp: logsumexp_workspace,
    aten.sum: sum_workspace,
    aten.add_: add_workspace,
}


class Product(NamedTuple):
    """`batch` products (m, k) (k, n) of one type: 2·batch·m·n·k FLOPs. `layout`: "t" where a factor is transposed."""

    dtype: torch.dtype
    layout: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


class Moved(NamedTuple):
    """An operator that is no product: bytes read and written, and the size of its result where that is new memory."""

    name: str
    bytes: int
    fresh: int


class Trace(TorchDispatchMode):
    """Counts everything inside `with`; may be entered again. Memory from before counts once it is seen.

    live, peak   bytes of storages now, and at most since `reset_peak`; views and writing in place make no storage
    products     Product -> how often
    moved        Moved -> how often
    heap         is told of every block, where there is one
    most         so many operators are counted, and ConfigError is raised at the next one

    >>> with Trace() as trace:
    ...     a = torch.zeros(2, 3, device="meta")
    ...     b = a @ a.mT
    >>> trace.live, trace.flops
    (40, 24)
    """

    def __init__(self, heap: Heap | None = None, most: int = sys.maxsize) -> None:
        super().__init__()
        self.heap, self.most = heap, most
        self.n_operators = 0
        self.live = self.peak = 0
        self.products: Counter[Product] = Counter()
        self.moved: Counter[Moved] = Counter()
        self._known: set[int] = set()
        self._counts = WeakTensorKeyDictionary()

    @property
    def flops(self) -> int:
        return sum(product.flops * n for product, n in self.products.items())

    def reset_peak(self) -> None:
        self.peak = self.live

    def see(self, *tensors: Tensor) -> int:
        """Count the memory of these tensors until it is freed; the bytes that are new come back."""
        before = self.live
        for x in tensors:
            storage = x.untyped_storage()
            if (key := storage._cdata) not in self._known:
                self._known.add(key)
                self.live += (nbytes := storage.nbytes())
                if self.heap is not None:
                    self.heap.take(key, nbytes)
                weakref.finalize(storage, self._freed, key, nbytes).atexit = False
        self.peak = max(self.peak, self.live)
        return self.live - before

    def _freed(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.live -= nbytes
        if self.heap is not None:
            self.heap.give(key)

    def _worked(self, nbytes: int) -> None:
        self.peak = max(self.peak, self.live + nbytes)
        if self.heap is not None:
            self.heap.take("workspace", nbytes)
            self.heap.give("workspace")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.n_operators += 1
        if self.n_operators > self.most:
            raise ConfigError(
                f"this model takes more than {self.most:,} operators for one window, too many to plan; use fewer "
                "--layers or a shorter --context"
            )
        given = list(tensors_in((args, kwargs)))
        self.see(*given)
        if func is aten._local_scalar_dense.default and given[0].is_meta:
            return self.answer(given[0])
        result = func(*args, **kwargs)
        made = list(tensors_in(result))
        fresh = self.see(*made)
        operator = func.overloadpacket
        if operator in PRODUCTS:
            self.products[product(*args[PRODUCTS[operator] :][:2])] += 1
        elif made and not func.is_view and operator not in VIEWS:
            self.moved[Moved(operator.__name__, traffic(operator, given, made), fresh)] += 1
        if operator in WORKSPACE:
            self._worked(WORKSPACE[operator](*args, **kwargs))
        if operator is aten.sum and made[0].is_meta and not given[0].is_floating_point():
            self._counts[made[0]] = given[0].numel()
        return result

    def answer(self, x: Tensor) -> bool | int | float:
        """What a number of the planned batch is, where its value is asked for."""
        if x.dtype == torch.bool:
            return False
        return self._counts.get(x, 1) if not x.is_floating_point() else 1.0


def product(a: Tensor, b: Tensor) -> Product:
    """The product of two vectors, matrices, or batches of matrices.

    >>> product(torch.zeros(4, 2, 3), torch.zeros(4, 5, 3).mT)
    Product(dtype=torch.float32, layout='nt', batch=4, m=2, n=5, k=3)
    """
    n = b.shape[-1] if b.ndim > 1 else 1
    *batch, m, k = a.shape if a.ndim > 1 else (1, *a.shape)
    return Product(a.dtype, transposed(a) + transposed(b), prod(batch), m, n, k)


def transposed(x: Tensor) -> str:
    return "t" if x.ndim > 1 and x.stride(-1) != 1 and x.stride(-2) == 1 else "n"


def traffic(operator: Any, given: list[Tensor], made: list[Tensor]) -> int:
    """Bytes read and written."""
    if operator in GATHERS:
        return 2 * sum(map(extent, made))
    if operator in SCATTERS:
        return 3 * extent(given[-1])
    return sum(map(extent, given)) + sum(map(extent, made))


def extent(x: Tensor) -> int:
    """Bytes behind a tensor; rows that are repeated by `expand` count once."""
    return min(x.nbytes, x.untyped_storage().nbytes())


def tensors_in(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for item in x:
            yield from tensors_in(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from tensors_in(item)
