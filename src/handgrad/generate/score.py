"""How well a model predicts tokens that are given: nats a token, perplexity, bits a byte.

Window k takes the inputs from position k·stride on, at most `context` of them, and each target is scored in the first
window that holds it. Except in the first window these are its last `stride` targets, so that each is predicted from at
least context - stride + 1 tokens. A stride of `context` is the cheapest and sees the fewest tokens before a target; a
stride of 1 gives every target all that the model can look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, inf, isfinite, log
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from handgrad.core.errors import ConfigError, DataError
from handgrad.core.run import Run
from handgrad.data.tokenizers import Bytes
from handgrad.models.diagnose import refusal
from handgrad.models.model import Model

NOT_SCORED = -1
MOST_CONTEXT, TOKENS_AT_ONCE = 1024, 2048
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of some tokens.

    nats       surprise of all the targets together
    n_tokens   targets; the first token is not one, nothing comes before it, nor is what was given in front
    n_bytes    bytes of their text as UTF-8; None where the ids have no text
    context, stride   the windows they were read in
    """

    nats: float
    n_tokens: int
    n_bytes: int | None
    context: int
    stride: int

    @property
    def nats_a_token(self) -> float:
        return self.nats / self.n_tokens

    @property
    def perplexity(self) -> float:
        return exp(self.nats_a_token) if self.nats_a_token < 700 else inf

    @property
    def bits_a_byte(self) -> float | None:
        return self.nats / log(2) / self.n_bytes if self.n_bytes else None


def evaluate(
    model: Model,
    tokens: npt.ArrayLike | torch.Tensor,
    *,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
    n_bytes: int | None = None,
    n_given: int = 1,
    progress: Progress | None = None,
) -> Evaluation:
    """Mean surprise of every token of a sequence but the first, each predicted once from the tokens before it.

    tokens     ids, one sequence; a model whose texts begin with a start token expects it in front
    context    most tokens of a window; None is the model's own, at most `MOST_CONTEXT`
    stride     from one window to the next, 1 … context; None is context: windows that do not overlap
    batch_size   windows at once; None is about `TOKENS_AT_ONCE` tokens, since a pass keeps what it computed to its end
    n_bytes    bytes of the targets' text; None counts them with the model's tokenizer, if it has one
    n_given    how many first tokens are not scored

    `progress(done, total)` is told how many targets are scored. Raises DataError for fewer than two tokens, ConfigError
    for windows that cannot be, ShapeError for ids that the model does not know, NumericError for a loss that is not
    finite, naming the first signal that is not.

    >>> import handgrad as hg, numpy as np
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6, std=1e-9), seed=0)
    >>> found = hg.evaluate(model, np.arange(11), stride=2)
    >>> found.n_tokens, round(found.nats_a_token, 4), round(found.perplexity, 2)
    (10, 2.3979, 11.0)
    """
    ids = np.asarray(tokens)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(f"an evaluation reads one row of token ids; found shape {ids.shape} of {ids.dtype}")
    if n_given < 1:
        raise ConfigError(f"n_given is {n_given}, and must be at least 1: nothing comes before the first token")
    if ids.size <= n_given:
        raise DataError(f"a loss needs at least {n_given + 1} tokens (an input and a target); there are {ids.size}.")
    context, stride = windows_of(model, context, stride)
    if batch_size is None:
        batch_size = max(1, TOKENS_AT_ONCE // context)
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}, and must be at least 1")
    if n_bytes is None:
        n_bytes = bytes_of(model.tokenizer, ids, n_given)
    nats, done, run = 0.0, 0, Run(implementation="auto")
    device = model.params.flat.device
    with torch.no_grad():
        for inputs, targets, n in batches(ids, context, stride, batch_size, n_given):
            x, y = torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
            surprise = float(model.loss(x, y, n_valid=1, run=run))
            model.pending = None
            if not isfinite(surprise):
                raise refusal(
                    model, x, f"the loss of tokens {done + n_given} to {done + n_given + n - 1} is {surprise}"
                )
            nats, done = nats + surprise, done + n
            if progress is not None:
                progress(done, ids.size - n_given)
    return Evaluation(nats, done, n_bytes, context, stride)


def windows_of(model: Model, context: int | None, stride: int | None) -> tuple[int, int]:
    """The windows that were asked for, or those of the model. Raises ConfigError."""
    most = model.config.context
    context = min(most, MOST_CONTEXT) if context is None else context
    if not 1 <= context <= most:
        raise ConfigError(f"context is {context}, and must be from 1 to {most}, the model's own")
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise ConfigError(f"stride is {stride}, and must be from 1 to {context}, the context: no token may be left out")
    return context, stride


def batches(
    ids: npt.NDArray[Any], context: int, stride: int, batch_size: int, n_given: int = 1
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]]:
    """Inputs and targets ~ (batch, length), and how many of the targets are scored; the others are `NOT_SCORED`.

    >>> [(y.tolist(), n) for _, y, n in batches(np.arange(7), 4, 2, batch_size=8)]
    [([[1, 2, 3, 4], [-1, -1, 5, 6]], 6)]
    """
    last = len(ids) - 1  # the largest position of a target, and the number of targets
    n_whole = 0 if last < context else (last - context) // stride + 1
    scored = context + (n_whole - 1) * stride if n_whole else 0
    windows = [(k * stride, context) for k in range(n_whole)]
    for at in range(0, n_whole, batch_size):
        yield batch(ids, windows[at : at + batch_size], stride, context, n_given)
    if scored < last:
        start = n_whole * stride
        yield batch(ids, [(start, last - start)], stride, context, n_given)


def batch(
    ids: npt.NDArray[Any], windows: list[tuple[int, int]], stride: int, context: int, n_given: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Windows of one length, each given by its start and its length."""
    block = np.stack([ids[start : start + length + 1] for start, length in windows]).astype(np.int64)
    inputs, targets = block[:, :-1].copy(), block[:, 1:].copy()
    for row, (start, _) in zip(targets, windows, strict=True):
        row[: max(0, n_given - 1 - start)] = NOT_SCORED
        if start:
            row[: context - stride] = NOT_SCORED
    return inputs, targets, int((targets != NOT_SCORED).sum())


def bytes_of(tokenizer: Any, ids: npt.NDArray[Any], n_given: int = 1) -> int | None:
    """Bytes of the text of all ids but the first `n_given`; None without a tokenizer, or where ids are all there is.

    Where a cut went through a character, what is left of it is counted as the replacement mark that stands for it.
    """
    if isinstance(tokenizer, Bytes):
        return int(ids.size) - n_given
    if tokenizer is None or tokenizer.kind == "ids":
        return None
    return len(tokenizer.decode(ids).encode()) - len(tokenizer.decode(ids[:n_given]).encode())
