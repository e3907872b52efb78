"""What `handgrad eval` does once its options are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from handgrad.cli.options import problems
from handgrad.cli.output import Output
from handgrad.cli.progress import preparing
from handgrad.cli.waiting import waiting
from handgrad.cli.writing import DTYPES, WORDLESS, with_flags
from handgrad.core.errors import ConfigError, DataError, HandgradError
from handgrad.data.checks import check_choice
from handgrad.data.control import control_names, control_of
from handgrad.data.ids import holds_ids, read_ids
from handgrad.data.sources import EMBEDDED, read_texts, text_file
from handgrad.generate.score import evaluate
from handgrad.models.load import load
from handgrad.models.model import Model

SAFE = 64  # tokens at the end of a text that is cut off; what follows could have changed them


@dataclass(frozen=True)
class Request:
    """The options of one `handgrad eval`. Raises ConfigError at once for what cannot be, all of it together."""

    sources: tuple[str, ...]
    context: int | None = None
    stride: int | None = None
    batch_size: int | None = None
    limit: int | None = None
    dtype: str = "auto"
    unknown: str = "abort"
    bos: bool = True

    def __post_init__(self) -> None:
        least = {"--context": (self.context, 1), "--stride": (self.stride, 1), "--batch-size": (self.batch_size, 1)}
        least["--limit"] = (self.limit, 2)
        wrong = [
            f"{flag} is {value}, and must be at least {n}"
            for flag, (value, n) in least.items()
            if value is not None and value < n
        ]
        if self.context is not None and self.stride is not None and self.stride > self.context >= 1:
            wrong.append(f"--stride {self.stride} is above --context {self.context}: tokens would be left out")
        if self.dtype not in DTYPES:
            wrong.append(f"--dtype is {self.dtype!r}, and must be one of {', '.join(DTYPES)}")
        try:
            check_choice(self.unknown)
        except HandgradError as error:
            wrong.append(f"--unknown: {error}")
        with_ids = [name for name in self.sources if holds_ids(name)]
        if with_ids and len(with_ids) < len(self.sources):
            wrong.append(f"{with_ids[0]} holds token ids and other DATA are text; give files of one kind")
        if wrong:
            raise ConfigError(problems(wrong))


def show(request: Request, name: str, output: Output) -> None:
    """Evaluate the model of that name and say what was found. Raises HandgradError."""
    for source in request.sources:  # before the model is loaded
        if source != EMBEDDED and not holds_ids(source):
            text_file(source)
    with waiting(f"loading {name}", output.live):
        model = load(name)
        if (dtype := DTYPES[request.dtype]) is not None:
            model = model.shadowed(dtype)
    with waiting("reading the text", output.live):
        given, ids, n_bytes = tokens_of(model, request)
    began = perf_counter()
    with preparing(output, "scoring tokens") as progress:
        try:
            found = evaluate(
                model,
                np.concatenate([np.asarray(given, ids.dtype), ids]) if given else ids,
                context=request.context,
                stride=request.stride,
                batch_size=request.batch_size,
                n_bytes=n_bytes,
                n_given=max(len(given), 1),
                progress=progress,
            )
        except ConfigError as error:
            raise ConfigError(f"--{error}") from None
    seconds = perf_counter() - began
    figures = {
        "nats_a_token": found.nats_a_token,
        "perplexity": found.perplexity,
        "bits_a_byte": found.bits_a_byte,
        "tokens_per_s": found.n_tokens / seconds,
    }
    numbers = model.params.flat.dtype if dtype is None else dtype
    output.record(asdict(found) | figures | {"dtype": str(numbers).removeprefix("torch."), "start_tokens": given})
    output.text(f"nats a token   {found.nats_a_token:.4f}")
    output.text(f"perplexity     {found.perplexity:,.4g}")
    bits = "the ids have no text" if found.bits_a_byte is None else f"{found.bits_a_byte:.4f}"
    output.text(f"bits a byte    {bits}")
    text = "" if found.n_bytes is None else f", {found.n_bytes:,} bytes"
    overlap = f" (at least {found.context - found.stride + 1:,} tokens to predict from)"
    output.text(f"over           {found.n_tokens:,} tokens{text}, each predicted once, {behind(model, given)}")
    output.text(
        f"windows        of {found.context:,}, every {found.stride:,}{overlap if found.stride < found.context else ''}"
    )


def behind(model: Model, given: Sequence[int]) -> str:
    """What the first token that counts comes after, in words."""
    if not given:
        return "the first token not counted"
    names = {i: name for name, i in control_names(model.tokenizer).items()}
    return f"the first behind the start token {' '.join(names.get(i, str(i)) for i in given)}"


def tokens_of(model: Model, request: Request) -> tuple[list[int], npt.NDArray[np.int64], int | None]:
    """Start tokens, ids of the data, at most `limit`, and the bytes of those that are scored, where known exactly.

    Texts begin as those that the model was trained on, with its start token; ids are taken as they are.
    """
    if all(map(holds_ids, request.sources)):
        return [], stored(request.sources, request.limit), None
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ConfigError(f"{WORDLESS}. Files of ids (.npy, .bin) are read as they are")
    given = list(control_of(tokenizer).begin) if request.bos else []
    if request.limit is None:
        text = "".join(read_texts(request.sources))
        ids = encoded(tokenizer, text, request)
        if request.unknown == "abort" and tokenizer.kind != "ids" and ids.size:
            return given, ids, len(text.encode()) - (0 if given else first_bytes(tokenizer, ids))
        return given, ids, None
    text, ids = "", np.zeros(0, np.int64)
    for piece in pieces(request.sources, request.limit):
        text += piece
        ids = encoded(tokenizer, text, request)
        if ids.size >= request.limit + SAFE:
            break
    return given, ids[: request.limit], None


def encoded(tokenizer: Any, text: str, request: Request) -> npt.NDArray[np.int64]:
    try:
        return np.asarray(tokenizer.encode(text, unknown=request.unknown))
    except DataError as error:
        raise DataError(with_flags(str(error))) from None


def pieces(sources: Sequence[str], limit: int) -> Iterator[str]:
    """The text of the sources, at first about as many characters as `limit` tokens may need, then twice as many."""
    text, wanted = "", 8 * (limit + SAFE)
    for piece in read_texts(sources):
        text += piece
        while len(text) >= wanted:
            yield text[:wanted]
            text, wanted = text[wanted:], 2 * wanted
    if text:
        yield text


def first_bytes(tokenizer: Any, ids: npt.NDArray[np.int64]) -> int:
    """Bytes of the first token, which is not a target."""
    return 1 if tokenizer.kind == "bytes" else len(tokenizer.decode(ids[:1]).encode())


def stored(sources: Sequence[str], limit: int | None) -> npt.NDArray[np.int64]:
    found: list[npt.NDArray[np.int64]] = []
    n = 0
    for ids in (ids for source in sources for ids in read_ids(source)):
        found.append(ids if limit is None else ids[: limit - n])
        n += found[-1].size
        if n == limit:
            break
    if not n:
        raise DataError("the data hold no token ids at all.")
    return np.concatenate(found)
