"""Writing on: one token after another, with or without a cache, the same tokens either way.

The context. A model with learned positions can look at `context` tokens at most. A text may be longer: what the model
looks at is then its last tokens, and how many is a function of the length of the text alone (`window`): as soon as
there would be context + 1, only the last context // 2 stay, and from there they grow again. A prompt that is longer
than the context is treated as if it had been written token by token, so stopping and going on changes nothing. The
cache follows the same rule: when the window is cut, positions start again at 0 and what is left is read once more.

Several texts at once. The rows of a matrix share one stream of random numbers. A list of texts, of unequal lengths
perhaps, is padded on the left, where nobody looks, and each text is written as if it were alone: it has its own window,
and its own random numbers from the seed.

The vocabulary. A model may have more columns than its tokenizer has tokens (padding); those are never drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError, unknown
from handgrad.data.control import control_of
from handgrad.generate.cache import KVCache
from handgrad.generate.compiled import CompiledReader
from handgrad.generate.last import last_logits
from handgrad.generate.padded import PaddedReader, padded
from handgrad.generate.sample import Sampling, non_finite, penalised, pick, sound
from handgrad.models.diagnose import refusal
from handgrad.models.model import Model

DEFAULT = Sampling()


def window(n_tokens: int, context: int) -> int:
    """How many of the last tokens of a text of `n_tokens` the model looks at.

    >>> [window(n, context=6) for n in range(1, 13)]
    [1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 3, 4]
    """
    if n_tokens <= context:
        return n_tokens
    least = max(1, context // 2)
    return least + (n_tokens - context - 1) % (context - least + 1)


@dataclass
class Reader:
    """The tokens in the window, and the logits that follow them; the cache only saves work."""

    model: Model
    cache: KVCache | None

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens ~ (B, w), the whole window -> logits of the next token ~ (B, V)."""
        if self.cache is None:
            return self.run(tokens, 0)
        # A window grows by one token, or is cut; then what is kept is too long, and at other positions.
        if self.cache.length >= tokens.shape[1]:
            self.cache.rewind()
        return self.run(tokens[:, self.cache.length :], self.cache.length)

    def run(self, tokens: Tensor, position: int) -> Tensor:
        how = self.model.run.implementation
        if self.cache is not None and tokens.shape[1] == 1 and how == "auto":
            how = "explicit"  # one row of weights is all there is: tiles have nothing to save, and copy what is kept
        run = replace(self.model.run, seed=None, cache=self.cache, position=position, implementation=how)
        return last_logits(self.model, self.model.numbers, tokens, run)


