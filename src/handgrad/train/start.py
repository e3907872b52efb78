"""What has to be right before the first step: the data, the folder, and the files of a run that goes on."""

from __future__ import annotations

import hashlib
import os
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
from handgrad.models.model import Model
from handgrad.models.store import CHECKPOINTS, PARAMS, STATE, ModelConfig
from handgrad.train import checkpoint
from handgrad.train.config import RunFile, TrainConfig, available_device, flag, read_toml, versions
from handgrad.train.metrics import METRICS
from handgrad.train.optimiser import State
from handgrad.train.schedule import lr_at

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


def parts_of(corpus: Corpus, config: ModelConfig, window: int = 0) -> Parts:
    """The corpus split in file order, if the model knows its ids and one window fits.

    A corpus too small to set a tenth aside is trained on whole, without validation. Raises DataError.
    """
    check_ids(corpus.tokens, config.vocabulary)
    training, validation = corpus.split(0.9)
    context = window or config.context
    if len(training) < context + 1 <= corpus.n_tokens:
        warning = (
            f"validation is off: of {corpus.n_tokens} tokens none can be set aside, because a window of context "
            f"{context} takes {context + 1}; all of them are trained on"
        )
        return Parts(corpus.tokens, None, (warning,))
    n_windows(len(training) if corpus.n_tokens > context else corpus.n_tokens, context)
    problem = validation_problem(len(validation), context)
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
    """ConfigError where the folder of a new run already holds one."""
    for name in (CONFIG, METRICS, CHECKPOINTS):
        if (folder / name).exists():
            raise ConfigError(
                f"{folder} already holds a run ({name} is there), and it is left as it is. "
                "Resume it with --resume, or choose another folder"
            )
    not_a_model(folder)


OTHERS = ("config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors")


def not_a_model(folder: Path) -> None:
    """ConfigError where a run would be written over a model alone, as `handgrad import` leaves it, or over a Hugging
    Face folder or an adapter."""
    for name in (STATE, PARAMS, *OTHERS):
        if (folder / name).exists():
            raise ConfigError(
                f"{folder} already holds a model ({name} is there), and it is left as it is. Choose another folder"
            )


def tokens_sha256(corpus: Corpus) -> str:
    """The SHA-256 of the tokens as they lie in memory: what a run is trained on, whatever files it came from."""
    digest = hashlib.sha256()
    for first in range(0, len(corpus.tokens), _CHUNK):
        digest.update(np.ascontiguousarray(corpus.tokens[first : first + _CHUNK]).data)
    return digest.hexdigest()


def data_table(corpus: Corpus, folder: Path, sha256: str) -> dict[str, Any]:
    """The table [data] of config.toml; tokens inside the run folder are named from there, so the folder can move."""
    try:
        description = read_json(corpus.folder / CORPUS, 16 << 20)
        sources = [str(source["name"]) for source in description["sources"]]
    except (FileError, LookupError, TypeError):
        sources = []  # a corpus made by hand; where it came from is not ours to know
    tokens, inside = corpus.folder.resolve(), folder.resolve()
    place = tokens.relative_to(inside) if tokens.is_relative_to(inside) else tokens
    return {"sources": sources, "tokenizer": corpus.tokenizer.kind, "tokens": place.as_posix(), "tokens_sha256": sha256}


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


def check_run(folder: Path) -> None:
    """FileError where there is no run to go on with."""
    if not os.path.isfile(folder / CONFIG):
        raise FileError(f"there is no run to resume in {str(folder)!r}: {CONFIG} is missing. {instead(folder)}")


def instead(folder: Path) -> str:
    """What to do where there is no run to resume, by what there is."""
    run = folder.parent.parent
    if folder.parent.name == CHECKPOINTS and (run / CONFIG).is_file():
        return f"It is a checkpoint of the run {run}; resume that"
    if (folder / STATE).exists():
        return (
            "It holds a model alone, as handgrad import writes it, without data, settings and moments: write with it "
            "(handgrad generate), or train it on from Python (handgrad.load)"
        )
    return "Start one without --resume"


