"""What `handgrad generate` does once its options are known: all of them are checked before the model is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from handgrad.cli.options import problems
from handgrad.cli.output import Output
from handgrad.cli.stops import UntilStop
from handgrad.core.errors import ConfigError, HandgradError
from handgrad.data.checks import CHOICES, check_choice
from handgrad.data.sources import read_text
from handgrad.data.tokenizers import StreamDecoder
from handgrad.generate.compare import check_cache
from handgrad.generate.generate import first_id, generate
from handgrad.generate.sample import Sampling
from handgrad.models.load import load
from handgrad.models.model import Model

FLAGS = ("temperature", "top_k", "top_p", "seed", "max_new_tokens")


@dataclass(frozen=True)
class Request:
    """The options of one `handgrad generate`. Raises ConfigError at once for what cannot be, all of it together."""

    prompt: str | None = None
    prompts: Path | None = None
    max_new_tokens: int = 200
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    greedy: bool = False
    stops: tuple[str, ...] = ()
    unknown: str = "abort"
    use_cache: bool = True
    check_cache: bool = False

    def __post_init__(self) -> None:
        wrong: list[str] = []
        for name in ("max_new_tokens", "seed"):
            if not 0 <= getattr(self, name) < 1 << 63:
                wrong.append(f"{name} is {getattr(self, name)}, and must be a whole number of at least 0")
        for where, check in (("", lambda: self.sampling), ("--unknown: ", lambda: check_choice(self.unknown))):
            try:
                check()
            except HandgradError as error:
                wrong.append(f"{where}{error}")
        if "" in self.stops:
            wrong.append("--stop is empty, and would end every text before it begins; leave it out")
        if self.prompt is not None and self.prompts is not None:
            wrong.append("--prompt and --prompts were both given; give one of them")
        if wrong:
            raise ConfigError(problems(map(as_flags, wrong)))

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.greedy)

    def texts(self) -> list[str]:
        """The prompts. Raises FileError and DataError for a file that cannot be read as text."""
        if self.prompts is None:
            return [self.prompt or ""]
        return "".join(read_text(self.prompts)).removesuffix("\n").split("\n")


@dataclass
class Written:
    """One text so far: `ids` are those of `text`; `n_drawn` counts the tokens of a stop, too."""

    prompt_ids: list[int]
    ids: list[int]
    n_drawn: int = 0
    text: str = ""
    seconds: float = 0.0
    stopped: bool = False

    @property
    def tokens_per_s(self) -> float:
        return self.n_drawn / self.seconds if self.seconds else 0.0


def as_flags(text: str) -> str:
    """Names of options as they are typed.

    >>> as_flags("top_k is -1, and must be a whole number")
    '--top-k is -1, and must be a whole number'
    """
    return re.sub(rf"\b({'|'.join(FLAGS)})(?= is )", lambda match: "--" + match[1].replace("_", "-"), text)


def write(request: Request, path: str, output: Output) -> int:
    """Write on from every prompt in turn; the exit status is 1 where the cache was found to be wrong."""
    texts = request.texts()
    model = load(path)
    encoded = [encode(model, text, request, i if request.prompts else None) for i, text in enumerate(texts, start=1)]
    right = True
    for i, (text, ids) in enumerate(zip(texts, encoded, strict=True)):
        if not output.json:
            output.text("\n" + text if i else text, end="")
        written = Written(ids, [])
        for piece in stream(model, written, request):
            if not output.json:
                output.text(piece, end="")
        if not output.json:
            output.text()
        record = {
            "prompt": text,
            "prompt_ids": ids,
            "ids": written.ids,
            "text": written.text,
            "stopped": written.stopped,
            "tokens_per_s": written.tokens_per_s,
        }
        if request.check_cache:
            verdict = compared(model, [*ids, *written.ids], output)
            record["cache"] = verdict
            right = right and verdict["verdict"] != "bug"
        output.record(record)
        if output.live:
            output.note(f"({written.n_drawn:,} tokens, {written.tokens_per_s:,.0f} tokens/s)")
    return 0 if right else 1


def encode(model: Model, text: str, request: Request, line: int | None) -> list[int]:
    if model.tokenizer is None:
        raise ConfigError("this model comes without a tokenizer, so it cannot read or write text")
    try:
        return [int(i) for i in model.tokenizer.encode(text, unknown=request.unknown)]
    except HandgradError as error:
        where = "" if line is None else f"line {line} of {request.prompts}: "
        raise type(error)(f"{where}{with_flags(str(error))}") from None


def with_flags(text: str) -> str:
    """The choices for unknown characters as they are typed.

    >>> with_flags("token ids have no stand-in. Choose skip or abort.")
    'token ids have no stand-in. Choose --unknown skip or --unknown abort.'
    """
    if "outside the vocabulary" in text:
        return f"{text.removesuffix('.')}; --unknown skip leaves such ids out"
    choices = "Choose what happens: --unknown skip leaves them out, --unknown replace puts a stand-in for them."
    return text.replace(CHOICES, choices).replace("Choose skip or abort", "Choose --unknown skip or --unknown abort")


def stream(model: Model, written: Written, request: Request) -> Iterator[str]:
    """The new text in pieces, as soon as each is certain; `written` grows along."""
    decoder, until = StreamDecoder(model.tokenizer), UntilStop(request.stops)
    # The prompt's last bytes may be the first half of a character, and ids are told apart by what is before them.
    for i in written.prompt_ids:
        decoder.push(i)
    began, ends, n = perf_counter(), [], 0
    prompt = torch.tensor(written.prompt_ids, dtype=torch.int64)
    for ids in generate(model, prompt, request.max_new_tokens, request.sampling, request.seed, request.use_cache):
        written.ids.append(int(ids))
        new = decoder.push(written.ids[-1])
        n += len(new)
        ends.append(n)
        written.n_drawn = len(ends)
        piece = until.push(new)
        written.seconds = perf_counter() - began
        written.text += piece
        written.stopped = until.found
        if piece:
            yield piece
        if until.found:
            written.ids = written.ids[: n_before(ends, len(written.text))]
            return
    rest = until.push(decoder.flush())
    rest += until.flush()
    written.text += rest
    written.stopped = until.found
    if until.found:
        written.ids = written.ids[: n_before(ends, len(written.text))]
    yield rest


def n_before(ends: list[int], length: int) -> int:
    """How many tokens lie whole within the first `length` characters, where token i ends at character `ends[i]`.

    A last token that has shown nothing yet, such as half a character, belongs to what comes after.

    >>> n_before([1, 2, 2, 3], 2), n_before([1, 1, 2], 0), n_before([3, 6], 5)
    (2, 0, 1)
    """
    n = sum(end <= length for end in ends)
    while n and ends[n - 1] == (ends[n - 2] if n > 1 else 0):
        n -= 1
    return n


def compared(model: Model, ids: list[int], output: Output) -> dict[str, Any]:
    """The comparison of `--check-cache`, over as many of the first tokens as the model can look at."""
    context = model.config.context
    ids = ids or [first_id(model)]
    table = check_cache(model, torch.tensor(ids[:context], dtype=torch.int64))
    if len(ids) > context:
        output.note(f"the cache is compared over the first {context} of {len(ids)} tokens, the model's context")
    output.text(str(table))
    return {"verdict": table.verdict, "rows": [asdict(row) for row in table.rows]}
