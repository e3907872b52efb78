"""Watching and replacing signals by path. What backward *needs* is in `saved`; what a reader *wants* is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from handgrad.core.errors import ConfigError, ShapeError, UnknownName, unknown
from handgrad.core.run import Signals


@dataclass
class Watch(Mapping[str, torch.Tensor]):
    """Records every signal whose path matches one of `patterns`, and applies `replacements` on the way.

    A pattern is a glob over whole paths: `blocks.*.attention.*`. The error of the signal `x` is `Delta_x` at the same
    path. A replacement is a function of the signal; its result is used instead.
    Recorded tensors are the very ones that the pass uses, not copies: read them, do not write to them.

    >>> w = Watch(("*.rho",))
    >>> _ = w.see("blocks.0.attention.rho", torch.ones(1)), w.see("blocks.0.attention.raw", torch.ones(1))
    >>> list(w)
    ['blocks.0.attention.rho']
    """

    patterns: tuple[str, ...] = ()
    replacements: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    seen: dict[str, torch.Tensor] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    _wanted: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path, replacement in self.replacements.items():
            if not callable(replacement):
                raise ConfigError(
                    f"the replacement of {path} is {type(replacement).__name__}, and must be a function of the signal; "
                    "for a tensor t, give lambda x: t"
                )

    def wants(self, path: str) -> bool:
        if path not in self._wanted:
            self._wanted[path] = path in self.replacements or any(fnmatchcase(path, p) for p in self.patterns)
        return self._wanted[path]

    def see(self, path: str, x: torch.Tensor) -> torch.Tensor:
        self.passed.add(path)
        if not self.wants(path):
            return x
        x = self.replaced(path, x)
        self.seen[path] = x
        return x

    def replaced(self, path: str, x: torch.Tensor) -> torch.Tensor:
        if path not in self.replacements:
            return x
        new = self.replacements[path](x)
        if not isinstance(new, torch.Tensor) or (new.shape, new.dtype) != (x.shape, x.dtype):
            found = f"{tuple(new.shape)} of {new.dtype}" if isinstance(new, torch.Tensor) else type(new).__name__
            raise ShapeError(f"the replacement of {path} is {found}, the signal {tuple(x.shape)} of {x.dtype}")
        return new

    def require_found(self) -> None:
        """A misspelt name would otherwise change or show nothing, in silence. Errors are missed where none went by."""
        errors = any(leaf(path).startswith("Delta_") for path in self.passed)
        for name in (*self.patterns, *self.replacements):
            looked_for = self.passed and (errors or not leaf(name).startswith("Delta_"))
            if looked_for and not any(fnmatchcase(path, name) for path in self.passed):
                raise unknown("signal", name, self.passed | self._wanted.keys())

    def again(self) -> Silent:
        return Silent(self)

    def __getitem__(self, path: str) -> torch.Tensor:
        if path in self.seen:
            return self.seen[path]
        if path in self.passed:
            raise UnknownName(
                f"the signal {path} exists but was not watched; add it, or a glob that matches it, to the patterns"
            )
        raise unknown("signal", path, self.passed)

    def __iter__(self) -> Iterator[str]:
        return iter(self.seen)

    def __len__(self) -> int:
        return len(self.seen)


@dataclass(frozen=True)
class Silent:
    """The same replacements without recording: for a forward pass that is computed again."""

    watch: Watch

    def wants(self, path: str) -> bool:
        return self.watch.wants(path)

    def see(self, path: str, x: torch.Tensor) -> torch.Tensor:
        return self.watch.replaced(path, x)

    def again(self) -> Silent:
        return self


@dataclass(frozen=True)
class Both:
    """A watch inside a watch: the outer one sees, and replaces, first."""

    outer: Signals
    inner: Signals

    def wants(self, path: str) -> bool:
        return self.outer.wants(path) or self.inner.wants(path)

    def see(self, path: str, x: torch.Tensor) -> torch.Tensor:
        return self.inner.see(path, self.outer.see(path, x))

    def again(self) -> Both:
        return Both(self.outer.again(), self.inner.again())


def leaf(path: str) -> str:
    return path.rpartition(".")[2]