def reopened(folder: Path, steps: int | None, said: Callable[[str], None], like: Model | None = None) -> Reopened:
    """Read a run's files and compare them with each other; `like` is the model that a checkpoint's numbers belong in,
    where they are not all of it. Raises FileError, ConfigError, DataError."""
    check_run(folder)
    file = written = read_toml(folder / CONFIG)
    if file.finetune and like is None and not (file.finetune.get("full") and checkpoint.latest(folder)):
        raise ConfigError(
            f"{folder} goes on from another model ({file.finetune.get('model')}); resume it with handgrad finetune "
            f"--out {folder} --resume"
        )
    if steps is not None:
        file = file.with_steps(steps)
    config = file.train_config
    newest = checkpoint.latest(folder)
    if newest is None:
        said("the run has no checkpoint yet; it starts again from its first step")
        config = replace(config, device=str(available_device(config)))
        corpus = _corpus(folder, file)
        _same_tokens(corpus, file.data.get("tokens_sha256"), folder / CONFIG)
        return Reopened(file, config, checkpoint.Progress(), None, corpus)
    kept = checkpoint.load(newest, like)
    _compare(file.model_config, kept, folder)
    if kept.progress.step >= config.steps:
        said(_nothing_to_do(kept.progress.step, steps, written.train_config.steps))
        return Reopened(file, config, kept.progress, newest)
    corpus = _corpus(folder, file)
    if fingerprint(corpus.tokenizer) != kept.tokenizer_fingerprint:
        raise DataError(
            f"the tokens in {corpus.folder} were made by another tokenizer than this model was trained with: "
            f"fingerprint {kept.tokenizer_fingerprint[:12]} expected, {fingerprint(corpus.tokenizer)[:12]} found. "
            "The ids would mean other things; prepare the data with the tokenizer.json of the checkpoint"
        )
    _same_tokens(corpus, kept.tokens_sha256, newest)
    _same_tokens(corpus, file.data.get("tokens_sha256"), folder / CONFIG)
    config = _changes(config, kept, said)
    model, state = _moved(kept, config)
    return Reopened(file, config, kept.progress, newest, corpus, model, state)


def _nothing_to_do(done: int, asked: int | None, configured: int) -> str:
    """Why a run with `done` steps does not go on. Raises ConfigError where fewer were asked for."""
    unfinished = done < configured
    if asked is not None and asked < done:
        more = f"; without it, the run goes on to its {configured} steps" if unfinished else ""
        raise ConfigError(
            f"--steps is {asked}, and {done} steps are done already, which cannot be taken back. "
            f"Give --steps a larger number than {done}{more}"
        )
    if unfinished:
        return (
            f"{done} steps are done, as many as --steps asks for, of the {configured} in {CONFIG}; nothing is changed. "
            "To train on, leave --steps out, or give a larger number"
        )
    return (
        f"the run is finished: {done} steps are done, {asked or configured} were asked for; nothing is changed. "
        "To train on, give --steps a larger number"
    )


def _corpus(folder: Path, file: RunFile) -> Corpus:
    if "tokens" not in file.data:
        raise ConfigError(f"{folder / CONFIG}, [data]: tokens is missing, the folder of the prepared tokens")
    return open_corpus(folder / file.data["tokens"])


def _same_tokens(corpus: Corpus, expected: str | None, said_by: Path) -> None:
    if expected is not None and (found := tokens_sha256(corpus)) != expected:
        raise DataError(
            f"the tokens in {corpus.folder} are not those that this run was trained on: {said_by} expects SHA-256 "
            f"{expected[:12] or 'of none'}, {found[:12]} found. Put the data back as they were, or start a new run"
        )


def _compare(config: ModelConfig, kept: checkpoint.Checkpoint, folder: Path) -> None:
    other = kept.model.config
    if type(config) is not type(other):
        kinds = (type(config).__name__, type(other).__name__)
        raise ConfigError(f"{folder / CONFIG} describes a {kinds[0]}, and {kept.folder} has a {kinds[1]}")
    differing = [
        f"{f.name} {getattr(config, f.name)!r} (the checkpoint has {getattr(other, f.name)!r})"
        for f in fields(config)
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
    if config.steps != kept.config.steps:
        said(_schedule(kept.config, config, kept.progress.step + 1))
    now = versions()
    other = [
        f"{name} {now[name]} (was {kept.written_with.get(name)})"
        for name in ("torch", "numpy", "handgrad")
        if kept.written_with.get(name) != now[name]
    ]
    if other:
        said(f"the versions differ, so the run need not be bit for bit the same: {', '.join(other)}")
    return config


def _schedule(before: TrainConfig, now: TrainConfig, step: int) -> str:
    """What another number of steps does to the learning rate, from the next step on."""
    kind = "longer" if now.steps > before.steps else "shorter"
    return (
        f"the learning rate follows the {kind} schedule: "
        f"{lr_at(step, before):.3g} -> {lr_at(step, now):.3g} at step {step}"
    )


def _moved(kept: checkpoint.Checkpoint, config: TrainConfig) -> tuple[Model, State]:
    device = available_device(config)
    if device.type == "cpu":
        return kept.model, kept.state
    state = State(kept.state.m.to(device), kept.state.v.to(device), kept.state.step)
    return kept.model.moved(device=device), state
