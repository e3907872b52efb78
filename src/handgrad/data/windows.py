"""Windows of tokens: random ones to train on, all of them to validate on.

A window of context T takes T + 1 tokens: T inputs, and T targets that are the inputs shifted by one. Training windows
are drawn with replacement from every possible start, so no token is dropped when the number of tokens is not a
multiple of anything, and every batch is full. The draw depends on (seed, step, micro) alone: a resumed run sees the
batches it would have seen, and no generator state has to be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from handgrad.core.errors import ConfigError, DataError

Window: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def n_windows(n_tokens: int, context: int) -> int:
    """How many different windows there are: starts go from 0 to n_tokens - context - 1.

    Raises DataError when there is not one.

    >>> n_windows(17, 16), n_windows(19, 16)
    (1, 3)
    """
    _check_positive("context", context)
    if n_tokens < context + 1:
        raise DataError(
            f"there are {n_tokens} tokens to train on, but context {context} needs at least {context + 1} "
            "(the inputs and one target more). Use more data or a smaller context."
        )
    return n_tokens - context


def training_windows(
    tokens: npt.NDArray[Any], context: int, batch_size: int, seed: int, step: int, micro: int = 0
) -> Window:
    """Inputs and targets of one micro-batch, int64, both (batch_size, context), drawn with replacement.

    `seed`, `step` and `micro` are whole numbers from 0, below 2**64. Raises DataError when the tokens do not fill one
    window, ConfigError for numbers that cannot be.

    >>> inputs, targets = training_windows(np.arange(100), 4, 2, seed=0, step=0)
    >>> inputs.shape, bool((targets == inputs + 1).all())
    ((2, 4), True)
    """
    _check_positive("batch_size", batch_size)
    n_starts = n_windows(len(tokens), context)
    starts = _generator(seed, step, micro).integers(n_starts, size=batch_size)
    return _windows(tokens, starts, context)


def validation_windows(tokens: npt.NDArray[Any], context: int, batch_size: int) -> Iterator[Window]:
    """Consecutive windows over the whole part: every token but the first is a target exactly once.

    Batches are (batch_size, context) int64; the last batch of whole windows may have fewer rows, and a shorter window
    at the end comes alone as (1, its length). Weigh the batches by their number of targets when averaging a loss.
    Raises DataError for fewer than two tokens.

    >>> [targets.tolist() for _, targets in validation_windows(np.arange(8), 3, batch_size=2)]
    [[[1, 2, 3], [4, 5, 6]], [[7]]]
    """
    _check_positive("context", context)
    _check_positive("batch_size", batch_size)
    if len(tokens) < 2:
        raise DataError(f"a loss needs at least 2 tokens (an input and a target); there are {len(tokens)}.")
    return _consecutive(tokens, context, batch_size)


def validation_problem(n_val_tokens: int, context: int) -> str | None:
    """Why validation has to be off, in one sentence, or None: known before the first step.

    >>> validation_problem(4, 16)[:53]
    'validation is off: its part of the data has 4 tokens,'
    """
    _check_positive("context", context)
    if n_val_tokens >= context + 1:
        return None
    return (
        f"validation is off: its part of the data has {n_val_tokens} tokens, and one whole window of context "
        f"{context} needs {context + 1}; use more data or a smaller context"
    )


def _consecutive(tokens: npt.NDArray[Any], context: int, batch_size: int) -> Iterator[Window]:
    n_whole, rest = divmod(len(tokens) - 1, context)
    for first in range(0, n_whole, batch_size):
        starts = np.arange(first, min(first + batch_size, n_whole), dtype=np.int64) * context
        yield _windows(tokens, starts, context)
    if rest:
        yield _windows(tokens, np.array([n_whole * context]), rest)


def _windows(tokens: npt.NDArray[Any], starts: npt.NDArray[np.int64], length: int) -> Window:
    offsets = np.arange(length + 1, dtype=np.int64)
    block = np.asarray(tokens)[starts[:, None] + offsets].astype(np.int64)
    return np.ascontiguousarray(block[:, :-1]), np.ascontiguousarray(block[:, 1:])


def _generator(seed: int, step: int, micro: int) -> np.random.Generator:
    words: list[int] = []
    for name, value in (("seed", seed), ("step", step), ("micro", micro)):
        if not 0 <= value < 1 << 64:
            raise ConfigError(f"{name} is {value}; it has to be a whole number from 0 to 2**64 - 1.")
        # Two words for each, always: left to itself SeedSequence would give a large seed two words and a small one
        # one, and different triples could then share a stream.
        words += [int(value) & 0xFFFFFFFF, int(value) >> 32]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}; it has to be at least 1.")
