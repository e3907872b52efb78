"""How a pass is run. Needs that cut across all layers live here, so that no layer's signature ever grows.

A `Run` knows its place in the network (`path`), and hands each part a `Run` of its own: `run / "attention"`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from handgrad.core.params import generator_of


class Signals(Protocol):
    """Who is shown what: see `core.signals.Watch`, and the oracle in `check/`."""

    def wants(self, path: str) -> bool: ...
    def see(self, path: str, x: torch.Tensor) -> torch.Tensor: ...
    def again(self) -> Signals: ...


class Cache(Protocol):
    """Keys and values of earlier tokens, by path: see `generate.cache`."""

    def extend(self, path: str, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One way of running a pass.

    path            where in the network we are: "" at the top, "blocks.0." inside block 0
    signals         who sees, or replaces, the feature maps x and the error signals Delta_x; None: nobody
    implementation  "explicit", or "auto" or "fused": which pair a `Rule` uses. A model runs with "auto"
    seed            randomness of dropout; None means evaluation, where nothing is dropped
    cache           keys and values of the tokens before `position`
    position        index of the first token of the input in its sequence; (B,) with one for each sample where samples
                    were padded on the left: n tokens of padding stand at the positions -n … -1

    >>> (Run() / "blocks" / "0").path
    'blocks.0.'
    """

    path: str = ""
    signals: Signals | None = None
    implementation: str = "explicit"
    seed: int | None = None
    cache: Cache | None = None
    position: int | torch.Tensor = 0

    def __truediv__(self, part: str) -> Run:
        return Run(f"{self.path}{part}.", self.signals, self.implementation, self.seed, self.cache, self.position)

    def show(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Offer x to whoever watches and return it, or the replacement. Use what is returned."""
        return x if self.signals is None else self.signals.see(self.path + name, x)

    def wants(self, names: Iterable[str]) -> bool:
        """Would showing any of these names reach somebody?"""
        return self.signals is not None and any(self.signals.wants(self.path + name) for name in names)

    def random(self, device: torch.device) -> torch.Generator:
        """The stream of this place in the network: the same at every call, so a recomputed pass drops the same."""
        assert self.seed is not None, "evaluation draws nothing"
        return generator_of(self.seed, self.path, device)

    def again(self) -> Run:
        """For computing a forward pass a second time: replacements apply as before, nothing is recorded twice."""
        return self if self.signals is None else replace(self, signals=self.signals.again())


def widened(x: torch.Tensor) -> torch.Tensor:
    """x in at least float32: statistics, softmax and losses are never formed in half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
