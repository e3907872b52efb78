"""Text sources: UTF-8 files, and the word `embedded` for the interpreter's own documentation.

What is kept of a text: everything but a leading byte order mark, with "\\r\\n" and a lone "\\r" read as "\\n". A file
saved on another system therefore gives the same characters, the same vocabulary and the same tokens. No other
character is changed.
"""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.data.files import regular_file

EMBEDDED = "embedded"
CHUNK_CHARS = 1 << 20


def embedded_text() -> str:
    """The interpreter's documentation topics in the order of their names, an empty line between two.

    The text depends on the Python version (about 460,000 characters). Raises DataError where Python comes without it.

    >>> "lambda" in embedded_text()
    True
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "this Python comes without its documentation topics (pydoc_data), so there is no 'embedded' text; "
            "name a text file instead."
        ) from None
    return "\n\n".join(topics[name].strip("\n") for name in sorted(topics)) + "\n"


def read_text(source: str | Path, chunk_chars: int = CHUNK_CHARS) -> Iterator[str]:
    """The text of one source in pieces of about `chunk_chars` characters, never all of it at once.

    `source` is the word `embedded` or a UTF-8 file (a file of that name is `./embedded`). Joined, the pieces do not
    depend on `chunk_chars`. Raises FileError for a missing file, a folder, an empty or unreadable file, at the call;
    DataError, while reading, for bytes that are no UTF-8 text, with their offset.

    >>> "".join(read_text("embedded", 1000)) == embedded_text()
    True
    """
    if chunk_chars < 1:
        raise ConfigError(f"chunk_chars is {chunk_chars}; it has to be at least 1.")
    if source == EMBEDDED:
        text = embedded_text()
        return (text[at : at + chunk_chars] for at in range(0, len(text), chunk_chars))
    return _pieces(text_file(source), chunk_chars)


def read_texts(sources: Iterable[str | Path], chunk_chars: int = CHUNK_CHARS) -> Iterator[str]:
    """Several sources one after the other, in the order given.

    Where one does not end in a newline and another follows, a newline is put between them, so that the last word of
    the one and the first of the other stay two words.
    """
    last = "\n"
    for source in sources:
        pieces = read_text(source, chunk_chars)
        if last != "\n":
            yield "\n"
        for text in pieces:
            yield text
            last = text[-1]


def text_file(source: str | Path) -> Path:
    """The checked path of a text file; a word near `embedded` is told so. Raises FileError."""
    if not str(source):
        raise FileError("the name of a data file is empty; name a text file or use 'embedded'.")
    try:
        return regular_file(source, "text file")
    except FileError as error:
        if not os.path.exists(source) and get_close_matches(str(source).lower(), [EMBEDDED], n=1, cutoff=0.75):
            raise FileError(f"there is no text file {str(source)!r}; did you mean '{EMBEDDED}'?") from None
        raise error from None


def _pieces(path: Path, chunk_chars: int) -> Iterator[str]:
    empty = True
    try:
        with open(path, "rb") as file:
            for text in _decoded(file, path, chunk_chars):
                empty = False
                yield text
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {path}: {error.strerror or error}.") from None
    if empty:
        raise DataError(f"{path} holds no text: nothing but a byte order mark is in it.")


def _decoded(file: BinaryIO, path: Path, chunk_chars: int) -> Iterator[str]:
    utf8 = codecs.getincrementaldecoder("utf-8")("strict")
    # Keeps a "\r" at the end of a piece until the next piece shows whether "\n" follows.
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    offset, at_start, block = 0, True, b"-"
    if isinstance(file, io.BufferedReader) and file.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is UTF-16 text; save it as UTF-8 (for example: iconv -f UTF-16 -t UTF-8).")
    while block:
        block = file.read(chunk_chars)
        zero = block.find(b"\0")
        if zero >= 0:
            raise DataError(
                f"{path} is not text: it has a zero byte at offset {offset + zero}. "
                "Give UTF-8 text, or token ids as .npy or .bin."
            )
        held = len(utf8.getstate()[0])
        try:
            text = utf8.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02X} at offset "
                f"{offset - held + error.start} ({error.reason}). "
                "Save it as UTF-8 (for example: iconv -f WINDOWS-1252 -t UTF-8), or remove that byte."
            ) from None
        offset += len(block)
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        text = newlines.decode(text, final=not block)
        if text:
            yield text