def generate(
    model: Model,
    prompt_ids: Tensor | Any,
    max_new_tokens: int,
    sampling: Sampling = DEFAULT,
    seed: int = 0,
    use_cache: bool = True,
    stop: int | Collection[int] | None = None,
    compiled: bool = False,
    **how: Any,
) -> Iterator[Tensor]:
    """New tokens as they are chosen: each ~ (B,), int64. What can be wrong is checked at the call.

    prompt_ids      ids ~ (B, T), or (T,) for one text (then B = 1), or a list of such texts. An empty
                    prompt starts from the tokenizer's start token, else its newline, or from id 0 where it has neither;
                    that token is not given back
    max_new_tokens  at most so many; 0 gives none
    sampling        how the next token is chosen; its fields may be given by name instead, as temperature=0.8
    seed            the same seed gives the same text on the same machine
    use_cache       keep keys and values of earlier tokens: the same tokens, sooner
    compiled        each token by one compiled pass: needs a C++ compiler and up to minutes before the second token
    stop            an id, or several: a row ends with the first of them that it draws, and then repeats it while
                    others go on; once all rows have ended, nothing more comes

    Raises ShapeError for ids that are no int64 row or matrix, or outside the vocabulary, ConfigError for numbers that
    cannot be, and, on the way, NumericError for logits that are not finite, naming the first layer where they are not.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> [int(ids) for ids in hg.generate(model, torch.tensor([1, 2, 3]), 4, seed=1)] == [
    ...     int(ids) for ids in hg.generate(model, torch.tensor([1, 2, 3]), 4, seed=1, use_cache=False)]
    True
    >>> len(list(hg.generate(model, torch.tensor([1, 2, 3]), 5, temperature=0.8, top_k=3, seed=1)))
    5
    """
    sampling = with_fields(sampling, how)
    for name, value in (("max_new_tokens", max_new_tokens), ("seed", seed)):
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise ConfigError(f"{name} is {value}, and must be a whole number from 0 to {(1 << 63) - 1}")
    texts = separate(prompt_ids)
    prompts = [started(model, prompt_ids)] if texts is None else [started(model, text) for text in texts]
    stops = torch.tensor(sorted({stop} if isinstance(stop, int) else set(stop or ())), dtype=torch.int64)
    if len(stops) and (int(stops[0]) < 0 or int(stops[-1]) >= model.config.vocabulary):
        raise ConfigError(
            f"stop is {stops.tolist()}, and the ids of this model go from 0 to {model.config.vocabulary - 1}"
        )
    n_cached = min(model.config.context, max(prompt.shape[1] for prompt in prompts) + max_new_tokens)
    if compiled and not use_cache:
        raise ConfigError("compiled passes write through a cache; ask for one of the two: no cache, or compiled passes")
    stops, cache = stops.to(prompts[0].device), KVCache(n_cached) if use_cache else None
    if texts is not None:
        if compiled:
            raise ConfigError("a compiled pass reads texts of one length; write without compiling, or one by one")
        streams = [torch.Generator().manual_seed(seed) for _ in prompts]
        return islice(written_together(PaddedReader(model, cache), prompts, sampling, streams, stops), max_new_tokens)
    reader = CompiledReader(model, n_cached) if compiled else Reader(model, cache)
    new = written_on(reader, prompts[0], sampling, torch.Generator().manual_seed(seed), stops)
    return islice(new, max_new_tokens)


def complete(
    model: Model,
    prompt_ids: Tensor | Any,
    max_new_tokens: int,
    sampling: Sampling = DEFAULT,
    seed: int = 0,
    use_cache: bool = True,
    stop: int | Collection[int] | None = None,
    compiled: bool = False,
    **how: Any,
) -> Tensor:
    """What `generate` gives, at once and without the prompt: ids ~ (B, n), or (n,) for a prompt of one axis.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> complete(model, torch.tensor([[1, 2, 3], [4, 5, 6]]), 12).shape
    torch.Size([2, 12])
    """
    new = list(generate(model, prompt_ids, max_new_tokens, sampling, seed, use_cache, stop, compiled, **how))
    shape = (len(prompt_ids), 0) if separate(prompt_ids) is not None else torch.as_tensor(prompt_ids).shape
    if not new:
        return torch.zeros((*shape[:-1], 0), dtype=torch.int64)
    return torch.stack(new, dim=-1) if len(shape) == 2 else torch.cat(new)


def with_fields(sampling: Any, fields: Mapping[str, Any]) -> Sampling:
    """`sampling` with some of its fields changed. Raises UnknownName, or ConfigError where it is something else.

    >>> with_fields(DEFAULT, {"top_k": 3}).top_k
    3
    """
    if not isinstance(sampling, Sampling):
        raise ConfigError(
            f"sampling is {sampling!r}, and must be a Sampling: hg.generate(model, ids, 5, "
            "hg.Sampling(temperature=0.8)), or its fields by name: hg.generate(model, ids, 5, temperature=0.8)"
        )
    known = Sampling.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise unknown("argument of generate", name, [*known, "seed", "use_cache", "stop", "compiled"])
    return replace(sampling, **fields) if fields else sampling


def separate(prompt_ids: Any) -> list[Any] | None:
    """The texts of a list of tensors, or of lists that differ in length; None for one matrix or row.

    >>> separate([[1, 2], [3]]), separate([[1, 2], [3, 4]])
    ([[1, 2], [3]], None)
    """
    if not isinstance(prompt_ids, list | tuple) or not all(isinstance(t, Tensor | list | tuple) for t in prompt_ids):
        return None
    if any(isinstance(text, Tensor) and text.ndim != 1 for text in prompt_ids):
        return None
    tensors = bool(prompt_ids) and all(isinstance(text, Tensor) for text in prompt_ids)
    return list(prompt_ids) if tensors or len({len(text) for text in prompt_ids}) > 1 else None


