"""Checkpoints: one consistent set of files that appears whole, or not at all.

Everything is written and synced in a hidden folder beside the others, which then takes its name in one rename. A crash
at any moment leaves the checkpoints before it as they were. What lies in a folder, and how the model in it is read,
is in `models/store.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from handgrad.core.errors import FileError, HandgradError, NumericError
from handgrad.core.params import Buffer
from handgrad.data.tokenizers import Tokenizer, fingerprint, tokenizer_bytes
from handgrad.models.load import model_from
from handgrad.models.model import Model
from handgrad.models.store import (
    ADAPTER,
    CHECKPOINTS,
    DTYPES,
    FORMAT_KEY,
    FORMAT_VERSION,
    OPTIMISER,
    PARAMS,
    STATE,
    TOKENIZER,
    checked_fields,
    described,
    expected_shapes,
    latest,
    metadata_of,
    read_state,
    read_tensors,
    steps_of,
)
from handgrad.train.config import TrainConfig, versions
from handgrad.train.optimiser import State

__all__ = ["Checkpoint", "Progress", "clean", "latest", "load", "name_of", "save"]

_HIDDEN = ".unfinished-"
DTYPE_NAMES = {dtype: name for name, (dtype, _) in DTYPES.items()}


@dataclass(frozen=True)
class Progress:
    """How far a run has come: optimiser steps done, targets learned from, seconds spent over all its sessions.

    `val_step` is the step after which `val_loss_nats` was measured.
    """

    step: int = 0
    loss_nats: float | None = None
    val_loss_nats: float | None = None
    best_val_loss_nats: float | None = None
    best_step: int | None = None
    elapsed_s: float = 0.0
    tokens_seen: int = 0
    val_step: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run continues from. `written_with` are the versions that wrote it."""

    folder: Path
    model: Model
    state: State
    progress: Progress
    config: TrainConfig
    tokenizer_fingerprint: str
    tokens_sha256: str
    written_with: Mapping[str, str]


