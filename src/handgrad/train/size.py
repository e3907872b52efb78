"""How much memory a model takes, before any of it is made."""

from __future__ import annotations

import os
from contextlib import suppress

from handgrad.models.gpt2 import GPT2Config
from handgrad.train.config import TrainConfig

COPIES = 4  # parameters, their gradient, and the two moments of AdamW
_ITEM_BYTES = {"float32": 4, "float64": 8}


def size_problem(model: GPT2Config, config: TrainConfig) -> str | None:
    """Why this machine cannot train such a model, in one sentence, or None.

    >>> size_problem(GPT2Config(vocabulary=65), TrainConfig())
    >>> size_problem(GPT2Config(vocabulary=65, n_layers=10_000, d_model=10**6), TrainConfig())[:51]
    'there is not enough memory: 120,000,000,129,000,000'
    """
    count = least_parameters(model)
    needed, memory = count * _ITEM_BYTES[config.dtype] * COPIES, memory_bytes()
    if memory is None or needed <= memory or config.device != "cpu":
        return None
    return (
        f"there is not enough memory: {count:,} parameters with their gradient and AdamW's two moments take "
        f"{needed:,} bytes, and this machine has {memory:,}. Use a smaller --width, --layers or --context"
    )


def least_parameters(model: GPT2Config) -> int:
    """The numbers in the matrices of a model; gains and biases are left out.

    >>> least_parameters(GPT2Config(vocabulary=65, context=64, n_layers=4, d_model=128))
    802944
    """
    d = model.d_model
    rows = model.vocabulary * (1 if model.tied else 2) + model.context
    return rows * d + model.n_layers * (4 * d * d + 2 * d * model.d_inner)


def memory_bytes() -> int | None:
    """The memory of this machine, or None where the system does not say."""
    with suppress(AttributeError, OSError, ValueError):
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return found if found > 0 else None
    return None
