"""Tokenizers in the format of the `tokenizers` library, which does the work: byte-level pieces and pieces with spaces.

The text of a control token ("<|endoftext|>") that somebody typed is plain text, unless `control=True` asks for the
token. Decoding is our own, from the bytes of each piece, so that a text that arrives token by token is the same as one
decoded at once. Control tokens show as nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from handgrad.core.errors import ConfigError, DataError
from handgrad.data.checks import IdArray, OnUnknown, in_range, shown, unknown_characters, writable
from handgrad.data.control import NONE, Control

MAX_TOKENS = 1 << 22
SPACE = "\u2581"  # stands for a space in pieces
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
EXTRA = (
    "this tokenizer needs the library 'tokenizers', which is not installed: pip install 'handgrad[tokenizers]', "
    "or use bytes or chars"
)


def library() -> Any:
    """The module `tokenizers`. Raises ConfigError where it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(EXTRA) from None
    return tokenizers


def byte_alphabet() -> dict[str, int]:
    """Character of a byte-level piece -> byte. Bytes that print stand for themselves, the rest follow from U+0100 on.

    >>> [byte_alphabet()[c] for c in "aĠĊ"]
    [97, 32, 10]
    """
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}


@dataclass(frozen=True)
class Library:
    """A `tokenizer.json` of the library, as canonical text, and what its model says besides.

    asked   the N of bpe:N, where it was trained here

    >>> tokenizer = Library(byte_level({c: i for i, c in enumerate([*byte_alphabet(), "th", "<end>"])}, ["t h"],
    ...                                {"<end>": True}))
    >>> tokenizer.encode("the").tolist() == [256, tokenizer.vocabulary["e"]], tokenizer.encode("<end>").size
    (True, 5)
    """

    text: str = field(repr=False)
    control: Control = NONE
    asked: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.data.get("model"), dict):
            raise DataError("it is no tokenizer of the tokenizers library: the field 'model' is missing.")
        self.style  # noqa: B018  (unknown decoders are refused at once)
        if type(self.asked) is not int or self.asked < 0:
            raise DataError(f"asked is {shown(self.asked)}; it has to be a whole number of at least 0.")
        self.made(False, False)
        if self.vocab_size > MAX_TOKENS:
            raise DataError(f"it has a token of id {self.vocab_size - 1}; ids up to {MAX_TOKENS - 1} are read.")
        self.control.checked(self.vocab_size)
        if self.unk is None and self.style == "spaces" and not self.covers:
            raise DataError(
                "this tokenizer has neither byte pieces nor an unknown token, so it would leave characters out without "
                "a word."
            )

    @property
    def kind(self) -> str:
        return f"bpe:{self.asked}" if self.asked else "library"

    @cached_property
    def data(self) -> dict[str, Any]:
        return self.parsed(self.text)

    @staticmethod
    def parsed(text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"it is not JSON: {error}.") from None
        if not isinstance(value, dict):
            raise DataError("it is no tokenizer of the tokenizers library: an object was expected.")
        return value

    @cached_property
    def style(self) -> str:
        """ "bytes" (byte-level pieces) or "spaces" (▁ for a space), from the decoder. DataError for other decoders."""
        kinds = [part.get("type") for part in steps(self.data.get("decoder"))]
        if kinds == ["ByteLevel"]:
            return "bytes"
        if kinds == ["Metaspace"] or (
            kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and "Replace" in kinds
        ):
            return "spaces"
        raise DataError(
            f"its decoder is {shown(kinds)}; byte-level pieces (ByteLevel) and pieces with spaces (Metaspace, or "
            "Replace, ByteFallback, Fuse and Strip) are known."
        )

    @cached_property
    def prefix(self) -> bool:
        """Does a text get a space in front, which decoding takes away?"""
        return any(
            (part["type"] == "Strip" and part.get("start", 0) > 0)
            or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
            for part in steps(self.data.get("decoder"))
        )

    @cached_property
    def _made(self) -> dict[tuple[bool, bool], Any]:
        return {}

    def made(self, control: bool, more: bool) -> Any:
        """The library's own object; `more` without a space in front of the text."""
        key = (control, more and self.prefix)
        if key not in self._made:
            data = {**self.data, "truncation": None, "padding": None}
            data["model"] = {**data["model"], "dropout": None} if "dropout" in data["model"] else data["model"]
            if key[1]:
                data["normalizer"], data["pre_tokenizer"] = (
                    unprefixed(data.get(name)) for name in ("normalizer", "pre_tokenizer")
                )
            module = library()
            try:
                made = module.Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
            except (KeyboardInterrupt, SystemExit, MemoryError):
                raise
            except BaseException as error:  # a panic of the library derives from BaseException
                raise DataError(f"the tokenizers library refuses it: {str(error)[:200]}.") from None
            made.encode_special_tokens = not control
            self._made[key] = made
        return self._made[key]

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Piece -> id, with control tokens."""
        found: dict[str, int] = self.made(False, False).get_vocab(with_added_tokens=True)
        return found

    @cached_property
    def vocab_size(self) -> int:
        """The largest id and one more."""
        return max(self.vocabulary.values(), default=-1) + 1

    @cached_property
    def names(self) -> Mapping[str, int]:
        """Text form -> id of the control tokens."""
        added = [token for token in self.data.get("added_tokens") or [] if isinstance(token, dict)]
        return {token["content"]: token["id"] for token in added if token.get("special")}

    @cached_property
    def unk(self) -> int | None:
        """The id for what is unknown."""
        model = self.data["model"]
        if isinstance(model.get("unk_id"), int):
            return int(model["unk_id"])
        return self.vocabulary.get(model.get("unk_token") or "")

    @cached_property
    def covers(self) -> bool:
        """Does every byte have a piece?"""
        if self.style == "bytes":
            return all(character in self.vocabulary for character in byte_alphabet())
        return bool(self.data["model"].get("byte_fallback")) and all(
            f"<0x{b:02X}>" in self.vocabulary for b in range(256)
        )

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each id; nothing for control tokens and for ids without a piece."""
        alphabet, fallback = byte_alphabet(), self.data["model"].get("byte_fallback")
        hidden, pieces = set(self.names.values()), [b""] * self.vocab_size
        for piece, i in self.vocabulary.items():
            if i in hidden:
                continue
            if self.style == "bytes":
                known = all(character in alphabet for character in piece)
                pieces[i] = bytes([alphabet[c] for c in piece]) if known else piece.encode("utf-8", "replace")
            elif fallback and (match := BYTE.fullmatch(piece)):
                pieces[i] = bytes([int(match[1], 16)])
            else:
                pieces[i] = piece.replace(SPACE, " ").encode("utf-8", "replace")
        return pieces

    def piece(self, i: int) -> bytes:
        return self.pieces[i]

    def encode(self, text: str, unknown: OnUnknown = "abort", *, control: bool = False, more: bool = False) -> IdArray:
        """The ids of `text`, int64.

        `control`: names of control tokens in the text become these tokens. `more`: the text goes on from another one,
        and gets no space in front. DataError for characters without an id; "skip" leaves them out, "replace" puts the
        tokenizer's unknown token.
        """
        text = writable(text, unknown)
        if self.unk is None and not self.covers:
            text = self.covered(text, unknown)
        found = self.made(control, more).encode(text, add_special_tokens=False)
        ids = np.array(found.ids, np.int64).reshape(-1)
        if self.unk is None or not (bad := ids == self.unk).any() or unknown == "replace":
            return ids
        if unknown == "skip":
            return ids[~bad]
        missing: dict[str, int] = {}
        for i in np.flatnonzero(bad).tolist():
            start, end = found.offsets[i]
            missing.setdefault(text[start : max(end, start + 1)][:1], start)
        raise unknown_characters(missing, "not in the tokenizer's vocabulary")

    def covered(self, text: str, unknown: OnUnknown) -> str:
        """`text` without characters whose bytes have no piece, which the library would drop without a word."""
        known = {byte for c, byte in byte_alphabet().items() if c in self.vocabulary}
        missing = {c: text.index(c) for c in set(text) if not known.issuperset(c.encode())}
        if missing and unknown != "skip":
            raise unknown_characters(
                dict(sorted(missing.items(), key=lambda item: item[1])), "not in the tokenizer's vocabulary"
            )
        return "".join(c for c in text if c not in missing) if missing else text

    def decode(self, ids: Iterable[int] | npt.NDArray[Any]) -> str:
        """The text of the ids; bytes that are no UTF-8 show as U+FFFD. DataError for an id outside the vocabulary."""
        pieces = self.pieces
        data = b"".join([pieces[i] for i in in_range(ids, self.vocab_size).tolist()])
        return (data.removeprefix(b" ") if self.prefix else data).decode("utf-8", "replace")

    def to_json(self) -> dict[str, Any]:
        """What the `tokenizer.json` of handgrad holds."""
        return {
            "handgrad_tokenizer": 1,
            "kind": "library",
            "tokenizer": self.data,
            "asked": self.asked,
            **self.control.to_json(),
        }