def save(
    run_folder: str | Path,
    model: Model,
    state: State,
    progress: Progress,
    config: TrainConfig,
    tokenizer: Tokenizer,
    keep: int = 2,
    tokens_sha256: str = "",
) -> Path:
    """Write `checkpoints/step_<step>`, then remove all but the newest `keep`. The new folder is returned.

    `tokens_sha256` is of the tokens that the run is trained on: it goes on with no others.

    Raises FileError where the disk refuses, NumericError where a parameter is not finite; both leave every checkpoint
    from before as it was.
    """
    if not bool(model.params.flat.isfinite().all()):
        name = next(name for name, p in model.params.items() if not bool(p.isfinite().all()))
        raise NumericError(f"the checkpoint of step {progress.step} is not written: {name} is no longer finite")
    content = {
        FORMAT_KEY: FORMAT_VERSION,
        **asdict(progress),
        "optimiser_step": state.step,
        "seed": config.seed,
        "dtype": DTYPE_NAMES[model.params.flat.dtype],
        "tokenizer_fingerprint": fingerprint(tokenizer),
        "tokens_sha256": tokens_sha256,
        "model": described(model.config),
        "train": asdict(config),
        "versions": versions(),
    }
    if model.frozen:
        content[ADAPTER] = True
    metadata = metadata_of(content)
    folder = Path(run_folder) / CHECKPOINTS
    target = folder / name_of(progress.step)
    with _explained(target, latest(run_folder)):
        folder.mkdir(parents=True, exist_ok=True)
        with _hidden(folder, target.name) as unfinished:
            _write_tensors(unfinished / PARAMS, dict(model.params), metadata)
            _write_tensors(unfinished / OPTIMISER, _moments(model.params, state), metadata)
            _write(unfinished / TOKENIZER, tokenizer_bytes(tokenizer))
            _write(unfinished / STATE, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
            sync(unfinished)
            if target.exists():
                _retire(target)
            os.rename(unfinished, target)
            sync(folder)
    for _, old in sorted(steps_of(run_folder).items())[:-keep]:
        with suppress(OSError):
            _retire(old)
    return target


def load(folder: str | Path, like: Model | None = None) -> Checkpoint:
    """Read one checkpoint folder, every file of it checked against the others before anything is used. `like` is the
    model whose parameters it holds, where it holds those of an adapter alone.

    Raises FileError naming what was expected and what was found.
    """
    folder = Path(folder)
    content = read_state(folder)
    model = model_from(folder, content, like)
    try:
        config = TrainConfig(**checked_fields(TrainConfig, content["train"], "train"))
    except HandgradError as error:
        raise FileError(f"{folder / STATE} is damaged: {error}") from None
    moments = "m" if config.optimiser == "sgd" else "mv"
    expected = {f"{moment}.{name}": s for name, s in expected_shapes(model.params.layout).items() for moment in moments}
    tensors = read_tensors(folder / OPTIMISER, expected, content["dtype"], metadata_of(content))
    state = State.zeros(model.params.flat, config.optimiser)
    state.step = content["optimiser_step"]
    for name, moment in _moments(model.params, state).items():
        moment.copy_(_sound(folder / OPTIMISER, name, tensors[name]))
    progress = Progress(**{name: content[name] for name in Progress.__dataclass_fields__})
    return Checkpoint(
        folder,
        model,
        state,
        progress,
        config,
        content["tokenizer_fingerprint"],
        content["tokens_sha256"],
        dict(content["versions"]),
    )


def name_of(step: int) -> str:
    """The folder's name of a step's checkpoint.

    >>> name_of(500)
    'step_000500'
    """
    return f"step_{step:06d}"


def clean(run_folder: str | Path) -> None:
    """Remove what killed runs left half written or half removed; complete checkpoints are not touched."""
    for left_over in (Path(run_folder) / CHECKPOINTS).glob(f"{_HIDDEN}*"):
        shutil.rmtree(left_over, ignore_errors=True)


def sync(path: Path) -> None:
    """Make a file's or a folder's content durable; a system that cannot open folders relies on its rename alone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _moments(params: Buffer, state: State) -> dict[str, torch.Tensor]:
    there = {"m": state.m, "v": state.v} if state.v.numel() else {"m": state.m}
    return {f"{key}.{name}": x for key, flat in there.items() for name, x in params.like(flat).items()}


def _sound(path: Path, name: str, moment: torch.Tensor) -> torch.Tensor:
    if not bool(moment.isfinite().all()):
        raise FileError(f"{path} is damaged: {name} has a number that is not finite; resume from another checkpoint")
    if name.startswith("v.") and bool((moment < 0).any()):
        raise FileError(
            f"{path} is damaged: {name} has {float(moment.min()):g} in it, and a mean of squares is never below 0; "
            "resume from another checkpoint"
        )
    return moment


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    save_file({name: x.cpu() for name, x in tensors.items()}, path, metadata=dict(metadata))
    sync(path)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)


@contextmanager
def _hidden(folder: Path, name: str) -> Iterator[Path]:
    """A fresh hidden folder, gone afterwards unless it was renamed."""
    unfinished = folder / f"{_HIDDEN}{name}-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _retire(checkpoint: Path) -> None:
    """Remove a checkpoint; hidden first, so that none is ever seen half removed."""
    hidden = checkpoint.with_name(f"{_HIDDEN}old-{checkpoint.name}-{os.getpid()}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(checkpoint, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def _explained(target: Path, before: Path | None) -> Iterator[None]:
    """Errors of the disk, said plainly, and what can still be relied on."""
    try:
        yield
    except HandgradError:
        raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        kept = (
            f"The checkpoint {before} is complete and unchanged"
            if before
            else "No earlier checkpoint was there to lose"
        )
        raise FileError(
            f"cannot write the checkpoint {target}: {reason}. {kept}; free some space or check permissions, then resume"
        ) from None
