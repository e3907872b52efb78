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

from handgrad.core.errors import DataError
from handgrad.data.checks import IdArray, OnUnknown, in_range, shown, unknown_characters, writable
from handgrad.data.control import NONE, Control
from handgrad.data.engine import call, growth, library, out_of_reach, special, stand_ins, steps, unprefixed

MAX_TOKENS = 1 << 22
SPACE = "\u2581"  # stands for a space in pieces
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Character of a byte-level piece -> byte. Bytes that print stand for themselves, the rest follow from U+0100 on.

    >>> [byte_alphabet()[c] for c in "aĠĊ"]
    [97, 32, 10]
    """
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}


def byte_piece(text: str) -> str:
    """`text` in the letters of the alphabet.

    >>> byte_piece("é ")
    'Ã©Ġ'
    """
    letters = {byte: c for c, byte in byte_alphabet().items()}
    return "".join(letters[byte] for byte in text.encode())


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
        self.growth  # noqa: B018  (so are steps that make a text much longer)
        self.made(False, False)
        if self.data["model"].get("type") in ("WordLevel", "WordPiece") and self.unk is None:
            name = shown(self.data["model"].get("unk_token"))
            raise DataError(f"its unknown token {name} is not in its vocabulary, so most texts could not be encoded.")
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
        kinds = [kind if isinstance(kind := part.get("type"), str) else shown(kind) for part in self._decoder]
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

    @property
    def _decoder(self) -> list[dict[str, Any]]:
        return steps(self.data.get("decoder"))

    @cached_property
    def growth(self) -> float:
        """How many times longer the normalizer may make a text. DataError beyond a bound."""
        return growth(self.data.get("normalizer"))

    @cached_property
    def prefix(self) -> bool:
        """Does a text get a space in front, which decoding takes away?"""
        return any(
            (part["type"] == "Strip" and part.get("start", 0) > 0)
            or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
            for part in self._decoder
        )

    @cached_property
    def _made(self) -> dict[tuple[bool, bool], Any]:
        return {}

    @cached_property
    def _reading(self) -> dict[str, Any]:
        """The data for text: no name of a control token can be found in it."""
        return out_of_reach(self.data, self._special)

    def made(self, control: bool, more: bool) -> Any:
        """The library's own object; `more` without a space in front of the text."""
        if (control, more) not in self._made:
            source = self.data if control else self._reading
            data = {**source, "truncation": None, "padding": None}
            if "dropout" in data["model"]:
                data["model"] = {**data["model"], "dropout": None}
            if more:
                data |= {name: unprefixed(data.get(name)) for name in ("normalizer", "pre_tokenizer")}
                if all(data[name] == source.get(name) for name in ("normalizer", "pre_tokenizer")):
                    self._made[control, more] = self.made(control, False)
                    return self._made[control, more]
            if not control:
                data["post_processor"] = None
            made = call(library().Tokenizer.from_str, call(json.dumps, data, ensure_ascii=False))
            made.encode_special_tokens = not control
            self._made[control, more] = made
        return self._made[control, more]

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Piece -> id, with control tokens."""
        found = call(self.made(False, False).get_vocab, with_added_tokens=True)
        names = {new: name for name, new in stand_ins(self._special).items()}
        return {names.get(piece, piece): i for piece, i in found.items()}

    @cached_property
    def vocab_size(self) -> int:
        """The largest id and one more."""
        return max(self.vocabulary.values(), default=-1) + 1

    @cached_property
    def _special(self) -> list[str]:
        added = self.data.get("added_tokens")
        return [name for token in (added if isinstance(added, list) else []) if (name := special(token))]

    @cached_property
    def names(self) -> Mapping[str, int]:
        """Text form -> id of the control tokens."""
        return {name: self.vocabulary[name] for name in self._special if name in self.vocabulary}

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
            return all(self.readable(character) for character in byte_alphabet())
        return bool(self.data["model"].get("byte_fallback")) and all(self.readable(f"<0x{b:02X}>") for b in range(256))

    def readable(self, piece: str) -> bool:
        """Can a text become this piece? Not where it is a control token."""
        return piece in self.vocabulary and piece not in self.names

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

    def encode(
        self,
        text: str,
        unknown: OnUnknown = "abort",
        *,
        control: bool = False,
        more: bool | str = False,
        mark: str = "",
    ) -> IdArray:
        """The ids of `text`, int64. Without `control` none of them is a control token's.

        `control`: names of control tokens in the text become these tokens, except where the character `mark`, which is
        left out, breaks them. `more`: the text goes on from another one, and gets no space in front; where that is
        given, by its last characters, the ids are those of the whole. DataError for characters without an id; "skip"
        leaves them out, "replace" puts the tokenizer's unknown token.
        """
        text = writable(text, unknown)
        if control:
            return self._with_control(text, unknown, mark)
        if self.unk is None and not self.covers:
            text = self.covered(text, unknown)
        found, first, before = self._read(text, more)
        read: list[int] = found.ids[first:] if first else found.ids
        ids = np.array(read, np.int64).reshape(-1)
        if self._no_text.isdisjoint(read):
            return ids
        bad = np.isin(ids, list(self._no_text))
        if unknown == "skip":
            return ids[~bad]
        if unknown == "replace" and self.unk is not None:
            return np.where(bad, self.unk, ids)
        missing: dict[str, int] = {}
        for i in np.flatnonzero(bad).tolist():
            start, end = (max(x - before, 0) for x in found.offsets[first + i])
            missing.setdefault(text[start : max(end, start + 1)][:1], start)
        raise unknown_characters(missing, "not in the tokenizer's vocabulary")

    @cached_property
    def _no_text(self) -> set[int]:
        """Ids that no text stands for: control tokens and the unknown one."""
        return {*self.names.values(), *([] if self.unk is None else [self.unk])}

    def _read(self, text: str, more: bool | str) -> tuple[Any, int, int]:
        """What the library makes of a text, which of its ids is the first of `text`, and where the text begins."""
        if isinstance(more, str) and more:
            found = call(self.made(False, False).encode, more + text, add_special_tokens=False)
            n, end = 0, 0
            while n < len(found) and (place := found.token_to_chars(n)) and place[0] < len(more):
                n, end = n + 1, place[1]
            if end <= len(more):
                return found, n, len(more)
        return call(self.made(False, bool(more)).encode, text, add_special_tokens=False), 0, 0

    def _with_control(self, text: str, unknown: OnUnknown, mark: str) -> IdArray:
        """The library's ids, except between control tokens where something is marked, or would not be text."""
        whole = self.unk is not None or self.covers
        found = call(self.made(True, False).encode, text, add_special_tokens=False)
        names, no_text = {i: name for name, i in self.names.items()}, self._no_text
        ids: list[int] = []
        run: list[int] = []
        begin = 0

        def close(end: int) -> None:
            part = text[begin:end]
            if whole and no_text.isdisjoint(run) and not (mark and mark in part):
                ids.extend(run)
            else:
                more = begin > 0 and self._first_only
                ids.extend(self.encode(part.replace(mark, "") if mark else part, unknown, more=more).tolist())

        for i, (start, end) in zip(found.ids, found.offsets, strict=True):
            typed = bool(mark) and text[end : end + 1] == mark
            if i in names and text[start:end].strip() == names[i].strip() and not typed:
                close(start)
                ids.append(i)
                begin = end
                run.clear()
            else:
                run.append(i)
        close(len(text))
        return np.array(ids, np.int64).reshape(-1)

    @cached_property
    def _first_only(self) -> bool:
        """Does only the beginning of a text get a space in front, not what follows a control token?"""
        return any(part.get("prepend_scheme") == "first" for part in steps(self.data.get("pre_tokenizer")))

    def covered(self, text: str, unknown: OnUnknown) -> str:
        """`text` without characters whose bytes have no piece, which the library would drop without a word."""
        known = {byte for c, byte in byte_alphabet().items() if self.readable(c)}
        missing = {c: text.index(c) for c in set(text) if not known.issuperset(c.encode())}
        if self.data.get("pre_tokenizer") == ONE_BY_ONE:
            missing = {c: at for c, at in missing.items() if byte_piece(c) not in self.vocabulary}
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


GPT2_SPLIT: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
EACH = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
# Every character is a word of its own.
ONE_BY_ONE: dict[str, Any] = {"type": "Sequence", "pretokenizers": [EACH, {**GPT2_SPLIT, "use_regex": False}]}


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
