"""A model as a Hugging Face folder: config.json and model.safetensors under transformers' names, and its tokenizer.

The folder appears whole or not at all, and never over another one. Tensors are written one at a time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, FileError, HandgradError
from handgrad.core.params import Layout
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.hf import CONFIG, WEIGHTS, stored_in
from handgrad.models.hf_config import table_of
from handgrad.models.model import Model
from handgrad.models.names import Piece, gpt2_pieces, llama_pieces
from handgrad.models.stored import FLOATS, owned
from handgrad.models.tensors import write_tensors

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16")}


@dataclass(frozen=True)
class Exported:
    """What was written: tensors, parameters, bytes of the weights."""

    folder: Path
    n_tensors: int
    n_parameters: int
    n_bytes: int


def export(
    model: Model, folder: str | Path, dtype: torch.dtype | None = None, beside: Mapping[str, bytes] | None = None
) -> Exported:
    """Write `model` as a new folder that transformers loads, in its own type of number or in `dtype`.

    `beside` are further files of the folder, such as the tokenizer's: name -> content. Raises ConfigError where
    transformers has no such model, FileError where the folder holds something or the disk refuses.
    """
    target, dtype = Path(folder), dtype or model.params.flat.dtype
    config = model.config
    if isinstance(config, GPT2Config) and not config.bias:
        config = replace(config, bias=True)  # offsets of zero are the same function, and theirs always has some
    table = table_of(config, dtype)
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
        files = {CONFIG: (json.dumps(table, indent=2) + "\n").encode(), **(beside or {})}
        for name, content in files.items():
            with open(unfinished / name, "xb") as file:
                file.write(content)
                synced(file)
    return Exported(target, len(shapes), model.params.layout.count, n_bytes)


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
