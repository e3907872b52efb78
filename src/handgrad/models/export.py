"""A model as a Hugging Face folder: config.json and model.safetensors under transformers' names, and its tokenizer.

The folder appears whole or not at all, and never over another one. Tensors are written one at a time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, FileError, HandgradError
from handgrad.core.params import Layout
from handgrad.data.control import control_of
from handgrad.data.exported import as_file, files_of
from handgrad.data.files import read_bytes
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.hf import CONFIG, WEIGHTS, Origin, stored_in
from handgrad.models.hf_config import table_of
from handgrad.models.model import Model
from handgrad.models.names import Piece, gpt2_pieces, llama_pieces
from handgrad.models.stored import FLOATS, owned
from handgrad.models.tensors import write_tensors

# What belongs to a tokenizer, and is taken along as it is; all of it is small.
BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
WORDS = {"tokenizer.json", "tokenizer.model", "vocab.json"}  # one of these is a tokenizer
MOST_BESIDE = 64 << 20  # bytes
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")}


@dataclass(frozen=True)
class Exported:
    """What was written: tensors, parameters, bytes of the weights, names of the files beside them, and why the model's
    tokenizer is not among these, where it is not."""

    folder: Path
    n_tensors: int
    n_parameters: int
    n_bytes: int
    beside: tuple[str, ...] = ()
    why_no_tokenizer: str = ""

    @property
    def has_tokenizer(self) -> bool:
        return not WORDS.isdisjoint(self.beside)


def export(
    model: Model, folder: str | Path, dtype: torch.dtype | None = None, beside: Mapping[str, bytes] | None = None
) -> Exported:
    """Write `model` as a new folder that transformers loads, in its own type of number or in `dtype`.

    `beside` are further files of the folder: name -> content; left out, those of the model's tokenizer, where
    transformers has one that does the same. Raises ConfigError where transformers has no such model, FileError where
    the folder holds something or the disk refuses.
    """
    target, dtype = Path(folder), dtype or model.params.flat.dtype
    require_plain(model)
    config = model.config
    if isinstance(config, GPT2Config) and not config.bias:
        config = replace(config, bias=True)  # offsets of zero are the same function, and theirs always has some
    require_new(target)
    beside, why = tokenizer_files(model) if beside is None else (beside, "")
    table = table_of(config, dtype, special_ids(model))
    names = owned(Layout(config.layers().slots(), dict(config.ties())))
    pieces = gpt2_pieces(config, names) if isinstance(config, GPT2Config) else llama_pieces(config, names)
    whole: dict[str, list[tuple[str, Piece]]] = {}
    for name, piece in pieces.items():
        whole.setdefault(piece.theirs, []).append((name, piece))
    shapes = {theirs: parts[0][1].shape for theirs, parts in whole.items()}

    def tensor(theirs: str) -> Tensor:
        parts = [piece.back(own(model, name, names[name])) for name, piece in whole[theirs]]
        return in_type(torch.cat(parts, -1) if len(parts) > 1 else parts[0], theirs, dtype)

    with new_folder(target) as unfinished:
        with open(unfinished / WEIGHTS, "xb") as file:
            n_bytes = write_tensors(file, shapes, dtype, tensor, {"format": "pt"})
            synced(file)
        files = {CONFIG: as_file(table), **beside}
        for name, content in files.items():
            with open(unfinished / name, "xb") as file:
                file.write(content)
                synced(file)
    return Exported(target, len(shapes), model.params.layout.count, n_bytes, tuple(beside), why)


def require_plain(model: Model) -> None:
    """ConfigError for a model with updates beside its numbers: written without them, it would be another function."""
    if model.frozen:
        raise ConfigError(
            "this model has low-rank updates beside its own numbers; merge them first (handgrad merge ADAPTER, or "
            "handgrad.adapt.merge)"
        )


def origin_of(model: Model) -> Origin | None:
    """The folder that the model comes from, unless it was given another tokenizer since."""
    origin = model.origin
    return origin if isinstance(origin, Origin) and model.tokenizer is origin.tokenizer else None


def special_ids(model: Model) -> dict[str, Any]:
    """Where texts begin and answers end, for config.json: as the folder that the model comes from has it, else what its
    tokenizer says, else null."""
    if (origin := origin_of(model)) is not None:
        return dict(origin.ids)
    control = control_of(model.tokenizer)
    return {"bos_token_id": next(iter(control.begin), None), "eos_token_id": list(control.end) or None}


def tokenizer_files(model: Model) -> tuple[dict[str, bytes], str]:
    """Files of the tokenizer: those of the folder that the model comes from, as they are, or what our tokenizer says;
    else why that cannot be."""
    if (origin := origin_of(model)) is not None:
        found = (origin.folder / name for name in BESIDE if origin.asked)
        return {path.name: read_bytes(path, MOST_BESIDE) for path in found if path.exists()}, ""
    if model.tokenizer is None:
        return {}, ""
    try:
        return files_of(model.tokenizer), ""
    except ConfigError as error:
        return {}, str(error)


def own(model: Model, name: str, shape: tuple[int, ...]) -> Tensor:
    return model.params[name] if name in model.params.views else torch.zeros(shape, dtype=model.params.flat.dtype)


def in_type(x: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    y = x.to(dtype)
    if not bool(y.isfinite().all()) and bool(x.isfinite().all()):
        raise ConfigError(f"{name} reaches {float(x.abs().max()):.3g}, more than {dtype} can hold; export in float32")
    return y


def stored_dtype(folder: Path) -> torch.dtype:
    """The type that all tensors of a Hugging Face folder have, else float32."""
    kinds = {tensor.kind for tensor in stored_in(folder).values()}
    return FLOATS.get(kinds.pop(), torch.float32) if len(kinds) == 1 else torch.float32


def require_new(target: Path) -> None:
    """Raises FileError where something lies there already."""
    try:
        if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
            raise FileError(f"{target} exists and is not an empty folder; nothing is written over it, name a new one")
    except HandgradError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {target}: {error.strerror or error}") from None


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A hidden folder that takes the name `target` when the block ends well, and is removed when it does not."""
    require_new(target)
    target = target.absolute()
    unfinished = target.with_name(f".unfinished-{target.name}-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir()
        yield unfinished
        if target.is_dir():
            target.rmdir()
        os.rename(unfinished, target)
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(unfinished)
        if isinstance(error, OSError) and not isinstance(error, HandgradError):
            raise FileError(f"cannot write {target}: {error.strerror or error}") from None
        raise


def synced(file) -> None:
    file.flush()
    os.fsync(file.fileno())
