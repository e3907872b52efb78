"""Pieces with scores, as SentencePiece, llama2.c and GGUF have them: neighbours are joined, the best score first.

A text is cut into characters; a character without a piece becomes its UTF-8 bytes. Then, again and again, of all
neighbouring pairs whose join is a piece, the one with the highest score is joined, the leftmost of equals. A space
stands for itself in pieces here (files write ▁), and a text gets one in front, which decoding takes away.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from handgrad.core.errors import DataError
from handgrad.data.checks import IdArray, OnUnknown, in_range, unknown_characters, writable
from handgrad.data.control import NONE, Control, cut_at
from handgrad.data.library import BYTE

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTES = range(1, 7)  # the numbers of GGUF
MEMORY = 1 << 16  # words whose ids are kept


@dataclass(frozen=True)
class SentencePiece:
    """pieces, scores and types of tokens 0, 1, 2 … ; `prefix`: does a text get a space in front?

    >>> tokenizer = SentencePiece((" ", "a", "b", "ab", " a"), (-3.0, -3.0, -3.0, -1.0, -2.0), (1,) * 5)
    >>> tokenizer.encode("ab").tolist(), tokenizer.decode([0, 3])
    ([0, 3], 'ab')
    """

    tokens: tuple[str, ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False)
    types: tuple[int, ...] = field(repr=False)
    prefix: bool = True
    control: Control = NONE
    kind: ClassVar[str] = "sentencepiece"

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not n or len(self.scores) != n or len(self.types) != n:
            raise DataError(f"it has {n} pieces, {len(self.scores)} scores and {len(self.types)} types; one each.")
        for i, (piece, score, kind) in enumerate(zip(self.tokens, self.scores, self.types, strict=True)):
            if not isinstance(piece, str) or not isinstance(score, float) or not isfinite(score):
                raise DataError(f"piece {i} is {piece!r} with score {score!r}; expected a text and a finite number.")
            if type(kind) is not int or not NORMAL <= kind <= BYTES:
                raise DataError(f"piece {i} has type {kind!r}; types go from {NORMAL} to {BYTES}.")
            if kind == BYTES and not BYTE.fullmatch(piece):
                raise DataError(f"piece {i} is {piece!r}, said to be a byte; a byte is written <0xE2>.")
        self.control.checked(n)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    def of_type(self, *types: int) -> dict[str, int]:
        """Piece -> id, the first id of equal pieces."""
        found: dict[str, int] = {}
        for i, (piece, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind in types and piece:
                found.setdefault(piece, i)
        return found

    @cached_property
    def ids(self) -> dict[str, int]:
        """What text can become."""
        return self.of_type(NORMAL, USER)

    @cached_property
    def user(self) -> dict[str, int]:
        return self.of_type(USER)

    @cached_property
    def names(self) -> Mapping[str, int]:
        """Text form -> id of the control tokens."""
        return self.of_type(CONTROL)

    @cached_property
    def byte_ids(self) -> dict[int, int]:
        """Byte -> id; empty unless every byte has one."""
        found = {int(piece[3:5], 16): i for piece, i in self.of_type(BYTES).items()}
        return found if len(found) == 256 else {}

    @cached_property
    def unk(self) -> int | None:
        return next(iter(self.of_type(UNKNOWN).values()), None)

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each id; nothing for control tokens, U+FFFD for what is unknown."""

        def shown(piece: str, kind: int) -> bytes:
            if kind == BYTES:
                return bytes([int(piece[3:5], 16)])
            return (
                b"" if kind == CONTROL else "\ufffd".encode() if kind == UNKNOWN else piece.encode("utf-8", "replace")
            )

        return [shown(piece, kind) for piece, kind in zip(self.tokens, self.types, strict=True)]

    def piece(self, i: int) -> bytes:
        return self.pieces[i]

    @cached_property
    def words_apart(self) -> bool:
        """No piece reaches over the beginning of a word, so that words can be merged one by one."""
        return not any(re.search(r"[^ ] ", piece) for piece in self.ids)

    @cached_property
    def _known_words(self) -> dict[str, list[str]]:
        return {}

    def encode(
        self,
        text: str,
        unknown: OnUnknown = "abort",
        *,
        control: bool = False,
        more: bool | str = False,
        mark: str = "",
    ) -> IdArray:
        """The ids of `text`, int64; the options are those of `Library.encode`.

        With `control`, the text after each control token gets a space in front, too.
        """
        text = writable(text, unknown)
        ids: list[int] = []
        missing: dict[str, int] = {}
        at, fresh = 0, not more
        for piece, i in cut_at(self.names if control else {}, text):
            if i is not None:
                ids.append(i)
            else:
                plain = piece.replace(mark, "") if mark else piece
                self.plain((" " if self.prefix and fresh else "") + plain, unknown, ids, missing, at)
            at, fresh = at + len(piece), i is not None
        if missing:
            raise unknown_characters(missing, "not in the tokenizer's vocabulary")
        return np.array(ids, np.int64).reshape(-1)

    def plain(self, text: str, unknown: OnUnknown, ids: list[int], missing: dict[str, int], first: int) -> None:
        """Ids of a text without control tokens; characters that have none join `missing` with their position."""
        at = first
        for part, i in cut_at(self.user, text):
            if i is not None:
                ids.append(i)
                continue
            for word in re.findall(r" *[^ ]+| +", part) if self.words_apart else [part]:
                for symbol in self.word(word):
                    if (known := self.ids.get(symbol)) is not None:
                        ids.append(known)
                    elif self.byte_ids:
                        ids.extend(self.byte_ids[byte] for byte in symbol.encode())
                    elif unknown == "replace" and self.unk is not None:
                        ids.append(self.unk)
                    elif unknown != "skip":
                        missing.setdefault(symbol, max(at - self.prefix, 0))
                    at += len(symbol)

    def word(self, word: str) -> list[str]:
        found = self._known_words.get(word)
        if found is None:
            if len(self._known_words) >= MEMORY:
                self._known_words.clear()
            found = self._known_words[word] = merged(word, self.ids, self.scores)
        return found

    def decode(self, ids: Iterable[int] | npt.NDArray[Any]) -> str:
        """The text of the ids; bytes that are no UTF-8 show as U+FFFD. DataError for an id outside the vocabulary."""
        data = b"".join([self.pieces[i] for i in in_range(ids, self.vocab_size).tolist()])
        return (data.removeprefix(b" ") if self.prefix else data).decode("utf-8", "replace")

    def to_json(self) -> dict[str, Any]:
        """What the `tokenizer.json` of handgrad holds."""
        lists = {"pieces": list(self.tokens), "scores": list(self.scores), "types": list(self.types)}
        return {
            "handgrad_tokenizer": 1,
            "kind": self.kind,
            **lists,
            "prefix": self.prefix,
            **self.control.to_json(),
        }


def merged(text: str, ids: Mapping[str, int], scores: Sequence[float]) -> list[str]:
    """The characters of `text`, with neighbours joined, the best score first.

    >>> merged("abc", {"ab": 0, "bc": 1}, [-2.0, -1.0])
    ['a', 'bc']
    """
    symbols: list[str | None] = list(text)
    n = len(symbols)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    offers: list[tuple[float, int, str]] = []

    def offer(left: int) -> None:
        if left < 0 or after[left] >= n:
            return
        joined = f"{symbols[left]}{symbols[after[left]]}"
        if (i := ids.get(joined)) is not None:
            heapq.heappush(offers, (-scores[i], left, joined))

    for left in range(n):
        offer(left)
    while offers:
        _, left, joined = heapq.heappop(offers)
        right = after[left]
        if symbols[left] is None or right >= n or f"{symbols[left]}{symbols[right]}" != joined:
            continue  # one of the two has been joined to something else
        symbols[left], symbols[right] = joined, None
        after[left] = after[right]
        if after[left] < n:
            before[after[left]] = left
        offer(before[left])
        offer(left)
    return [symbol for symbol in symbols if symbol is not None]
