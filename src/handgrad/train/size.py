"""How much memory a model takes, before any of it is made."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from math import prod

from handgrad.models.store import ModelConfig
from handgrad.train.config import TrainConfig

COPIES = 4  # parameters, their gradient, and the two moments of AdamW
_ITEM_BYTES = {"float32": 4, "float64": 8, "bfloat16": 4}


def size_problem(model: ModelConfig, config: TrainConfig) -> str | None:
    """Why this machine cannot train such a model, in one sentence, or None.

    >>> import handgrad as hg
    >>> size_problem(hg.GPT2Config(vocabulary=65), TrainConfig())
    >>> size_problem(hg.GPT2Config(vocabulary=65, n_layers=10_000, d_model=10**6), TrainConfig())[:51]
    'there is not enough memory: 120,000,000,129,000,000'
    """
    count = least_parameters(model)
    needed, memory = count * _ITEM_BYTES[config.dtype] * COPIES, memory_bytes()
    if memory is None or config.device != "cpu":
        return None
    stream = config.batch_size * model.context * model.d_model * 2  # one feature map, in the smallest type
    if needed <= memory < stream:
        return (
            f"there is not enough memory: one feature map of {config.batch_size:,} windows of {model.context:,} tokens "
            f"takes {stream:,} bytes, and this machine has {memory:,}. Use a smaller --batch-size or --context"
        )
    if needed <= memory:
        return None
    return (
        f"there is not enough memory: {count:,} parameters with their gradient and AdamW's two moments take "
        f"{needed:,} bytes, and this machine has {memory:,}. Use a smaller --width, --layers or --context"
    )


def least_parameters(model: ModelConfig) -> int:
    """The numbers in the matrices of a model; gains and biases are left out.

    >>> import handgrad as hg
    >>> least_parameters(hg.GPT2Config(vocabulary=65, context=64, n_layers=4, d_model=128))
    802944
    """
    none, one = (matrices(replace(model, n_layers=n)) for n in (0, 1))
    return none + model.n_layers * (one - none)


def matrices(model: ModelConfig) -> int:
    slots = model.layers().slots()
    return sum(prod(slot.shape) for name, slot in slots.items() if slot.decayed and name not in model.ties())


def memory_bytes() -> int | None:
    """The memory of this machine, or None where the system does not say."""
    with suppress(AttributeError, OSError, ValueError):
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return found if found > 0 else None
    return None