def started(model: Model, prompt_ids: Tensor | Any) -> Tensor:
    """The prompt as checked ids ~ (B, T) with T of at least 1, where the model is."""
    ids = torch.as_tensor(prompt_ids)
    if ids.ndim not in (1, 2) or (ids.ndim == 2 and len(ids) == 0) or (ids.numel() and ids.dtype != torch.int64):
        raise ShapeError(
            "a prompt is int64 token ids, (tokens,) or (batch, tokens) with a batch of at least 1; "
            f"found {tuple(ids.shape)} of {str(ids.dtype).removeprefix('torch.')}"
        )
    ids = ids.to(model.params.flat.device, torch.int64)
    if ids.ndim == 1:
        ids = ids[None]
    if ids.shape[1] == 0:
        ids = torch.full((len(ids), 1), first_id(model), dtype=torch.int64, device=ids.device)
    return model.checked(ids)


def first_id(model: Model) -> int:
    """Where an empty prompt starts: the tokenizer's start token, else its newline, or id 0 where there is none.

    >>> import handgrad as hg
    >>> first_id(hg.build(hg.GPT2Config(vocabulary=11, n_layers=1, n_heads=1, d_model=6)))
    0
    """
    if begin := control_of(model.tokenizer).begin:
        return begin[0]
    newline = [] if model.tokenizer is None else [int(i) for i in model.tokenizer.encode("\n", "skip")]
    return newline[0] if newline and newline[0] < model.config.vocabulary else 0


def written_on(
    reader: Reader | CompiledReader, prompt: Tensor, sampling: Sampling, generator: torch.Generator, stops: Tensor
) -> Iterator[Tensor]:
    """Tokens without end, unless every row comes to a stop."""
    context, n_seen = reader.model.config.context, prompt.shape[1]
    tokens = prompt[:, n_seen - window(n_seen, context) :]
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    new = prompt[:, -1]
    while True:
        new = torch.where(ended, new, chosen(reader, tokens, tokens, n_seen, sampling, generator))
        yield new
        ended = torch.isin(new, stops)  # a row that has ended repeats its stop, so it stays ended
        if bool(ended.all()):
            return
        n_seen += 1
        tokens = torch.cat([tokens, new[:, None]], dim=1)
        tokens = tokens[:, tokens.shape[1] - window(n_seen, context) :]


def written_together(
    reader: PaddedReader, prompts: list[Tensor], sampling: Sampling, generators: list[torch.Generator], stops: Tensor
) -> Iterator[Tensor]:
    """`written_on` for texts of unequal lengths, each in a window of its own."""
    context, lengths = reader.model.config.context, [prompt.shape[1] for prompt in prompts]
    rows = [prompt[0, n - window(n, context) :] for prompt, n in zip(prompts, lengths, strict=True)]
    new = torch.cat([prompt[0, -1:] for prompt in prompts])
    ended = torch.zeros_like(new, dtype=torch.bool)
    while True:
        new = torch.where(ended, new, chosen(reader, rows, padded(rows, -1), max(lengths), sampling, generators))
        yield new
        ended = torch.isin(new, stops)
        if bool(ended.all()):
            return
        lengths = [n + 1 for n in lengths]
        rows = [torch.cat([row, new[i : i + 1]]) for i, row in enumerate(rows)]
        rows = [row[len(row) - window(n, context) :] for row, n in zip(rows, lengths, strict=True)]


def chosen(
    reader: Any, tokens: Any, seen: Tensor, n_seen: int, sampling: Sampling, generator: torch.Generator | list[Any]
) -> Tensor:
    """The next token of each row; `seen` are the ids in its window, -1 where there is none."""
    model: Model = reader.model
    logits = reader.logits(tokens)[:, : getattr(model.tokenizer, "vocab_size", model.config.vocabulary)]
    if not sound(logits) and (bad := non_finite(logits)):
        where = tokens if isinstance(tokens, Tensor) else padded(tokens, 0)
        raise refusal(model, where, f"no token can be drawn from the logits after {n_seen} tokens: {bad}")
    if sampling.repetition_penalty != 1:
        logits = penalised(logits, seen, sampling.repetition_penalty)
    return pick(logits, sampling, generator).to(seen.device)
