"""A receiver that keeps the factors of chosen weights, instead of multiplying them and adding up.

    outer   g_t = a_tᵗ Δ_t       rows   g_t = OHE(id_t)ᵗ Δ_t       total   g_t = Δ_t       scaled   g_t = x_t ∘ Δ_t

A gradient is the sum of such terms, one for each sample and token: g = Σ_t g_t. Whoever has the factors can ask which
of the terms it is made of, and can multiply gradients with each other without forming any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import ClassVar, NamedTuple

from torch import Tensor

from handgrad.core.errors import ConfigError, UnknownName, unknown
from handgrad.core.params import Layout
from handgrad.core.run import widened

MOST_BYTES = 1 << 30


class Pair(NamedTuple):
    """What a layer handed over at once.

    place   the name it came under: of a tied weight, one of its names
    kind    "outer", "rows", "total" or "scaled"
    a       a ~ (B, T, n), ids ~ (B, T) or (T,), or x ~ (B, T, m); None for "total"
    Delta   (B, T, m)
    first   sample of the batch that row 0 belongs to
    """

    place: str
    kind: str
    a: Tensor | None
    Delta: Tensor
    first: int = 0

    @property
    def factor(self) -> Tensor:
        assert self.a is not None, f"{self.kind} has one factor"
        return self.a

    @property
    def ids(self) -> Tensor:
        """One id for each row of Delta; position ids may have come without the samples' axis."""
        return self.factor.expand(self.Delta.shape[:-1])

    @property
    def vectors(self) -> Tensor:
        """Rows that only have to be added up: Δ_t, or x_t ∘ Δ_t. In at least float32, as everything is that adds."""
        return widened(self.Delta) if self.kind == "total" else widened(self.factor) * widened(self.Delta)

    def product(self, shape: tuple[int, ...]) -> Tensor:
        """Σ_t g_t."""
        if self.kind == "outer":
            return widened(self.factor).flatten(0, -2).mT @ widened(self.Delta).flatten(0, -2)
        if self.kind == "rows":
            Delta = widened(self.Delta)
            return Delta.new_zeros(shape).index_add_(0, self.ids.flatten(), Delta.flatten(0, -2))
        return self.vectors.flatten(0, -2).sum(0)

    def along(self, g: Tensor) -> Tensor:
        """⟨g_t, g⟩ for every t ~ (B, T)."""
        if self.kind == "outer":
            return ((widened(self.factor) @ g) * widened(self.Delta)).sum(-1)  # a_t g Δ_tᵗ
        if self.kind == "rows":
            return (g[self.ids] * widened(self.Delta)).sum(-1)
        return self.vectors @ g

    def with_same(self, other: Pair) -> Tensor:
        """⟨g_t, g'_t⟩ for every t ~ (B, T), where `other` is of the same kind and shape: ‖g_t‖² for the pair itself."""
        if self.kind in ("total", "scaled"):
            return (self.vectors * other.vectors).sum(-1)
        Deltas = (widened(self.Delta) * widened(other.Delta)).sum(-1)
        if self.kind == "rows":
            return Deltas * (self.ids == other.ids)
        return (widened(self.factor) * widened(other.factor)).sum(-1) * Deltas

    def cut(self, axis: int, part: slice) -> Pair:
        """The same of some rows (axis 0) or columns (axis 1) of the weight; of a vector, axis 0 is its only one."""
        if self.kind == "rows":
            assert axis, "rows of an embedding are not cut"
            return self._replace(Delta=self.Delta[..., part])
        if self.kind == "outer":
            return self._replace(Delta=self.Delta[..., part]) if axis else self._replace(a=self.factor[..., part])
        return self._replace(a=None if self.a is None else self.a[..., part], Delta=self.Delta[..., part])


@dataclass
class Store:
    """What has been kept so far: owner -> pairs, in the order in which they came."""

    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    bytes_of: dict[int, int] = field(default_factory=dict)  # each piece of memory once, whoever looks at it

    @property
    def nbytes(self) -> int:
        return sum(self.bytes_of.values())


