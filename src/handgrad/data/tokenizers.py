"""Text to token ids and back: bytes, characters, numbers that are ids already, or the pieces of a trained vocabulary.

A tokenizer is a small frozen value. `encode` gives int64 ids in `[0, vocab_size)`; `decode` never fails on ids in
that range. `tokenizer.json` (format field `handgrad_tokenizer`) keeps it beside data and checkpoints, and its
`fingerprint` lets a checkpoint refuse the tokenizer of another model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from handgrad.core.errors import DataError, FileError
from handgrad.data.checks import (
    MAX_VOCAB_SIZE,
    SURROGATES,
    IdArray,
    OnUnknown,
    check_choice,
    code_points,
    in_range,
    parse_ids,
    shown,
    unknown_characters,
)
from handgrad.data.control import FIELDS as CONTROL_FIELDS
from handgrad.data.control import control_from
from handgrad.data.files import read_json, regular_file, replacing
from handgrad.data.library import Library
from handgrad.data.sentencepiece_style import SentencePiece
from handgrad.data.streaming import StreamDecoder

__all__ = ["Bytes", "Chars", "Ids", "Library", "SentencePiece", "StreamDecoder", "Tokenizer"]

FORMAT_KEY, FORMAT_VERSION = "handgrad_tokenizer", 1
MAX_FILE_BYTES = 64 << 20  # an alphabet of every character there is takes less, and so do 256,000 pieces
FIELDS: dict[str, set[str]] = {
    "bytes": set(),
    "chars": {"alphabet"},
    "ids": {"vocab_size"},
    "library": {"tokenizer", "asked", *CONTROL_FIELDS},
    "sentencepiece": {"pieces", "scores", "types", "prefix", *CONTROL_FIELDS},
}
_STAND_INS = ("\ufffd", "?", " ")


@dataclass(frozen=True)
class Bytes:
    """UTF-8 bytes as ids: 256 of them, every text can be encoded.

    >>> Bytes().encode("hé").tolist()
    [104, 195, 169]
    >>> Bytes().decode([104, 195])
    'h\ufffd'
    """

    kind: ClassVar[str] = "bytes"
    vocab_size: ClassVar[int] = 256

    def encode(self, text: str, unknown: OnUnknown = "abort") -> IdArray:
        """The bytes of `text` as int64 ids. Only a lone surrogate, which UTF-8 cannot write, is unknown: DataError."""
        check_choice(unknown)
        if unknown == "skip":
            text = SURROGATES.sub("", text)
        elif unknown == "replace":
            text = SURROGATES.sub("\ufffd", text)
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            found: dict[str, int] = {}
            for match in SURROGATES.finditer(text):
                found.setdefault(match[0], match.start())
            raise unknown_characters(found, "not characters that UTF-8 can write") from None
        return np.frombuffer(data, np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int] | npt.NDArray[Any]) -> str:
        """The text of the ids; bytes that are no UTF-8 show as U+FFFD. DataError for an id outside the vocabulary."""
        return bytes(in_range(ids, self.vocab_size).astype(np.uint8)).decode("utf-8", "replace")

    def piece(self, i: int) -> bytes:
        return bytes([i])

    def to_json(self) -> dict[str, Any]:
        """What `tokenizer.json` holds."""
        return {FORMAT_KEY: FORMAT_VERSION, "kind": self.kind}


@dataclass(frozen=True)
class Chars:
    """One id for every character of an alphabet, in the order of their code points.

    >>> Chars.of("banana").alphabet
    ('a', 'b', 'n')
    >>> Chars.of("banana").encode("nab").tolist()
    [2, 0, 1]
    """

    alphabet: tuple[str, ...]
    kind: ClassVar[str] = "chars"

    def __post_init__(self) -> None:
        if not isinstance(self.alphabet, tuple) or not self.alphabet:
            raise DataError("a character alphabet is a tuple of at least one character; found none.")
        for entry in self.alphabet:
            if not isinstance(entry, str) or len(entry) != 1 or SURROGATES.match(entry):
                raise DataError(f"alphabet entry {shown(entry)} is not a single character.")
        for before, after in zip(self.alphabet, self.alphabet[1:], strict=False):
            if before == after:
                raise DataError(f"the alphabet has {after!r} twice; every character needs exactly one id.")
            if before > after:
                raise DataError(f"the alphabet is not sorted: {before!r} comes before {after!r}; Chars.of sorts it.")

    @classmethod
    def of(cls, text: str) -> Chars:
        """The tokenizer of exactly the characters in `text`; DataError when there are none."""
        return cls(tuple(sorted(set(text))))

    @property
    def vocab_size(self) -> int:
        """How many characters there are."""
        return len(self.alphabet)

    @cached_property
    def _codes(self) -> npt.NDArray[np.uint32]:
        return code_points("".join(self.alphabet))

    def _look_up(self, text: str) -> tuple[npt.NDArray[np.uint32], IdArray, npt.NDArray[np.bool_]]:
        codes = code_points(text)
        ids = np.searchsorted(self._codes, codes).astype(np.int64)
        np.minimum(ids, self.vocab_size - 1, out=ids)
        return codes, ids, self._codes[ids] == codes

    def unknown(self, text: str) -> dict[str, int]:
        """Every distinct character of `text` that has no id, with its first position, in the order of the text.

        >>> Chars.of("ab").unknown("aZbZY")
        {'Z': 1, 'Y': 4}
        """
        codes, _, known = self._look_up(text)
        positions = np.flatnonzero(~known)
        _, first = np.unique(codes[positions], return_index=True)
        return {text[at]: at for at in positions[np.sort(first)].tolist()}

    def encode(self, text: str, unknown: OnUnknown = "abort") -> IdArray:
        """The ids of `text`, int64.

        A character outside the alphabet: "abort" raises DataError naming it and its position, "skip" leaves it out,
        "replace" puts the first of U+FFFD, '?' and ' ' that the alphabet has (DataError when it has none).
        """
        check_choice(unknown)
        _, ids, known = self._look_up(text)
        if known.all():
            return ids
        if unknown == "skip":
            return ids[known]
        if unknown == "replace":
            ids[~known] = self._stand_in()
            return ids
        raise self.refusal(self.unknown(text))

    def refusal(self, found: dict[str, int], where: str = "the text") -> DataError:
        """The DataError for what `unknown` found in `where`."""
        return unknown_characters(found, f"not in the tokenizer's alphabet of {self.vocab_size} characters", where)

    def _stand_in(self) -> int:
        for character in _STAND_INS:
            if character in self.alphabet:
                return self.alphabet.index(character)
        raise DataError(
            "unknown characters cannot be replaced: the alphabet has none of the stand-ins U+FFFD, '?' and ' '. "
            "Choose skip or abort."
        )

    def decode(self, ids: Iterable[int] | npt.NDArray[Any]) -> str:
        """The text of the ids. DataError for an id outside the vocabulary."""
        return "".join([self.alphabet[i] for i in in_range(ids, self.vocab_size).tolist()])

    def to_json(self) -> dict[str, Any]:
        """What `tokenizer.json` holds."""
        return {FORMAT_KEY: FORMAT_VERSION, "kind": self.kind, "alphabet": list(self.alphabet)}


@dataclass(frozen=True)
class Ids:
    """Data that are token ids already; their text form is whole numbers separated by white space.

    >>> Ids(10).encode("3 1 4").tolist()
    [3, 1, 4]
    >>> Ids(10).decode([3, 1, 4])
    '3 1 4'
    """

    vocab_size: int
    kind: ClassVar[str] = "ids"

    def __post_init__(self) -> None:
        size = self.vocab_size
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_VOCAB_SIZE:
            raise DataError(f"vocab_size is {shown(size)}; it has to be a whole number from 1 to {MAX_VOCAB_SIZE}.")

    def encode(self, text: str, unknown: OnUnknown = "abort") -> IdArray:
        """The numbers of `text`, int64. An id outside the vocabulary is unknown: DataError, or left out by "skip"."""
        check_choice(unknown)
        ids = parse_ids(text.split())
        if unknown == "skip":
            return ids[ids < self.vocab_size]
        if unknown == "replace" and (ids >= self.vocab_size).any():
            raise DataError("token ids have no stand-in, so unknown ones cannot be replaced. Choose skip or abort.")
        return in_range(ids, self.vocab_size)

    def decode(self, ids: Iterable[int] | npt.NDArray[Any]) -> str:
        """The ids as numbers with a space between. DataError for an id outside the vocabulary."""
        return " ".join(map(str, in_range(ids, self.vocab_size).tolist()))

    def to_json(self) -> dict[str, Any]:
        """What `tokenizer.json` holds."""
        return {FORMAT_KEY: FORMAT_VERSION, "kind": self.kind, "vocab_size": self.vocab_size}


Tokenizer: TypeAlias = Bytes | Chars | Ids | Library | SentencePiece


def fingerprint(tokenizer: Tokenizer) -> str:
    """SHA-256 (64 hex digits) of the tokenizer's canonical JSON: equal for equal tokenizers only.

    >>> fingerprint(Bytes())[:12], fingerprint(Chars.of("ab")) == fingerprint(Chars.of("ba"))
    ('a9b9d5dc4f99', True)
    """
    canonical = json.dumps(tokenizer.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def save_tokenizer(tokenizer: Tokenizer, path: str | Path) -> None:
    """Write `tokenizer.json`, whole or not at all. Raises FileError."""
    with replacing(Path(path)) as file:
        file.write(tokenizer_bytes(tokenizer))


def tokenizer_bytes(tokenizer: Tokenizer) -> bytes:
    """The bytes of the tokenizer's file."""
    return (json.dumps(tokenizer.to_json(), ensure_ascii=True) + "\n").encode("ascii")


