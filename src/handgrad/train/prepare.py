"""How a model is trained, as a change of its tree of layers: what is recomputed, what is compiled, in which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from handgrad.core.collect import LARGE, Room
from handgrad.core.combine import Chain, Recompute
from handgrad.core.compiled import Compiled
from handgrad.core.compiler import no_compiler
from handgrad.core.errors import ConfigError
from handgrad.core.fixed import Fixed, Still
from handgrad.core.layer import Layer
from handgrad.core.narrowed import Narrowed
from handgrad.core.params import Buffer, Layout
from handgrad.core.places import replaced
from handgrad.core.thrifty import Thrifty, rewritten
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.lowrank import LowRank
from handgrad.layers.pointwise import Pointwise
from handgrad.layers.rmsnorm import RMSNorm
from handgrad.models.model import Model
from handgrad.train.config import DTYPES, TrainConfig

CHEAP = (LayerNorm, RMSNorm, Pointwise)
BLOCKS = "blocks"
DRAWS_ANEW = (
    "--compile cannot go with --dropout: a compiled block is made once, and dropout draws anew at every step. "
    "Leave one of them out"
)


def prepared(model: Model, config: TrainConfig) -> Model:
    """The same model, function and parameters, computed as `config` asks.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, n_layers=1, n_heads=1, d_model=6))
    >>> type(prepared(model, TrainConfig(recompute="blocks")).layer.parts["blocks"].parts["0"]).__name__
    'Recompute'
    """
    layer: Any = model.layer
    if model.frozen:
        layer = fixed(layer, model.params.layout)
    if config.recompute != "nothing":
        layer = with_blocks(layer, lambda block: rewritten(block, thrifty))
    if config.recompute == "blocks":
        layer = with_blocks(layer, Recompute)
    if problem := compile_problem(model.config, config) or (DRAWS_ANEW if config.compile and drops(layer) else None):
        raise ConfigError(problem)
    if config.compile:
        layer = with_blocks(layer, Compiled)
    dtype, besides = DTYPES[config.dtype], ""
    if config.recompute != "nothing" and dtype != model.params.flat.dtype:
        layer, besides = with_blocks(layer, lambda block: Narrowed(block, dtype)), BLOCKS
    if model.frozen:
        layer = stilled(layer, model.params.layout)
    return replace(model, layer=layer).shadowed(dtype, besides)


def drops(layer: Any) -> bool:
    """Whether a low-rank update drops part of its input."""
    rates: list[float] = []
    replaced(layer, lambda path, part: (isinstance(part, LowRank) and rates.append(part.dropout)) or part)
    return any(rates)


def fixed(layer: Any, trained: Layout) -> Any:
    """The linear layers that are frozen keep nothing for a gradient that nobody forms."""
    return replaced(
        layer, lambda path, part: Fixed(part) if isinstance(part, Linear) and f"{path}.w" not in trained.slots else part
    )


def stilled(layer: Any, trained: Layout) -> Any:
    """What lies below the lowest part that is trained keeps nothing, and no error signal goes down there."""
    if not isinstance(layer, Chain):
        return layer

    def still(chain: Chain, path: str) -> Chain:
        parts = dict(chain.parts)
        for name, part in parts.items():
            if any(slot.startswith(f"{path}{name}.") for slot in trained.slots):
                parts[name] = still(part, f"{path}{name}.") if name == BLOCKS and isinstance(part, Chain) else part
                break
            parts[name] = Still(part)
        return Chain(parts)

    return still(layer, "")


def gradient_of(model: Model, config: TrainConfig) -> Buffer | Room:
    """What a step collects its gradient in: one buffer where micro-batches add up in it, where it is small, and where
    blocks are recomputed, so that no activations lie about whose memory its pieces could take."""
    layout, flat = model.params.layout, model.params.flat
    pieces = config.accumulate == 1 and config.recompute != "blocks" and flat.nbytes > LARGE
    if config.update == "inside" or pieces:
        return Room()
    return layout.zeros(flat.dtype, flat.device)


def compile_problem(shape: Any, config: TrainConfig) -> str | None:
    """Why blocks of this shape cannot be compiled as asked, or None."""
    if config.compile and getattr(shape, "dropout", 0.0):
        return DRAWS_ANEW
    return (no_compiler() or None) if config.compile else None


def thrifty(layer: Layer) -> Layer:
    """A chain whose norms and activations are followed by something that keeps their outputs."""
    if not isinstance(layer, Chain):
        return layer
    cheap = tuple(name for name, part in list(layer.parts.items())[:-1] if isinstance(part, CHEAP))
    return Thrifty(layer, cheap) if cheap else layer


def with_blocks(layer: Any, wrap: Any) -> Any:
    """Every block of the chain `blocks` wrapped; a model without such a chain as it is."""
    blocks = layer.parts.get(BLOCKS) if isinstance(layer, Chain) else None
    if not isinstance(blocks, Chain) or not blocks.parts:
        return layer
    first, *_ = blocks.parts.values()
    shared = wrap(first)  # equal blocks are one object: what is compiled for one serves all
    wrapped = {name: shared if block == first else wrap(block) for name, block in blocks.parts.items()}
    return Chain({**layer.parts, BLOCKS: Chain(wrapped)})
