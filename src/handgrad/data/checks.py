"""Checks of ids and characters, and the words for what they find."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from handgrad.core.errors import DataError
from handgrad.core.errors import unknown as unknown_name

IdArray: TypeAlias = npt.NDArray[np.int64]
OnUnknown: TypeAlias = Literal["abort", "skip", "replace"]

MAX_VOCAB_SIZE = 2**32  # the widest token file holds uint32
_LISTED = 8
SURROGATES = re.compile("[\ud800-\udfff]")
CHOICES = "Choose what happens to unknown ones: skip (leave them out), replace (put a stand-in) or abort (stop here)."


def parse_ids(words: list[str], where: str = "", first: int = 0) -> IdArray:
    """Words that are whole numbers, as int64 ids; `where` and `first` place the message of the DataError."""
    ids = np.empty(len(words), np.int64)
    for i, word in enumerate(words):
        # isdigit alone also accepts digits of other scripts, and int() accepts signs and underscores.
        number = int(word) if word.isascii() and word.isdigit() and len(word) <= 20 else -1
        if not 0 <= number < MAX_VOCAB_SIZE:
            raise DataError(
                f"{where}{shown(word)} at position {first + i} is not a token id; "
                f"ids are whole numbers from 0 to {MAX_VOCAB_SIZE - 1}, separated by spaces."
            )
        ids[i] = number
    return ids


def in_range(ids: Iterable[int] | npt.NDArray[Any], vocab_size: int, first: int = 0) -> IdArray:
    """The ids as a 1-D int64 array; DataError naming the first id outside `[0, vocab_size)` and its position."""
    try:
        array = np.asarray(ids if hasattr(ids, "__len__") else list(ids))
    except (ValueError, OverflowError) as error:
        raise DataError(f"token ids have to be one list of whole numbers; {error}.") from None
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iuO":
        raise DataError(
            f"token ids have to be one list of whole numbers; found shape {array.shape} of type {array.dtype}."
        )
    if array.dtype.kind == "O" and not all(isinstance(i, int) for i in array.tolist()):
        raise DataError("token ids have to be one list of whole numbers; found something else among them.")
    bad = np.flatnonzero((array < 0) | (array >= vocab_size))
    if bad.size:
        at = int(bad[0])
        raise DataError(
            f"id {array[at]} at position {first + at} is outside the vocabulary: vocab_size is {vocab_size}, "
            f"ids go from 0 to {vocab_size - 1}. The ids belong to another tokenizer."
        )
    return array.astype(np.int64)


def unknown_characters(found: dict[str, int], why: str, where: str = "the text") -> DataError:
    """The DataError that lists unknown characters with their first positions, and the three choices."""
    listed = ", ".join(f"{character!r} at position {at}" for character, at in list(found.items())[:_LISTED])
    more = f", and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return DataError(f"{where} has characters that are {why}: {listed}, counted from 0{more}. {CHOICES}")


def writable(text: str, unknown: OnUnknown = "abort") -> str:
    """`text` as UTF-8 can write it. Only a lone surrogate is unknown then: DataError, or left out, or U+FFFD.

    >>> writable("a" + chr(0xD800), "replace") == "a" + chr(0xFFFD)
    True
    """
    check_choice(unknown)
    if unknown != "abort":
        return SURROGATES.sub("" if unknown == "skip" else "\ufffd", text)
    found: dict[str, int] = {}
    for match in SURROGATES.finditer(text):
        found.setdefault(match[0], match.start())
    if found:
        raise unknown_characters(found, "not characters that UTF-8 can write")
    return text


def check_choice(unknown: str) -> None:
    if unknown not in ("abort", "skip", "replace"):
        raise unknown_name("choice for unknown characters", str(unknown), ["abort", "skip", "replace"])


def code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32, copy=False)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