def steps(part: Any) -> list[dict[str, Any]]:
    """The parts of a sequence, or the part itself."""
    if not isinstance(part, dict):
        return []
    if part.get("type") != "Sequence":
        return [part]
    inner = next((part[key] for key in ("decoders", "normalizers", "pretokenizers") if key in part), [])
    return [step for step in inner if isinstance(step, dict)] if isinstance(inner, list) else []


def unprefixed(part: Any) -> Any:
    """The same step of the library without what puts a space in front of the text."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "Sequence":
        key = next((key for key in ("normalizers", "pretokenizers") if key in part), "normalizers")
        inner = [step for step in map(unprefixed, part.get(key, [])) if step is not None]
        return {**part, key: inner}
    if kind == "Prepend":
        return None
    if kind == "Metaspace":
        return {name: value for name, value in part.items() if name != "add_prefix_space"} | {"prepend_scheme": "never"}
    return part


GPT2_SPLIT: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def byte_level(
    vocabulary: Mapping[str, int],
    merges: Iterable[str],
    added: Mapping[str, bool],
    split: Mapping[str, Any] = GPT2_SPLIT,
    normalizer: Mapping[str, Any] | None = None,
    whole_first: bool = False,
) -> str:
    """The library's text for byte-level pieces and merges ("a b", the earliest first).

    added         names of the vocabulary that are tokens of their own -> is it a control token?
    split         how a text is cut into words before merging
    whole_first   a word that is a piece is not cut at all
    """
    pairs = []
    for at, merge in enumerate(merges):
        parts = merge.split(" ")
        if len(parts) != 2 or any(part not in vocabulary for part in (*parts, "".join(parts))):
            raise DataError(f"merge {at} is {shown(merge)}; expected two pieces that join to a third one.")
        pairs.append(parts)
    of_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[name], "content": name, **plain, "special": special}
            for name, special in sorted(added.items(), key=lambda item: vocabulary[item[0]])
        ],
        "normalizer": normalizer,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": of_bytes,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": whole_first,
            "vocab": dict(vocabulary),
            "merges": pairs,
        },
    }
    return json.dumps(data, ensure_ascii=False)
