"""What receivers of single samples share: the samples' axis of factors, and which parts have finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError, unknown
from handgrad.core.params import Layout
from handgrad.core.run import widened


@dataclass(frozen=True)
class Range:
    """Samples first … end - 1 of n; n = 0 where factors of all samples come at once, however many they are."""

    first: int = 0
    end: int = 0
    n: int = 0


ALL = Range()


@dataclass
class Batch:
    """How many samples there are, as the first factors tell."""

    n: int = 0

    def require(self, name: str, where: Range, *factors: Tensor) -> Range:
        """The range of these factors. Raises ShapeError where their first axis cannot be the samples."""
        n, found = where.n or self.n or len(factors[0]), where.end - where.first
        wanted = found if where.n else n
        if (self.n and self.n != n) or any(x.ndim < 2 or len(x) != wanted for x in factors):
            shapes = " and ".join(str(tuple(x.shape)) for x in factors)
            raise ShapeError(
                f"the factors of {name} are {shapes}, and the batch has {wanted} samples: their first axis must be the "
                "samples, or nobody can tell them apart. In the layer's backward, hand over factors (B, ..., width) as "
                "they are, not flattened or added up"
            )
        self.n = n
        return where if where.n else Range(0, n, n)


@dataclass
class Waiting:
    """Which names of each slot have not finished yet, and for which of them nothing was handed over."""

    layout: Layout
    names: dict[str, set[str]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in self.layout.slots:
            self.names.setdefault(self.layout.owner(name), set()).add(name)
        self.silent = set(self.names)

    def finish(self, path: str) -> list[tuple[str, bool]]:
        """The slots of which a name finishes now, and whether it was the last."""
        found = []
        for owner, names in list(self.names.items()):
            done = {name for name in names if name.startswith(path)}
            if done:
                names -= done
                found.append((owner, not names))
                if not names:
                    del self.names[owner]
        return found

    def others(self, owner: str, path: str) -> set[str] | None:
        """Names of the slot that have not finished and lie elsewhere; None where all of them do."""
        rest = {name for name in self.names[owner] if not name.startswith(path)}
        return None if rest == self.names[owner] else rest

    def require_heard(self, owner: str) -> None:
        if owner in self.silent:
            raise ConfigError(
                f"nothing was handed over for {owner}, so its gradient is unknown here. Its layer's backward must say "
                "what it consists of: grads.outer(name, a, Delta) for a matrix, total(name, Delta) for an offset, "
                "scaled(name, x, Delta) for a gain, rows(name, ids, Delta) for a lookup. Where the input truly did not "
                "reach it, leave it out of the layout"
            )


def tokens_last(x: Tensor) -> Tensor:
    """(B, ..., m) -> (B, T, m), with every axis between as one."""
    return x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)


def summed(Delta: Tensor) -> Tensor:
    """(B, ..., m) -> (B, m)."""
    return widened(tokens_last(Delta)).sum(1)


def with_samples(ids: Tensor, Delta: Tensor) -> Tensor:
    """Ids of every row of Delta ~ (B, ..., m), where they lack leading axes: the same for each sample."""
    return ids.expand(Delta.shape[:-1]).flatten(1) if Delta.ndim > 2 else ids.expand(Delta.shape[:-1]).unsqueeze(1)


def matching(patterns: Iterable[str], layout: Layout) -> dict[str, list[str]]:
    """Pattern -> the slots that it names. Raises UnknownName, with the nearest, for one that names none.

    >>> from handgrad.core import Slot
    >>> matching(["up.*"], Layout({"up.w": Slot((2, 3)), "down.w": Slot((3, 2))}))
    {'up.*': ['up.w']}
    """
    found: Mapping[str, list[str]] = {
        pattern: sorted({layout.owner(name) for name in layout.slots if fnmatchcase(name, pattern)})
        for pattern in patterns
    }
    for pattern, names in found.items():
        if not names:
            raise unknown("parameter", pattern, layout.slots)
    return dict(found)
