"""Writing with one compiled pass a token: the layers' own forward maps, traced once, as one function of C++.

Needs a C++ compiler, and seconds to a minute before the first token; then a token costs about what it takes to read
all weights once. Numbers differ from the uncompiled pass by rounding. Nothing can be watched in a compiled pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from handgrad.core.combine import Chain
from handgrad.core.compiler import no_compiler
from handgrad.core.errors import ConfigError
from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.core.product import STREAMS
from handgrad.core.run import Run
from handgrad.generate.cache import Kept
from handgrad.generate.last import last_logits
from handgrad.generate.static import StaticCache
from handgrad.generate.weights import laid_out, places_of, tree_of
from handgrad.models.model import Model

BLOCKS, GROUP = "blocks", 6  # more blocks in one pass take longer to compile, and gain little
ROOM = 64  # capacities are multiples of it, so that texts of about one length share one compiled pass
# Several loops over the same outputs become one, but no more than read a matrix at STREAMS places (core/product.py).
OPTIONS = {"cpp.max_horizontal_fusion_size": STREAMS}


class CompiledReader:
    """The tokens in the window, and the logits that follow them, as `generate.Reader` has them.

    The first tokens of a window are read by the model as it is; each further one by compiled passes: one for GROUP or
    fewer blocks, called with the numbers of each group in turn, and one for what comes after the blocks. The parameters
    are copied at the start: a reader does not see that they change.
    """

    def __init__(self, model: Model, n_tokens: int) -> None:
        if reason := no_compiler():
            raise ConfigError(reason)
        if model.run.signals is not None:
            raise ConfigError("signals are watched, and a compiled pass shows none; write without compiling")
        self.model, self.numbers = model, model.named
        self.cache = StaticCache(-(-n_tokens // ROOM) * ROOM)
        before, blocks, after = cut(model.layer)
        size = max(n for n in range(1, GROUP + 1) if len(blocks) % n == 0)
        self.before = Chain(before)
        group = Chain({str(i): blocks[i] for i in range(size)})
        names = [[f"{BLOCKS}.{i + j}" for j in range(size)] for i in range(0, len(blocks), size)]
        self.groups = [
            (flat, [f"{name}." for name in named])
            for flat, named in zip(self.laid_out(group, names), names, strict=True)
        ]
        self.step = compiled(group, self.cache.capacity)
        (self.last_flat,) = self.laid_out(Chain(after), [list(after)])
        self.last = compiled(Chain(after), self.cache.capacity)

    def laid_out(self, part: Chain, names: list[list[str]]) -> list[Tensor]:
        """The numbers of a part whose own parts stand, one copy after the other, under these names in the model."""
        layout = Layout(part.slots())
        where = lambda named, name: named[list(part.parts).index(name.partition(".")[0])] + "." + name.partition(".")[2]  # noqa: E731
        return laid_out(layout, [{name: self.numbers[where(named, name)] for name in layout.slots} for named in names])

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens ~ (B, w), the whole window -> logits of the next token ~ (B, V)."""
        if self.cache.length >= tokens.shape[1]:
            self.cache.rewind()
        new = tokens[:, self.cache.length :]
        self.cache.reserve(new.shape[1])
        run = replace(self.model.run, seed=None, cache=self.cache, position=self.cache.position)
        if self.cache.length:
            logits = self.by_groups(new, run)
        else:
            logits = last_logits(self.model, self.model.numbers, new, run)
        self.cache.advance(new.shape[1])
        return logits

    def by_groups(self, new: Tensor, run: Run) -> Tensor:
        a, _ = self.before.forward(self.model.numbers, new, run)
        for flat, paths in self.groups:
            memory = [
                {
                    path.removeprefix(at): (kept.k, kept.v)
                    for path, kept in self.cache.layers.items()
                    if path.startswith(at)
                }
                for at in paths
            ]
            a = self.step(flat, a, run.position, memory)
        return self.last(self.last_flat, a, run.position, [])[:, -1]


def cut(layer: Any) -> tuple[dict[str, Layer], list[Layer], dict[str, Layer]]:
    """What comes before the blocks, the blocks, and what comes after them. Raises ConfigError for other models."""
    parts = layer.parts if isinstance(layer, Chain) else {}
    blocks = list(parts[BLOCKS].parts.values()) if isinstance(parts.get(BLOCKS), Chain) else []
    if not blocks or any(block != blocks[0] for block in blocks):
        raise ConfigError("a compiled pass is made for one block and used for all, and this model has no equal blocks")
    at = list(parts).index(BLOCKS)
    return dict(list(parts.items())[:at]), blocks, dict(list(parts.items())[at + 1 :])


def compiled(part: Chain, capacity: int) -> Callable[..., Tensor]:
    """(flat, a ~ (B, 1, d), position, memory) -> a'; `memory` holds (k, v) by path for each part, and is written to."""
    places = places_of(Layout(part.slots()))

    def step(flat: Tensor, a: Tensor, position: Tensor, memory: list[dict[str, tuple[Tensor, Tensor]]]) -> Tensor:
        kept = {f"{i}.{path}": Kept(k, v) for i, held in enumerate(memory) for path, (k, v) in held.items()}
        cache = StaticCache(capacity, position, kept)
        run = Run(implementation="explicit", cache=cache, position=position)
        return part.forward(tree_of(places, flat), a, run)[0]

    # Everything that the pass was made for belongs to this reader alone and stays as it is, so nothing is checked again
    # at each token; its code object is its own, so that no other reader can be given this pass.
    own = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False, options=OPTIONS | {"guard_filter_fn": nothing})


def nothing(guards: list[Any]) -> list[bool]:
    return [False] * len(guards)