def load_tokenizer(path: str | Path, *, own: bool = False) -> Tokenizer:
    """Read a `tokenizer.json` of handgrad or, unless `own`, one of the `tokenizers` library; nothing in it is trusted.

    Raises FileError for a file that is missing, too large, damaged, or of another format.
    """
    value = read_json(regular_file(path, "tokenizer file"), MAX_FILE_BYTES)
    if isinstance(value, dict) and FORMAT_KEY not in value and isinstance(value.get("model"), dict):
        if own:
            kind = shown(value["model"].get("type"))
            raise FileError(f"{path} is a Hugging Face tokenizer file (model type {kind}), not written by handgrad.")
        return _whole(path, lambda: Library(json.dumps(value, ensure_ascii=False)))
    if not isinstance(value, dict) or FORMAT_KEY not in value:
        raise FileError(
            f"{path} is JSON of some other kind; a handgrad tokenizer.json has the field '{FORMAT_KEY}', one of the "
            "tokenizers library the field 'model'."
        )
    if type(value[FORMAT_KEY]) is not int or value[FORMAT_KEY] != FORMAT_VERSION:
        raise FileError(
            f"{path} has tokenizer format {shown(value[FORMAT_KEY])}; this version reads {FORMAT_VERSION} only. "
            "Update handgrad, or prepare the data again."
        )
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise FileError(f"{path} has tokenizer kind {shown(kind)}; known: {', '.join(sorted(FIELDS))}.")
    expected = {FORMAT_KEY, "kind"} | FIELDS[kind]
    if set(value) != expected:
        odd = ", ".join(sorted(shown(name) for name in set(value) ^ expected)[:8])
        raise FileError(f"{path} is no {kind} tokenizer: missing or unexpected field {odd}.")
    return _whole(path, lambda: _from_json(kind, value))


def _from_json(kind: str, value: dict[str, Any]) -> Tokenizer:
    if kind == "chars":
        if not isinstance(value["alphabet"], list):
            raise DataError("the alphabet is not a list of characters.")
        return Chars(tuple(value["alphabet"]))
    if kind == "library":
        return Library(json.dumps(value["tokenizer"], ensure_ascii=False), control_from(value), value["asked"])
    if kind == "sentencepiece":
        lists = [value[name] for name in ("pieces", "scores", "types")]
        if not all(isinstance(entries, list) for entries in lists) or not isinstance(value["prefix"], bool):
            raise DataError("pieces, scores and types have to be lists, and prefix true or false.")
        return SentencePiece(*map(tuple, lists), value["prefix"], control_from(value))
    return Ids(value["vocab_size"]) if kind == "ids" else Bytes()


def _whole(path: str | Path, make: Callable[[], Tokenizer]) -> Tokenizer:
    try:
        return make()
    except DataError as error:
        raise FileError(f"{path} is damaged: {error}") from None
