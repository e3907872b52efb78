"""What has to be right before the first step: the data, the folder, and the files of a run that goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.data.corpus import CORPUS, Corpus, open_corpus
from handgrad.data.files import read_json
from handgrad.data.tokenizers import fingerprint
from handgrad.data.windows import n_windows, validation_problem
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.model import Model
from handgrad.models.store import CHECKPOINTS
from handgrad.train import checkpoint
from handgrad.train.config import RunFile, TrainConfig, available_device, flag, read_toml, versions
from handgrad.train.metrics import METRICS
from handgrad.train.optimiser import State

CONFIG = "config.toml"
_CHUNK = 1 << 22
_NO_MEMORY = re.compile("allocate memory|not enough memory|out of memory|size calculation overflowed", re.IGNORECASE)
_BYTES = re.compile(r"allocate (\d+) bytes")


@dataclass(frozen=True)
class Parts:
    """The tokens to train on and to validate on (None: validation is off), and what to say about them."""

    training: npt.NDArray[Any]
    validation: npt.NDArray[Any] | None
    warnings: tuple[str, ...] = ()


def parts_of(corpus: Corpus, config: GPT2Config) -> Parts:
    """The corpus split in file order, if the model knows its ids and one window fits.

    A corpus too small to set a tenth aside is trained on whole, without validation. Raises DataError.
    """
    check_ids(corpus.tokens, config.vocabulary)
    training, validation = corpus.split(0.9)
    if len(training) < config.context + 1 <= corpus.n_tokens:
        warning = (
            f"validation is off: of {corpus.n_tokens} tokens none can be set aside, because a window of context "
            f"{config.context} takes {config.context + 1}; all of them are trained on"
        )
        return Parts(corpus.tokens, None, (warning,))
    n_windows(len(training) if corpus.n_tokens > config.context else corpus.n_tokens, config.context)
    problem = validation_problem(len(validation), config.context)
    return Parts(training, None if problem else validation, (problem,) if problem else ())


def check_ids(tokens: npt.NDArray[Any], vocabulary: int) -> None:
    """DataError naming the largest id and where it first stands, if the model does not know it."""
    largest, position = -1, -1
    for first in range(0, len(tokens), _CHUNK):
        piece = np.asarray(tokens[first : first + _CHUNK])
        if int(piece.max()) > largest:
            largest, position = int(piece.max()), first + int(piece.argmax())
    if largest >= vocabulary:
        raise DataError(
            f"the largest token id is {largest}, first at position {position}, but the model's vocabulary is "
            f"{vocabulary} (ids 0 to {vocabulary - 1}). Give the model {largest + 1} tokens or more, or other data"
        )


def fresh_folder(folder: Path) -> None:
    """Make the folder of a new run. Raises ConfigError where one is already there, FileError where it cannot be."""
    for name in (CONFIG, METRICS, CHECKPOINTS):
        if (folder / name).exists():
            raise ConfigError(
                f"{folder} already holds a run ({name} is there), and it is left as it is. "
                "Resume it with --resume, or choose another folder"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot use {str(folder)!r} as a run folder: {error.strerror or error}") from None


def data_table(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """The table [data] of config.toml; tokens inside the run folder are named from there, so the folder can move."""
    try:
        description = read_json(corpus.folder / CORPUS, 16 << 20)
        sources = [str(source["name"]) for source in description["sources"]]
    except (FileError, LookupError, TypeError):
        sources = []  # a corpus made by hand; where it came from is not ours to know
    tokens, inside = corpus.folder.resolve(), folder.resolve()
    place = tokens.relative_to(inside) if tokens.is_relative_to(inside) else tokens
    return {"sources": sources, "tokenizer": corpus.tokenizer.kind, "tokens": place.as_posix()}


@contextmanager
def memory_explained() -> Iterator[None]:
    """A model or batch too large for this machine, said plainly."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        asked = _BYTES.search(str(error))
        size = f" when {int(asked[1]):,} bytes were asked for at once" if asked else ""
        raise ConfigError(
            f"there is not enough memory{size}; what was saved before is intact. "
            "Use a smaller --batch-size (with --accumulate), --context or --width"
        ) from None


@dataclass(frozen=True)
class Reopened:
    """A run as it was found. Without a corpus there is nothing left to do; without a model nothing was saved yet."""

    file: RunFile
    config: TrainConfig
    start: checkpoint.Progress
    saved: Path | None
    corpus: Corpus | None = None
    model: Model | None = None
    state: State | None = None


