"""Parameters: names -> slots of one flat buffer.

Every parameter of a network is a view into one flat, aligned vector. The optimiser's step, clipping, a norm, a
checkpoint, finite differences and an all-reduce are then plain vector operations on `flat`, while the layers see a
nested dict of matrices. Three things follow from the layout alone, and no layer knows of them:

- *tied*: two names, one slot. Both gradient contributions add into the same memory; counted, stepped and stored once;
- *decayed*: matrices (two axes or more) come first, so weight decay is one slice, `flat[:layout.n_decayed]`;
- *aligned*: every slot starts on a multiple of `ALIGN` elements. The gaps between are zero and stay zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import torch

from handgrad.core.errors import ConfigError, ShapeError, unknown

ALIGN = 16  # elements: 64 bytes of float32, one cache line

Tree = dict[str, "torch.Tensor | Tree"]


@dataclass(frozen=True)
class Slot:
    """What a layer asks for: a shape, and the normal distribution that its first values are drawn from.

    >>> Slot((3, 2), std=0.02).decayed, Slot((3,), mean=1.0).decayed
    (True, False)
    """

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0

    @property
    def decayed(self) -> bool:
        """Weight decay acts on matrices, never on gains and biases."""
        return len(self.shape) >= 2


def prefixed(parts: Mapping[str, Mapping[str, Slot]]) -> dict[str, Slot]:
    """The slots of several parts, each under its part's name.

    >>> prefixed({"up": {"w": Slot((2, 3))}})
    {'up.w': Slot(shape=(2, 3), std=0.0, mean=0.0)}
    """
    return {f"{part}.{name}": slot for part, slots in parts.items() for name, slot in slots.items()}


@dataclass(frozen=True)
class Layout:
    """Where each name lives. `tied` maps a further name to the name that owns the slot.

    >>> layout = Layout({"b": Slot((3,)), "w": Slot((2, 3))})
    >>> layout.places, layout.size, layout.n_decayed, layout.count
    ({'w': (0, (2, 3)), 'b': (16, (3,))}, 32, 16, 9)
    """

    slots: Mapping[str, Slot]
    tied: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, owner in self.tied.items():
            if name not in self.slots or owner not in self.slots:
                raise unknown("parameter", name if name not in self.slots else owner, self.slots)
            if self.slots[name].shape != self.slots[owner].shape:
                raise ConfigError(
                    f"cannot tie {name} {self.slots[name].shape} to {owner} {self.slots[owner].shape}: "
                    "one slot needs one shape"
                )

    @cached_property
    def places(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Owner name -> (first element, shape), decayed names first, in the order of the network."""
        places, start = {}, 0
        owners = [name for name in self.slots if name not in self.tied]
        for name in sorted(owners, key=lambda n: not self.slots[n].decayed):  # stable: keeps the network's order
            places[name] = (start, self.slots[name].shape)
            start += -(-prod(self.slots[name].shape) // ALIGN) * ALIGN
        return places

    @cached_property
    def size(self) -> int:
        """Elements of the flat buffer, gaps included."""
        return self._end(self.places)

    @cached_property
    def n_decayed(self) -> int:
        """Elements of the leading slice that weight decay acts on."""
        return self._end({name: place for name, place in self.places.items() if self.slots[name].decayed})

    @cached_property
    def count(self) -> int:
        """Number of parameters, each slot counted once."""
        return sum(prod(shape) for _, shape in self.places.values())

    @staticmethod
    def _end(places: Mapping[str, tuple[int, tuple[int, ...]]]) -> int:
        return max((start + -(-prod(shape) // ALIGN) * ALIGN for start, shape in places.values()), default=0)

    def owner(self, name: str) -> str:
        if name not in self.slots:
            raise unknown("parameter", name, self.slots)
        return self.tied.get(name, name)

    def without(self, part: str) -> Layout:
        """What is left without the names below `part`.

        >>> list(Layout({"a.w": Slot((1,)), "b.w": Slot((1,))}).without("a").slots)
        ['b.w']
        """
        slots = {name: slot for name, slot in self.slots.items() if not part or not name.startswith(f"{part}.")}
        return Layout(slots, {name: owner for name, owner in self.tied.items() if name in slots and owner in slots})

    def zeros(self, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Buffer:
        return Buffer(self, torch.zeros(self.size, dtype=dtype, device=device))

    def draw(self, seed: int, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Buffer:
        """First values: each slot from a generator of its own, so that adding a layer does not change the others."""
        buffer = self.zeros(dtype, device)
        for name in self.places:
            slot = self.slots[name]
            if slot.std:
                noise = torch.randn(slot.shape, generator=generator_of(seed, name), dtype=torch.float64)
                buffer[name].copy_(noise.mul_(slot.std))
            buffer[name].add_(slot.mean)
        return buffer


@dataclass(frozen=True, eq=False)
class Buffer(Mapping[str, torch.Tensor]):
    """A flat vector read as named matrices: the parameters, their gradient, or a moment of the optimiser.

    Iterating gives every slot once; a tied name can be looked up, and is the same memory as its owner.

    >>> b = Layout({"w": Slot((2, 3))}).zeros()
    >>> b["w"] += 1.0
    >>> b.flat.sum(), b.tree["w"].shape
    (tensor(6.), torch.Size([2, 3]))
    """

    layout: Layout
    flat: torch.Tensor

    def __post_init__(self) -> None:
        if self.flat.shape != (self.layout.size,):
            raise ShapeError(
                f"the layout needs a vector of {self.layout.size} elements, found {tuple(self.flat.shape)}"
            )

    @cached_property
    def views(self) -> dict[str, torch.Tensor]:
        """Every name, the tied ones too, as a view of `flat`."""
        own = {n: self.flat[s : s + prod(shape)].view(shape) for n, (s, shape) in self.layout.places.items()}
        return {name: own[self.layout.owner(name)] for name in self.layout.slots}

    @cached_property
    def tree(self) -> Tree:
        """The same views as the nested dict that layers walk: `tree["blocks"]["0"]["mlp"]["up"]["w"]`."""
        return nested(self.views)

    def like(self, flat: torch.Tensor) -> Buffer:
        return Buffer(self.layout, flat)

    def __getitem__(self, name: str) -> torch.Tensor:
        self.layout.owner(name)
        return self.views[name]

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        if self[name].shape != value.shape:
            raise ShapeError(f"{name} has the shape {tuple(self[name].shape)}, found {tuple(value.shape)}")
        if self[name].data_ptr() != value.data_ptr():
            self[name].copy_(value)

    def __iter__(self) -> Iterator[str]:
        return iter(name for name in self.layout.slots if name not in self.layout.tied)

    def __len__(self) -> int:
        return len(self.layout.places)

    def __repr__(self) -> str:
        return f"Buffer({len(self)} names, {self.layout.count:,} parameters, {self.flat.dtype})"


def nested(named: Mapping[str, torch.Tensor]) -> Tree:
    """Dotted names as nested dicts."""
    tree: Tree = {}
    for name, value in named.items():
        *path, leaf = name.split(".")
        node = tree
        for part in path:
            child = node.setdefault(part, {})
            assert isinstance(child, dict), f"{name} is both a parameter and a folder of parameters"
            node = child
        node[leaf] = value
    return tree


def united(*trees: Tree) -> Tree:
    """Several trees as one; none of their names is another's.

    >>> united({"up": {"w": torch.ones(1)}}, {"up": {"b": torch.zeros(1)}})
    {'up': {'w': tensor([1.]), 'b': tensor([0.])}}
    """
    whole: Tree = {}
    for tree in trees:
        for name, value in tree.items():
            known = whole.get(name, {})
            whole[name] = united(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return whole


def generator_of(seed: int, name: str, device: str | torch.device = "cpu") -> torch.Generator:
    """Randomness without state: the same (seed, name) gives the same stream, in whatever order they are asked for."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    device = "cpu" if str(device) == "meta" else device  # nothing is drawn there, and there is no generator
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
