"""Watching and replacing signals by path. What backward *needs* is in `saved`; what a reader *wants* is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from handgrad.core.errors import ShapeError, UnknownName, unknown


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
        if new.shape != x.shape:
            raise ShapeError(f"the replacement of {path} has shape {tuple(new.shape)}, the signal {tuple(x.shape)}")
        return new

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
