"""Watching and replacing signals by path. What backward *needs* is in `saved`; what a reader *wants* is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from handgrad.core.errors import ConfigError, ShapeError, UnknownName, cut, unknown
from handgrad.core.listed import as_html, as_text, sized
from handgrad.core.picked import Picked
from handgrad.core.run import Signals


@dataclass(repr=False)
class Watch(Mapping[str, torch.Tensor]):
    """Records every signal whose path matches one of `patterns`, and applies `replacements` on the way.

    patterns      globs over whole paths: `blocks.*.attention.*`. The error of the signal `x` is `Delta_x` at its path
    replacements  path or glob -> a function of the signal (the first that fits); its result is used instead
    picked        positions and heads: only these are recorded, and handed to a replacement
    limit_bytes   most memory that recorded signals may hold; more is refused

    Whole signals are the very tensors that the pass uses, not copies: read them, do not write to them. Of picked parts
    copies are kept, so that the memory of the whole is given back.

    >>> w = Watch(("*.rho",))
    >>> _ = w.see("blocks.0.attention.rho", torch.ones(1)), w.see("blocks.0.attention.raw", torch.ones(1))
    >>> list(w)
    ['blocks.0.attention.rho']
    """

    patterns: tuple[str, ...] = ()
    replacements: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    seen: dict[str, torch.Tensor] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    picked: Picked = field(default_factory=Picked)
    limit_bytes: int | None = None
    _wanted: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            if not isinstance(pattern, str):
                raise ConfigError(
                    f"a pattern is {cut(pattern)!r}, and must be text such as 'blocks.*.attention.rho'; "
                    "give several one after the other, not as a list"
                )
        if not isinstance(self.replacements, Mapping):
            raise ConfigError(
                f"replace is {type(self.replacements).__name__}, and must be a dict: path -> function of the signal"
            )
        for path, replacement in self.replacements.items():
            if not callable(replacement):
                raise ConfigError(
                    f"the replacement of {path} is {type(replacement).__name__}, and must be a function of the signal; "
                    "for a tensor t, give lambda x: t"
                )
        if self.limit_bytes is not None and (type(self.limit_bytes) is not int or self.limit_bytes < 0):
            raise ConfigError(f"limit_bytes is {self.limit_bytes!r}, and must be a whole number of bytes from 0")

    def wants(self, path: str) -> bool:
        if path not in self._wanted:
            self._wanted[path] = any(fnmatchcase(path, p) for p in (*self.patterns, *self.replacements))
        return self._wanted[path]

    def see(self, path: str, x: torch.Tensor) -> torch.Tensor:
        self.passed.add(path)
        if not self.wants(path):
            return x
        x = self.replaced(path, x)
        self._record(path, x)
        return x

    def replaced(self, path: str, x: torch.Tensor) -> torch.Tensor:
        by = next((f for pattern, f in self.replacements.items() if fnmatchcase(path, pattern)), None)
        if by is None:
            return x
        part = self.picked.of(path, x)
        new = by(part)
        if not isinstance(new, torch.Tensor) or (new.shape, new.dtype) != (part.shape, part.dtype):
            found = f"{tuple(new.shape)} of {new.dtype}" if isinstance(new, torch.Tensor) else type(new).__name__
            what = "the signal" if self.picked.whole else "what was picked of the signal"
            raise ShapeError(f"the replacement of {path} is {found}, {what} {tuple(part.shape)} of {part.dtype}")
        return self.picked.put(path, x, new)

    @property
    def held_bytes(self) -> int:
        """Memory that is held for what was recorded, also where a pass would hold it anyway."""
        return held(self.seen)

    def _record(self, path: str, x: torch.Tensor) -> None:
        part = self.picked.of(path, x)
        if self.limit_bytes is not None and (n := held({**self.seen, path: part})) > self.limit_bytes:
            raise ConfigError(
                f"the signal {path} ~ {tuple(part.shape)} would bring what is recorded to {sized(n)}, and limit_bytes "
                f"is {sized(self.limit_bytes)}. Watch fewer signals, pick positions= or heads=, or raise the limit"
            )
        self.seen[path] = part

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

    def __repr__(self) -> str:
        return as_text(self._heading(), self.seen)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self._heading(), self.seen)

    def _heading(self) -> str:
        noun = "signal" if len(self.seen) == 1 else "signals"
        return f"{len(self.seen)} {noun} recorded of {len(self.passed)} that passed, {sized(self.held_bytes)}"

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


def held(signals: Mapping[str, torch.Tensor]) -> int:
    """Bytes of the memory behind tensors, that of several views once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in signals.values()}
    return sum(storages.values())


def leaf(path: str) -> str:
    return path.rpartition(".")[2]