@dataclass(frozen=True, eq=False)
class Factors(Mapping[str, list[Pair]]):
    """Keeps the pairs of the parameters in `layout` that match one of `patterns`; a tied one under all of its names.

    Nothing is copied: the pairs hold the very tensors of the pass. More than `most_bytes` of them are refused.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> factors = Factors(model.params.layout, ("*.query.w",))
    >>> loss, _ = model.loss(torch.tensor([[1, 2, 3, 4, 5]])), model.backward(factors)
    >>> (pair,) = factors["blocks.0.attention.query.w"]
    >>> pair.kind, pair.a.shape, pair.Delta.shape
    ('outer', torch.Size([1, 5, 6]), torch.Size([1, 5, 6]))
    >>> factors.gradient("blocks.0.attention.query.w").shape
    torch.Size([6, 6])
    """

    only_sums: ClassVar[bool] = False
    layout: Layout
    patterns: tuple[str, ...] = ("*",)
    most_bytes: int = MOST_BYTES
    path: str = ""
    first: int = 0
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        for pattern in () if self.path or self.first else self.patterns:
            if not any(fnmatchcase(name, pattern) for name in self.layout.slots):
                raise unknown("parameter", pattern, self.layout.slots)

    def __truediv__(self, part: str) -> Factors:
        return replace(self, path=f"{self.path}{part}.")

    def samples(self, first: int, end: int, n: int) -> Factors:
        """The receiver of a piece of the batch: see `core.gradients.of_samples`."""
        return replace(self, first=first)

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        self._keep("outer", name, a, Delta)

    def total(self, name: str, Delta: Tensor) -> None:
        self._keep("total", name, None, Delta)

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        self._keep("rows", name, ids, Delta)

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        self._keep("scaled", name, x, Delta)

    def finished(self) -> None:
        """Pairs need no end."""

    def gradient(self, name: str) -> Tensor:
        """The sum of all terms, which is what `Accumulate` has; 0 where nothing was handed over."""
        pairs, shape = self[name], self.layout.slots[name].shape
        if not pairs:
            raise ConfigError(f"nothing was handed over for {name}: run a backward pass with this receiver first")
        g = pairs[0].product(shape)
        for pair in pairs[1:]:
            g = g + pair.product(shape)
        return g

    @property
    def nbytes(self) -> int:
        """Memory that the pairs keep alive."""
        return self.store.nbytes

    def wants(self, name: str) -> bool:
        owner = self.layout.tied.get(name, name)
        same = [other for other, its in self.layout.tied.items() if its == owner]
        return owner in self.layout.slots and any(
            fnmatchcase(one, pattern) for one in (owner, *same) for pattern in self.patterns
        )

    def __getitem__(self, name: str) -> list[Pair]:
        owner = self.layout.owner(name)
        if not self.wants(name):
            raise UnknownName(f"the pairs of {name} were not kept; add it, or a glob that matches it, to the patterns")
        return self.store.pairs.get(owner, [])

    def __iter__(self) -> Iterator[str]:
        """Owners of which something was kept."""
        return iter(self.store.pairs)

    def __len__(self) -> int:
        return len(self.store.pairs)

    def _keep(self, kind: str, name: str, a: Tensor | None, Delta: Tensor) -> None:
        name = self.path + name
        if not self.wants(name):
            return
        store, new = self.store, {}
        for x in (Delta, *(() if a is None else (a,))):
            memory = x.untyped_storage()
            if memory.data_ptr() not in store.bytes_of:
                new[memory.data_ptr()] = memory.nbytes()
        if (needed := store.nbytes + sum(new.values())) > self.most_bytes:
            raise ConfigError(
                f"keeping the factors of {', '.join(self.patterns)} needs at least {needed / 1e6:,.1f} MB up to "
                f"{name}, and the limit is {self.most_bytes / 1e6:,.1f} MB; choose fewer weights, fewer tokens, or a "
                "higher most_bytes"
            )
        store.bytes_of |= new
        pair = Pair(name, kind, a, Delta, self.first)
        store.pairs.setdefault(self.layout.owner(name), []).append(pair)
