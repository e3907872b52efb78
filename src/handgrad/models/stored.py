"""Tensors in a file, and a model filled from them: everything is compared before anything is read, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from handgrad.core.errors import FileError
from handgrad.core.params import Layout
from handgrad.data.files import require_fetched, require_regular
from handgrad.models.model import Model
from handgrad.models.names import Piece, Shapes
from handgrad.models.store import ModelConfig

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: its shape and type as the file states them, and how its numbers are read."""

    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Tensor]


def layout_of(config: ModelConfig, n_tensors: int, where: object) -> Layout:
    """The model's layout, unless the file has fewer tensors than the model blocks: refused before it costs anything."""
    if config.n_layers > n_tensors:
        raise FileError(f"{where} does not fit its configuration: {config.n_layers} blocks, and {n_tensors} tensors")
    return Layout(config.layers().slots(), dict(config.ties()))


def owned(layout: Layout) -> Shapes:
    return {name: shape for name, (_, shape) in layout.places.items()}


def filled(
    config: ModelConfig,
    layout: Layout,
    pieces: Mapping[str, Piece],
    stored: Mapping[str, Stored],
    where: object,
    kinds: Collection[str] = tuple(FLOATS),
    dtype: torch.dtype | None = None,
) -> Model:
    """A model whose parameters are the pieces of `stored`, which has to hold exactly these.

    They are float32, or float64 where the file has it, unless `dtype` says otherwise. Raises FileError.
    """
    require_fit(pieces, stored, where, kinds)
    dtype = dtype or (torch.float64 if any(s.kind == "F64" for s in stored.values()) else torch.float32)
    try:
        params = layout.zeros(dtype)
    except (RuntimeError, MemoryError):
        need = layout.size * dtype.itemsize / 2**30
        raise FileError(f"there is not enough memory for {where}: its parameters take {need:,.1f} GiB") from None
    for name, piece in pieces.items():
        params[name] = piece.ours(stored[piece.theirs].read())
    return Model(config, config.layers(), params)


def require_fit(
    pieces: Mapping[str, Piece], stored: Mapping[str, Stored], where: object, kinds: Collection[str]
) -> None:
    """Raises FileError for the first thing in which the file and the model differ, with counts."""
    expected = {piece.theirs: piece.shape for piece in pieces.values()}
    if missing := [name for name in expected if name not in stored]:
        raise FileError(f"{where} does not fit its configuration: {some(missing)} expected, and missing")
    if extra := [name for name in stored if name not in expected]:
        raise FileError(f"{where} does not fit its configuration: {some(extra)} found, and no part of such a model")
    wrong = [name for name, shape in expected.items() if stored[name].shape != shape]
    if wrong:
        name = wrong[0]
        more = f" ({len(wrong)} tensors differ)" if len(wrong) > 1 else ""
        raise FileError(
            f"{where} does not fit its configuration: {name} should be {expected[name]}, found "
            f"{stored[name].shape}{more}"
        )
    for name in expected:
        if stored[name].kind not in kinds:
            raise FileError(
                f"{where}: {name} is stored as {stored[name].kind}, which is not read; known: {', '.join(kinds)}"
            )


def some(names: Collection[str]) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    first = ", ".join(short(name) for name in list(names)[:3])
    return first + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def short(value: object, quoted: bool = False) -> str:
    """A value from a file as one line shows it."""
    text = value if isinstance(value, str) and value.isprintable() and not quoted else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def start_of(path: Path, n: int) -> bytes:
    """The first bytes of a regular file. Raises FileError, also for a Git LFS pointer."""
    require_regular(path)
    try:
        with open(path, "rb") as file:
            start = file.read(max(n, 256))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    require_fetched(path, start)
    return start[:n]
