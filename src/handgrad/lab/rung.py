"""What a rung is: a stack of layers that differs in a few lines from the one before it, and the model around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from math import sqrt

from handgrad.core.combine import Chain, Fork, Sum
from handgrad.core.errors import ConfigError
from handgrad.core.layer import Layer
from handgrad.core.params import Layout
from handgrad.lab.parts import Waves
from handgrad.layers.embedding import PositionEmbedding, TokenEmbedding, Unembedding
from handgrad.models.model import Model, build

LEARNED, WAVES, NONE = "learned", "waves", "none"
BYTES = 4  # of a float32


@dataclass(frozen=True)
class Sizes:
    """How large a rung is built. A rung takes what it needs of it.

    width       features of the stream, d
    context     most tokens of one sequence
    functions   F: functions of a weight, later heads
    rank        r: features of a head; 0 means width/functions
    hidden      hidden layer of an additive score
    inner       units of the MLP; 0 means 4 · width
    layers      how many times the unit is stacked
    tau         temperature of a softmax
    window      tokens of a sliding window, or of a block
    spread      of the first embeddings: tokens that start far apart can be told apart from the first step on

    >>> Sizes(width=32, functions=4).r, Sizes(width=32).units
    (8, 128)
    """

    width: int = 64
    context: int = 32
    functions: int = 4
    rank: int = 0
    hidden: int = 16
    inner: int = 0
    layers: int = 2
    tau: float = 1.0
    window: int = 8
    spread: float = 1.0

    @property
    def r(self) -> int:
        return self.rank or max(1, self.width // self.functions)

    @property
    def units(self) -> int:
        return self.inner or 4 * self.width

    @property
    def std(self) -> float:
        """Spread of first weights, as in `GPT2Config`."""
        return sqrt(2 / (5 * self.width))

    def stack(self, unit: Layer) -> Chain:
        return Chain({str(i): unit for i in range(self.layers)})


Builder = Callable[[Sizes], Layer]
Kept = Callable[[Sizes], int]


def nothing(s: Sizes) -> int:
    return 0


def every(s: Sizes, tokens: int) -> int:
    return tokens


@dataclass(frozen=True)
class Rung:
    """One design, and what it changes.

    name        short and stable
    title       what it is called
    question    what it is built to answer
    before      the rung that it changes; "" for the first
    formula     the unit's equation, as LaTeX
    build       its sizes -> the stack, (B, T, width) -> (B, T, width)
    positions   how tokens learn where they stand: LEARNED, WAVES (sines and cosines) or NONE
    state       numbers that one layer carries from token to token, however many there are
    kept        numbers that one layer keeps of every token that may still be read: the products that its scores and
                values are made of. Keeping the token itself, `width` numbers, and multiplying again would do as well
    reach       tokens that may still be read after so many; all, unless a pattern leaves some out
    causal      no output reads a later token
    reads       an output reads other tokens
    """

    name: str
    title: str
    question: str
    before: str
    formula: str
    build: Builder = field(repr=False)
    positions: str = LEARNED
    state: Kept = field(default=nothing, repr=False)
    kept: Kept = field(default=nothing, repr=False)
    reach: Callable[[Sizes, int], int] = field(default=every, repr=False)
    causal: bool = True
    reads: bool = True

    @property
    def source(self) -> str:
        """The builder as it is written, without the words above it but for the positions, which are part of it."""
        lines = inspect.getsource(self.build).splitlines()
        body = lines[next(i for i, line in enumerate(lines) if line.startswith("def ")) :]
        return "\n".join([f"positions: {self.positions}", *body])

    def state_bytes(self, s: Sizes, tokens: int) -> int:
        """Bytes of float32 that the stack carries or keeps after `tokens` tokens, to go on from there."""
        return BYTES * s.layers * (self.state(s) + self.kept(s) * self.reach(s, tokens))


class Ladder(dict[str, Rung]):
    """Rungs by name, in their order; a rung is added by writing it above its builder.

    >>> ladder = Ladder()
    >>> @ladder.rung("plain", title="Nothing", question="What does nothing do?", before="", formula="a' = a")
    ... def plain(s):
    ...     return s.stack(Chain({}))
    >>> list(ladder)
    ['plain']
    """

    def rung(self, name: str, **words) -> Callable[[Builder], Builder]:
        def added(build: Builder) -> Builder:
            if name in self:
                raise ConfigError(f"there are two rungs named '{name}'; give the second another name")
            self[name] = Rung(name, build=build, **words)
            return build

        return added

    def difference(self, name: str) -> list[str]:
        """Lines that begin with "-" or "+": how this rung's builder differs from that of the rung before it."""
        new = self[name]
        old = self[new.before].source.splitlines() if new.before else []
        lines = list(unified_diff(old, new.source.splitlines(), lineterm="", n=0))[2:]
        return [line for line in lines if not line.startswith("@@")]


@dataclass(frozen=True)
class LabConfig:
    """A rung between an embedding and logits: what `models.model.build` takes."""

    rung: Rung
    sizes: Sizes
    vocabulary: int

    @property
    def context(self) -> int:
        return self.sizes.context

    def layers(self) -> Chain:
        s = self.sizes
        head = Unembedding(self.vocabulary, s.width, s.std)
        return Chain({"embedding": self.embedding(), "blocks": self.rung.build(s), "head": head})

    def embedding(self) -> Layer:
        s = self.sizes
        token = TokenEmbedding(self.vocabulary, s.width, s.spread)
        if self.rung.positions == LEARNED:
            return Sum(Fork({"token": token, "position": PositionEmbedding(s.context, s.width, s.spread)}))
        return Chain({"token": token} | ({"waves": Waves(s.width, s.spread)} if self.rung.positions == WAVES else {}))

    def ties(self) -> Mapping[str, str]:
        return {}


def network(rung: Rung, vocabulary: int, sizes: Sizes, seed: int = 0) -> Model:
    """A model of this rung with first values drawn from `seed`; the vocabulary is its task's."""
    return build(LabConfig(rung, sizes, vocabulary), seed)


def parameters(rung: Rung, sizes: Sizes, vocabulary: int = 0) -> int:
    """Parameters of the stack; of the whole model where a vocabulary is given."""
    return Layout((LabConfig(rung, sizes, vocabulary).layers() if vocabulary else rung.build(sizes)).slots()).count


def width_for(rung: Rung, sizes: Sizes, count: int, step: int = 4) -> Sizes:
    """The same sizes with the width, a multiple of `step`, whose stack comes nearest to `count` parameters."""
    best = replace(sizes, width=step)
    while True:
        wider = replace(best, width=best.width + step)
        if abs(parameters(rung, wider) - count) >= abs(parameters(rung, best) - count):
            return best
        best = wider
