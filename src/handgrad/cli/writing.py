"""What `handgrad generate` does once its options are known: all of them are checked before the model is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from handgrad.cli.options import problems
from handgrad.cli.output import Output
from handgrad.cli.stops import UntilStop
from handgrad.cli.waiting import waiting
from handgrad.core.compiler import no_compiler
from handgrad.core.errors import ConfigError, HandgradError
from handgrad.data.checks import CHOICES, check_choice
from handgrad.data.control import control_of
from handgrad.data.sources import read_text
from handgrad.data.tokenizers import StreamDecoder
from handgrad.generate.compare import check_cache
from handgrad.generate.generate import first_id, generate
from handgrad.generate.sample import Sampling
from handgrad.models.load import load
from handgrad.models.model import Model

DTYPES = {"auto": None, "float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
WORDLESS = (
    "this model comes without a tokenizer, so it cannot read or write text; put its tokenizer.json (of llama2.c: its "
    "tokenizer.bin) beside it, or let the numbers of tokens be its text: handgrad import MODEL --out FOLDER"
)
FLAGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_new_tokens", "batch_size")


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
    dtype: str = "auto"
    compiled: bool = False
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    batch_size: int = 1

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if not 1 <= self.batch_size < 1 << 31:
            wrong.append(f"batch_size is {self.batch_size}, and must be a whole number of at least 1")
        elif self.batch_size > 1 and self.compiled:
            wrong.append("--compile and --batch-size were both given; compiled passes write one text at a time")
        for name in ("max_new_tokens", "seed"):
            if not 0 <= (value := getattr(self, name)) < 1 << 63:
                bound = "of at least 0" if value < 0 else f"of at most {(1 << 63) - 1}"
                wrong.append(f"{name} is {value}, and must be a whole number {bound}")
        for where, check in (("", lambda: self.sampling), ("--unknown: ", lambda: check_choice(self.unknown))):
            try:
                check()
            except HandgradError as error:
                wrong.append(f"{where}{error}")
        if self.dtype not in DTYPES:
            wrong.append(f"--dtype is {self.dtype!r}, and must be one of {', '.join(DTYPES)}")
        if self.compiled and not self.use_cache:
            wrong.append("--compile and --no-cache were both given; compiled passes write through a cache")
        if "" in self.stops:
            wrong.append("--stop is empty, and would end every text before it begins; leave it out")
        if self.prompt is not None and self.prompts is not None:
            wrong.append("--prompt and --prompts were both given; give one of them")
        if wrong:
            raise ConfigError(problems(map(as_flags, wrong)))

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.greedy, self.min_p, self.repetition_penalty)

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
    pieces: Iterable[str] = ()

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
    with waiting(f"loading {path}", output.live):
        model = load(path)
        if (dtype := DTYPES[request.dtype]) is not None:
            model = model.shadowed(dtype)
    if request.compiled and (reason := no_compiler()):
        output.note(f"{reason}; going on without it")
        request = replace(request, compiled=False)
    encoded = [encode(model, text, request, i if request.prompts else None) for i, text in enumerate(texts, start=1)]
    right = True
    for i, (text, written) in enumerate(zip(texts, all_written(model, encoded, request), strict=True)):
        if not output.json:
            output.text("\n" + text if i else text, end="")
        for piece in written.pieces:
            if not output.json:
                output.text(piece, end="")
        if not output.json:
            output.text()
        record = {
            "prompt": text,
            "prompt_ids": written.prompt_ids,
            "ids": written.ids,
            "text": written.text,
            "stopped": written.stopped,
            "tokens_per_s": written.tokens_per_s,
        }
        if request.check_cache:
            verdict = compared(model, [*written.prompt_ids, *written.ids], output)
            record["cache"] = verdict
            right = right and verdict["verdict"] != "bug"
        output.record(record)
        if output.live:
            output.note(f"({written.n_drawn:,} tokens, {written.tokens_per_s:,.0f} tokens/s)")
    return 0 if right else 1


def encode(model: Model, text: str, request: Request, line: int | None) -> list[int]:
    if model.tokenizer is None:
        raise ConfigError(WORDLESS)
    try:
        ids = model.tokenizer.encode(text, unknown=request.unknown)
        return [*control_of(model.tokenizer).begin, *(int(i) for i in ids)]
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


def all_written(model: Model, prompts: list[list[int]], request: Request) -> Iterator[Written]:
    """One after the other: `pieces` of each are the new text, as soon as they are certain; or whole batches of them."""
    for at in range(0, len(prompts), request.batch_size):
        group = [Written(ids, []) for ids in prompts[at : at + request.batch_size]]
        if len(group) == 1:
            group[0].pieces = stream(model, group[0], request)
        else:
            together(model, group, request)
        yield from group


def new_tokens(model: Model, prompt: Any, request: Request) -> Iterator[torch.Tensor]:
    return generate(
        model,
        prompt,
        request.max_new_tokens,
        request.sampling,
        request.seed,
        request.use_cache,
        stop=known_ends(model),
        compiled=request.compiled,
    )


def as_tensor(ids: list[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def known_ends(model: Model) -> tuple[int, ...]:
    """The tokens that end a text, as the tokenizer of a trained model knows them."""
    return tuple(i for i in control_of(model.tokenizer).end if i < model.config.vocabulary)


@dataclass
class Growing:
    """One text that gets tokens; `written` grows along."""

    model: Model
    written: Written
    request: Request

    def __post_init__(self) -> None:
        self.decoder, self.until = StreamDecoder(self.model.tokenizer), UntilStop(self.request.stops)
        # The prompt's last bytes may be the first half of a character, and ids are told apart by what is before them.
        for i in self.written.prompt_ids:
            self.decoder.push(i)
        self.ends: list[int] = []
        self.last, self.n, self.began = known_ends(self.model), 0, perf_counter()

    def push(self, i: int) -> str:
        """What can be shown once token i has come; `written.stopped` says that it was the last."""
        written = self.written
        written.n_drawn += 1
        if i in self.last:
            written.seconds, written.stopped = perf_counter() - self.began, True
            return ""
        written.ids.append(i)
        new = self.decoder.push(i)
        self.n += len(new)
        self.ends.append(self.n)
        piece = self.until.push(new)
        written.seconds = perf_counter() - self.began
        return self.grown(piece)

    def flush(self) -> str:
        """What was held back, once no more tokens come."""
        if self.until.found:
            return ""
        return self.grown(self.until.push(self.decoder.flush()) + self.until.flush())

    def grown(self, piece: str) -> str:
        self.written.text += piece
        if self.until.found:
            self.written.stopped = True
            self.written.ids = self.written.ids[: n_before(self.ends, len(self.written.text))]
        return piece


def stream(model: Model, written: Written, request: Request) -> Iterator[str]:
    """The new text in pieces, as soon as each is certain."""
    text = Growing(model, written, request)
    for new in new_tokens(model, as_tensor(written.prompt_ids), request):
        if piece := text.push(int(new)):
            yield piece
        if written.stopped:
            break
    yield text.flush()


def together(model: Model, group: list[Written], request: Request) -> None:
    """Several texts at once, padded where they differ in length; each ends by itself."""
    texts = [Growing(model, written, request) for written in group]
    pieces: list[list[str]] = [[] for _ in group]
    for new in new_tokens(model, [as_tensor(written.prompt_ids) for written in group], request):
        for i, text in enumerate(texts):
            if not group[i].stopped:
                pieces[i].append(text.push(int(new[i])))
        if all(written.stopped for written in group):
            break
    for i, text in enumerate(texts):
        group[i].pieces = [*pieces[i], text.flush()]


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
