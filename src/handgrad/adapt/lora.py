"""A model with low-rank updates: chosen linear layers are wrapped, and only what is new is trained.

The numbers of the model as it was become `Model.frozen`: the same memory under names with `base` in them. No gradient
is formed for them and nothing writes to them, so they stay as they are, bit for bit. `Model.params` is a second, small
buffer with every A and B: it is what optimisers, checkpoints and receivers of gradients see.

    h.w, h.b        of the linear layer h      ->   h.base.w, h.base.b   frozen
                                                    h.lora.A, h.lora.B   trained
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from handgrad.core.errors import ConfigError, UnknownName, cut
from handgrad.core.params import Buffer, Layout
from handgrad.core.places import replaced
from handgrad.layers.embedding import PositionEmbedding, TokenEmbedding, Unembedding
from handgrad.layers.linear import Linear
from handgrad.layers.lowrank import LowRank
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.model import Model
from handgrad.rules import lowrank

ATTENTION = ("attention.query", "attention.key", "attention.value")
TABLES = (TokenEmbedding, PositionEmbedding, Unembedding)


class Fit(NamedTuple):
    """The update of one linear layer."""

    rank: int
    alpha: float


@dataclass(frozen=True)
class LoRA:
    """Which linear layers get an update a' = a w + s (a A) B, and of what size.

    rank, alpha      s = alpha/rank
    targets          globs over names of linear layers, whose beginning may be left out: "attention.query", "mlp.*"
    rslora           s = alpha/√rank
    dropout          on the input of the updates, while training
    rank_pattern, alpha_pattern     glob -> another rank or alpha; the last that fits counts

    Of a GPT-2, the updates of query, key and value of one attention share A where they have one rank and alpha: files
    of other libraries hold the three as one matrix, with one A.

    >>> LoRA(rank=4, rank_pattern={"mlp.*": 2}).of("blocks.0.mlp.up")
    Fit(rank=2, alpha=16)
    """

    rank: int = 8
    alpha: float = 16
    targets: tuple[str, ...] = ATTENTION
    rslora: bool = False
    dropout: float = 0.0
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.targets, str):
            raise ConfigError(
                f"targets is the text {self.targets!r}, and must be a tuple of names: ({self.targets!r},)"
            )
        if not self.targets:
            raise ConfigError("no targets are named: the linear layers that get an update, such as attention.query")
        for fit in (Fit(self.rank, self.alpha), *map(self.of, (*self.rank_pattern, *self.alpha_pattern))):
            LowRank(Linear(1, 1), fit.rank, fit.alpha, self.rslora, self.dropout)  # says what cannot be

    def of(self, name: str) -> Fit:
        rank, alpha = self.rank, self.alpha
        for pattern, value in self.rank_pattern.items():
            rank = value if fits(pattern, name) else rank
        for pattern, value in self.alpha_pattern.items():
            alpha = value if fits(pattern, name) else alpha
        return Fit(rank, alpha)


def fits(pattern: str, name: str) -> bool:
    """
    >>> fits("query", "blocks.0.attention.query"), fits("blocks.0.*", "blocks.0.mlp.up"), fits("up", "blocks.0.mlp.gup")
    (True, True, False)
    """
    return name == pattern or fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def adapted(model: Model, config: LoRA, seed: int = 0) -> Model:
    """The model with an update on every linear layer that `config.targets` fit, A random and B = 0: at first the same
    function, bit for bit. The model given keeps its own layers, and shares its numbers, which nobody writes to.

    An adapted model may be adapted again: the updates it has are then frozen too. Raises UnknownName where a pattern
    fits no linear layer, ConfigError for sizes that cannot be.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> small = adapted(model, LoRA(rank=2, targets=("mlp.up",)))
    >>> list(small.params), small
    (['blocks.0.mlp.up.lora.A', 'blocks.0.mlp.up.lora.B'], \
Model(GPT2Config, vocabulary 11, context 5, 60 parameters in torch.float32 beside 618 frozen ones, no tokenizer))
    """
    names = linears(model.layer)
    for kind, patterns in (("target", config.targets), ("rank_pattern", config.rank_pattern)):
        for pattern in patterns:
            require_fit(model, kind, pattern, names)
    for pattern in config.alpha_pattern:
        require_fit(model, "alpha_pattern", pattern, names)
    chosen = {name: config.of(name) for name in names if any(fits(pattern, name) for pattern in config.targets)}
    return fitted(model, chosen, config.rslora, config.dropout, seed)


def fitted(model: Model, chosen: Mapping[str, Fit], rslora: bool = False, dropout: float = 0.0, seed: int = 0) -> Model:
    """The model with exactly these updates."""

    def wrapped(path: str, part: Any) -> Any:
        if path not in chosen or not isinstance(part, Linear | LowRank):
            return part
        return LowRank(part, *chosen[path], rslora, dropout)

    layer = replaced(model.layer, wrapped)
    new = {f"{name}.lora.{factor}" for name in chosen for factor in "AB"}
    slots = {name: slot for name, slot in layer.slots().items() if name in new}
    assert slots.keys() == new, "every chosen layer is found where its name says"
    flat = model.params.flat
    params = Layout(slots, shared(model, chosen)).draw(seed, flat.dtype, flat.device)
    frozen = tuple(moved(buffer, chosen) for buffer in (*model.frozen, model.params))
    return replace(model, layer=layer, params=params, frozen=frozen, shadow=None, pending=None)


def linears(layer: Any) -> dict[str, Linear | LowRank]:
    """Name -> linear layer, with the updates that it has."""
    found: dict[str, Linear | LowRank] = {}

    def see(path: str, part: Any) -> Any:
        if isinstance(part, Linear | LowRank) and path.removesuffix(".base") not in found:
            found[path] = part
        return part

    replaced(layer, see)
    return {name: part for name, part in found.items() if not name.endswith(".base")}


def shared(model: Model, chosen: Mapping[str, Fit]) -> dict[str, str]:
    """Ties of A between query, key and value of one attention, in a GPT-2."""
    ties: dict[str, str] = {}
    first: dict[tuple[str, Fit], str] = {}
    for name, fit in chosen.items():
        if isinstance(model.config, GPT2Config) and name.endswith(ATTENTION):
            owner = first.setdefault((name.rpartition(".")[0], fit), name)
            if owner != name:
                ties[f"{name}.lora.A"] = f"{owner}.lora.A"
    return ties


def moved(buffer: Buffer, chosen: Collection[str]) -> Buffer:
    """The same numbers, with `base` in the names of what lies inside the chosen layers."""

    def name(old: str) -> str:
        at = next((one for one in chosen if old.startswith(f"{one}.")), None)
        return old if at is None else f"{at}.base.{old.removeprefix(f'{at}.')}"

    return renamed(buffer, name)


def renamed(buffer: Buffer, name: Any) -> Buffer:
    layout = buffer.layout
    slots = {name(old): slot for old, slot in layout.slots.items()}
    return Buffer(Layout(slots, {name(a): name(b) for a, b in layout.tied.items()}), buffer.flat)


def require_fit(model: Model, kind: str, pattern: str, names: Collection[str]) -> None:
    """UnknownName where a pattern fits no linear layer, with the nearest ones and why tables of embeddings are none."""
    if any(fits(pattern, name) for name in names):
        return
    tables: list[str] = []
    replaced(model.layer, lambda path, part: (isinstance(part, TABLES) and tables.append(path)) or part)
    if any(fits(pattern, name) for name in tables):
        tied = ", and it is tied to another's" if model.config.ties() else ""
        raise ConfigError(
            f"the {kind} {cut(pattern)!r} fits an embedding or the logits' matrix, which stays as it is{tied}: only "
            f"linear layers get low-rank updates, such as {', '.join(ATTENTION)}"
        )
    short = sorted({re.sub(r"^blocks\.\d+\.", "", name) for name in names})
    near = get_close_matches(pattern, {*short, *(name.rpartition(".")[2] for name in short)}, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise UnknownName(
        f"the {kind} {cut(pattern)!r} fits no linear layer{hint} There are, in each block: {', '.join(short)}"
    )


def updates(model: Model) -> dict[str, list[tuple[str, LowRank]]]:
    """Name of each adapted layer -> its updates, the newest first: where each has its A and B, and the layer."""
    found: dict[str, list[tuple[str, LowRank]]] = {}
    for name, part in linears(model.layer).items():
        at: str = name
        while isinstance(part, LowRank):
            found.setdefault(name, []).append((f"{at}.lora", part))
            at, part = f"{at}.base", part.linear
    return found


def merge(model: Model) -> Model:
    """A plain model that computes the same: w + s A B in the place of each w, with all updates of a stack, formed in
    float32 (float64 where the model is). The adapted model stays as it is, and `base_of` gives what was before it.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> merge(adapted(model, LoRA())).params.flat.equal(model.params.flat)
    True
    """
    if not model.frozen:
        return model
    numbers = {name: x for buffer in (*model.frozen, model.params) for name, x in buffer.views.items()}
    dtype = model.params.flat.dtype
    if any(buffer.flat.dtype != dtype for buffer in model.frozen):
        raise ConfigError(
            f"the frozen numbers of this model are {model.frozen[0].flat.dtype}, rounded for training, and merging "
            "into them would lose most of an update. Put the update on the model as it was, and merge that"
        )
    layer = model.config.layers()
    params = Layout(layer.slots(), dict(model.config.ties())).zeros(dtype, model.params.flat.device)
    stacks = updates(model)
    for name in params:
        at, _, leaf = name.rpartition(".")
        stack = stacks.get(at, [])
        w = numbers[f"{at}{'.base' * len(stack)}.{leaf}"]
        for lora, part in stack if leaf == "w" else []:
            w = lowrank.merged(w, numbers[f"{lora}.A"], numbers[f"{lora}.B"], part.s)
        params[name].copy_(w)
    return replace(model, layer=layer, params=params, frozen=(), shadow=None, pending=None)


def base_of(model: Model) -> Model:
    """The model as it was before its updates: the very same numbers, never added to and so never to be subtracted from.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> base_of(adapted(model, LoRA())).params.flat.data_ptr() == model.params.flat.data_ptr()
    True
    """
    if not model.frozen:
        return model
    params = renamed(model.frozen[0], lambda name: re.sub(r"(\.base)+\.", ".", name))
    return replace(model, layer=model.config.layers(), params=params, frozen=(), shadow=None, pending=None)
