"""Text of ids that arrive one at a time, and ids of text that arrives in pieces: the same as all at once."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import Any

from handgrad.data.checks import IdArray, OnUnknown, in_range

# A word may go on from one piece to the next. Between a line end and what is no white space no tokenizer here joins,
# unless white space is before the line end, too, which some count as one.
SAFE = re.compile(r"(?<=\S)\n(?=\S)")
CONTEXT = 64  # characters before a piece that are read again with it


class StreamDecoder:
    """Text of ids that arrive one at a time; half a UTF-8 character waits until it is whole or known to be broken.

    All that `push` and `flush` return, joined, equals `tokenizer.decode(all ids)`. After `flush` it starts anew.

    >>> from handgrad.data.tokenizers import Bytes
    >>> stream = StreamDecoder(Bytes())
    >>> [stream.push(i) for i in "é!".encode()], stream.flush()
    (['', 'é', '!'], '')
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._piece = getattr(tokenizer, "piece", None)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_seen = 0
        self._strips: bool = getattr(tokenizer, "prefix", False)

    def push(self, id: int) -> str:
        """What can be shown once `id` has arrived, perhaps nothing. DataError for an id outside the vocabulary."""
        checked = in_range([id], self._tokenizer.vocab_size, first=self._n_seen)
        separator = " " if self._tokenizer.kind == "ids" and self._n_seen else ""
        self._n_seen += 1
        if self._piece is None:
            return separator + str(self._tokenizer.decode(checked))
        data: bytes = self._piece(int(checked[0]))
        if self._strips and data:
            data, self._strips = data.removeprefix(b" "), False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What still waited, U+FFFD for a character that never became whole."""
        rest = self._utf8.decode(b"", final=True)
        self._n_seen = 0
        self._strips = getattr(self._tokenizer, "prefix", False)
        return rest


def encoded(tokenizer: Any, texts: Iterable[str], unknown: OnUnknown = "abort") -> Iterator[IdArray]:
    """Ids of a text in pieces, cut anew where no token can reach over the cut.

    >>> from handgrad.data.tokenizers import Bytes
    >>> [ids.tolist() for ids in encoded(Bytes(), ["ab", "c"])]
    [[97, 98], [99]]
    """
    if not hasattr(tokenizer, "names"):  # bytes and characters: a cut is safe anywhere
        for text in texts:
            yield tokenizer.encode(text, unknown)
        return
    before = ""
    for text in safe_pieces(shorter(texts, getattr(tokenizer, "growth", 1.0))):
        yield tokenizer.encode(text, unknown, more=before)
        before = (before + text)[-CONTEXT:]


def shorter(texts: Iterable[str], growth: float) -> Iterator[str]:
    """The same text, in smaller pieces where a tokenizer may make it much longer while it reads."""
    size = max(1 << 12, int((1 << 20) / growth))
    for text in texts:
        yield from (text[at : at + size] for at in range(0, len(text), size))


def safe_pieces(texts: Iterable[str], most: int = 1 << 22) -> Iterator[str]:
    """The same text, cut after single line ends only; anywhere where none comes for `most` characters.

    >>> list(safe_pieces(["one\\ntwo\\nth", "ree\\n", "\\nfour"]))
    ['one\\ntwo\\n', 'three\\n\\nfour']
    """
    held = ""
    for text in texts:
        held += text
        ends = [match.end() for match in SAFE.finditer(held)]
        at = ends[-1] if ends else len(held) if len(held) > most else 0
        if at:
            yield held[:at]
            held = held[at:]
    if held:
        yield held