def reopened(folder: Path, steps: int | None, said: Callable[[str], None]) -> Reopened:
    """Read a run's files and compare them with each other. Raises FileError, ConfigError, DataError."""
    if not (folder / CONFIG).is_file():
        raise FileError(
            f"there is no run to resume in {str(folder)!r}: {CONFIG} is missing. Start one without --resume"
        )
    file = read_toml(folder / CONFIG)
    if steps is not None:
        file = file.with_steps(steps)
    config = file.train_config
    newest = checkpoint.latest(folder)
    if newest is None:
        said("the run has no checkpoint yet; it starts again from its first step")
        config = replace(config, device=str(available_device(config)))
        return Reopened(file, config, checkpoint.Progress(), None, _corpus(folder, file))
    kept = checkpoint.load(newest)
    _compare(file.model_config, kept, folder)
    if kept.progress.step >= config.steps:
        said(
            f"the run is finished: {kept.progress.step} steps are done, {config.steps} were asked for; nothing is "
            "changed. To train on, give --steps a larger number"
        )
        return Reopened(file, config, kept.progress, newest)
    corpus = _corpus(folder, file)
    if fingerprint(corpus.tokenizer) != kept.tokenizer_fingerprint:
        raise DataError(
            f"the tokens in {corpus.folder} were made by another tokenizer than this model was trained with: "
            f"fingerprint {kept.tokenizer_fingerprint[:12]} expected, {fingerprint(corpus.tokenizer)[:12]} found. "
            "The ids would mean other things; prepare the data with the tokenizer.json of the checkpoint"
        )
    config = _changes(config, kept, said)
    model, state = _moved(kept, config)
    return Reopened(file, config, kept.progress, newest, corpus, model, state)


def _corpus(folder: Path, file: RunFile) -> Corpus:
    if "tokens" not in file.data:
        raise ConfigError(f"{folder / CONFIG}, [data]: tokens is missing, the folder of the prepared tokens")
    return open_corpus(folder / file.data["tokens"])


def _compare(config: GPT2Config, kept: checkpoint.Checkpoint, folder: Path) -> None:
    other = kept.model.config
    differing = [
        f"{f.name} {getattr(config, f.name)!r} (the checkpoint has {getattr(other, f.name)!r})"
        for f in fields(GPT2Config)
        if getattr(config, f.name) != getattr(other, f.name)
    ]
    if differing:
        raise ConfigError(f"{folder / CONFIG} describes another model than {kept.folder}: {', '.join(differing)}")


def _changes(config: TrainConfig, kept: checkpoint.Checkpoint, said: Callable[[str], None]) -> TrainConfig:
    """Say what differs from the session before; the device is the only thing that gives way."""
    if config.dtype != kept.config.dtype:
        raise ConfigError(
            f"--dtype is {config.dtype}, but the run was trained in {kept.config.dtype}; a run keeps its dtype"
        )
    try:
        available_device(config)
    except ConfigError:
        said(f"this machine has no {config.device}: training goes on on the CPU, no longer bit for bit the same run")
        config = replace(config, device="cpu")
    changed = [
        f"{flag(f.name)} is now {getattr(config, f.name)} (was {getattr(kept.config, f.name)})"
        for f in fields(TrainConfig)
        if f.name != "device" and getattr(config, f.name) != getattr(kept.config, f.name)
    ]
    if changed:
        said(f"{', '.join(changed)}: the run goes on with that from step {kept.progress.step + 1}")
    now = versions()
    other = [
        f"{name} {now[name]} (was {kept.written_with.get(name)})"
        for name in ("torch", "numpy", "handgrad")
        if kept.written_with.get(name) != now[name]
    ]
    if other:
        said(f"the versions differ, so the run need not be bit for bit the same: {', '.join(other)}")
    return config


def _moved(kept: checkpoint.Checkpoint, config: TrainConfig) -> tuple[Model, State]:
    device = available_device(config)
    if device.type == "cpu":
        return kept.model, kept.state
    params = kept.model.params.like(kept.model.params.flat.to(device))
    state = State(kept.state.m.to(device), kept.state.v.to(device), kept.state.step)
    return replace(kept.model, params=params), state
