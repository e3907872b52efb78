"""Sources that hold token ids already: `.npy` arrays, raw `.bin` files, and text of numbers.

A `.npy` is a 1-D array of integers; a `.bin` is raw little-endian uint16 without a header; any other file is text of
whole numbers with white space between. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handgrad.core.errors import DataError, FileError
from handgrad.data.checks import MAX_VOCAB_SIZE, IdArray, parse_ids
from handgrad.data.files import regular_file
from handgrad.data.sources import EMBEDDED, read_text

CHUNK_IDS = 1 << 20
_LONGEST_WORD = 64


@dataclass(frozen=True)
class IdScan:
    """What a first look at sources of ids found: how many, the largest, and where that one first stands."""

    n_tokens: int
    max_id: int
    source: str
    position: int


def holds_ids(source: str | Path) -> bool:
    """Whether the name says that the source holds ids: it ends in `.npy` or `.bin`.

    >>> holds_ids("train.bin"), holds_ids("book.txt")
    (True, False)
    """
    return source != EMBEDDED and Path(source).suffix.lower() in (".npy", ".bin")


def read_ids(source: str | Path, chunk: int = CHUNK_IDS) -> Iterator[IdArray]:
    """The ids of one source, int64, in pieces of at most `chunk` (text: of at most so many characters).

    Raises FileError for a missing or damaged file and DataError for what are no ids, with the position.
    """
    if not holds_ids(source):
        yield from _text_ids(source, chunk)
        return
    array = _stored_ids(regular_file(source, "token file"))
    for at in range(0, array.size, chunk):
        piece = array[at : at + chunk]
        bad = np.flatnonzero((piece < 0) | (piece >= MAX_VOCAB_SIZE))
        if bad.size:
            raise DataError(
                f"{source}: id {piece[bad[0]]} at position {at + int(bad[0])} is not a token id; "
                f"ids are whole numbers from 0 to {MAX_VOCAB_SIZE - 1}."
            )
        yield np.asarray(piece).astype(np.int64)


def scan_ids(sources: Iterable[str | Path]) -> IdScan:
    """Count the ids of all sources and find the first place of the largest; bounded memory."""
    n_tokens, max_id, where, position = 0, -1, "", 0
    for source in sources:
        in_source = 0
        for ids in read_ids(source):
            largest = int(ids.argmax())
            if ids[largest] > max_id:
                max_id, where, position = int(ids[largest]), str(source), in_source + largest
            in_source += ids.size
        n_tokens += in_source
    if n_tokens == 0:
        raise DataError("the data hold no token ids at all.")
    return IdScan(n_tokens, max_id, where, position)


def open_npy(path: Path) -> np.memmap[Any, np.dtype[Any]]:
    """A `.npy` file as a read-only memory map. Raises FileError for a damaged or truncated one."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy's header parser lets many kinds through; the file is at fault in all of them
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise FileError(f"{path} is not a whole .npy array: {reason}. Make the file again.") from None


def _stored_ids(path: Path) -> npt.NDArray[Any]:
    if path.suffix.lower() == ".npy":
        array = open_npy(path)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{path} holds an array of shape {array.shape} and type {array.dtype}; "
                "token ids are a 1-D array of integers."
            )
        if array.size == 0:
            raise DataError(f"{path} holds no token ids: its array is empty.")
        return array
    n_bytes = path.stat().st_size
    if n_bytes % 2:
        raise DataError(
            f"{path} has {n_bytes} bytes, an odd number; a .bin of token ids is raw uint16, two bytes each. "
            "The file is cut off or of another kind; a .npy array says its own type."
        )
    return np.memmap(path, "<u2", mode="r")


def _text_ids(source: str | Path, chunk: int) -> Iterator[IdArray]:
    rest, position, where = "", 0, f"{source}: "
    for text in read_text(source, chunk):
        text = rest + text
        words = text.split()
        rest = words.pop() if words and not text[-1].isspace() else ""
        if len(rest) > _LONGEST_WORD:
            words, rest = [*words, rest], ""
        if words:
            yield parse_ids(words, where, position)
            position += len(words)
    if rest:
        yield parse_ids([rest], where, position)
