"""Sources to a folder of tokens: `tokens.npy` (narrowest safe width, memory-mapped), `tokenizer.json`, `corpus.json`.

Sources are read twice, once to count and check, once to write, in pieces: memory does not grow with the data (about
50 MB at most, whatever their size). `corpus.json` names the sources with their SHA-256, and the SHA-256 of the tokens
and the tokenizer's fingerprint, so files that do not belong together are noticed when the folder is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.core.errors import unknown as unknown_name
from handgrad.data.bpe import size_of, train_bpe
from handgrad.data.checks import IdArray, OnUnknown, code_points
from handgrad.data.corpus import (
    CORPUS,
    FORMAT_KEY,
    FORMAT_VERSION,
    TOKENIZER,
    TOKENS,
    Corpus,
    narrowest_dtype,
    open_corpus,
)
from handgrad.data.files import has_partial, regular_file, remove_partials, replacing
from handgrad.data.ids import holds_ids, read_ids, scan_ids
from handgrad.data.sources import EMBEDDED, embedded_text, read_texts, text_file
from handgrad.data.streaming import encoded
from handgrad.data.tokenizers import Bytes, Chars, Ids, Tokenizer, fingerprint, load_tokenizer, tokenizer_bytes

__all__ = ["Corpus", "open_corpus", "prepare"]

Progress: TypeAlias = Callable[[int, int], None]


def prepare(
    sources: Iterable[str | Path],
    tokenizer: str | Path | None,
    folder: str | Path,
    *,
    vocab_size: int | None = None,
    unknown: OnUnknown = "abort",
    progress: Progress | None = None,
    accept: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Turn sources into tokens under `folder` and open them.

    `sources`: text files and the word `embedded`, concatenated in this order (`read_texts`), or `.npy` and `.bin`
    files of ids. `tokenizer`: "bytes", "chars" (the alphabet of these sources), "bpe:N" (N tokens trained on them),
    "ids", the path of a `tokenizer.json`, or None or "auto" (ids for `.npy` and `.bin`, bytes for text). `vocab_size`
    is for ids; None takes the largest id + 1. `unknown` says what a given tokenizer does with a character it lacks.
    `progress(done, total)` is called with tokens written and tokens in all. `accept(vocab_size, n_tokens)` may refuse
    before anything is written, by raising.

    Everything is checked before anything is written, and the old files of `folder` stay whole until the new ones are
    complete. Raises DataError, FileError, UnknownName, ConfigError.

    >>> import tempfile
    >>> corpus = prepare(["embedded"], "bytes", tempfile.mkdtemp())
    >>> corpus.tokens.dtype, corpus.tokenizer, corpus.n_tokens == len("".join(read_texts(["embedded"])).encode())
    (dtype('uint8'), Bytes(), True)
    """
    names: list[str | Path] = [sources] if isinstance(sources, (str, Path)) else list(sources)
    if not names:
        raise DataError("no data were named; give text files, or 'embedded'.")
    before = [_stamp(name) for name in names]
    chosen, n_tokens = _first_pass(names, tokenizer, vocab_size, unknown)
    if accept is not None:
        accept(chosen.vocab_size, n_tokens)
    described = [_describe(name) for name in names]

    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"cannot use {str(target)!r} as a folder for tokens: {reason}.") from None
    _spare_files_of_others(target)
    remove_partials(target, (TOKENS, TOKENIZER, CORPUS))
    # All three are complete before the first takes its name; corpus.json, which vouches for the others, comes last.
    with (
        replacing(target / CORPUS) as corpus_file,
        replacing(target / TOKENIZER) as tokenizer_file,
        replacing(target / TOKENS) as tokens_file,
    ):
        digest = _write_tokens(tokens_file, _second_pass(names, chosen, unknown), n_tokens, chosen.vocab_size, progress)
        if [_stamp(name) for name in names] != before:
            raise _changed()
        tokenizer_file.write(tokenizer_bytes(chosen))
        description = {
            FORMAT_KEY: FORMAT_VERSION,
            "sources": described,
            "n_tokens": n_tokens,
            "tokens_sha256": digest,
            "tokenizer_fingerprint": fingerprint(chosen),
        }
        corpus_file.write((json.dumps(description, indent=2) + "\n").encode("ascii"))
    return open_corpus(target)


def _first_pass(
    names: list[str | Path], spec: str | Path | None, vocab_size: int | None, unknown: OnUnknown
) -> tuple[Tokenizer, int]:
    """The tokenizer and the number of tokens; every error of the data is raised here, before anything is written."""
    fixed = _fixed_tokenizer(spec, names)
    with_ids = [name for name in names if holds_ids(name)]
    if fixed == "ids" or isinstance(fixed, Ids):
        return _scan_ids(names, fixed.vocab_size if isinstance(fixed, Ids) else None, vocab_size)
    if with_ids:
        raise DataError(
            f"{with_ids[0]} holds token ids already, but the tokenizer asked for ({spec}) is for text. "
            "Use tokenizer ids."
        )
    if fixed == "chars":
        chosen, n_tokens = _scan_alphabet(names)
    elif isinstance(fixed, str):
        chosen = train_bpe(read_texts(names), size_of(fixed))
        n_tokens = _count(names, chosen, unknown)
    else:
        chosen, n_tokens = fixed, _count(names, fixed, unknown)
    if vocab_size is not None and vocab_size != chosen.vocab_size:
        raise ConfigError(
            f"vocab_size {vocab_size} was asked for, but the {chosen.kind} tokenizer has {chosen.vocab_size}; "
            "vocab_size is for token ids only."
        )
    if n_tokens == 0:
        raise DataError("no tokens are left of the data: every character is unknown to the tokenizer and was skipped.")
    return chosen, n_tokens


def _fixed_tokenizer(spec: str | Path | None, names: list[str | Path]) -> Tokenizer | str:
    """The tokenizer, or "chars", "ids" or "bpe:N" where the data complete it."""
    if spec is None or spec == "auto":
        return "ids" if all(holds_ids(name) for name in names) else Bytes()
    if spec == "bytes":
        return Bytes()
    if spec in ("chars", "ids"):
        return str(spec)
    if str(spec).startswith("bpe:") or spec == "bpe":
        size_of(str(spec))
        return str(spec)
    if isinstance(spec, Path) or spec.endswith(".json") or "/" in spec or os.path.isfile(spec):
        return load_tokenizer(spec)
    raise unknown_name("tokenizer", spec, ["bytes", "chars", "bpe:N", "ids", "FILE.json"])


def _scan_ids(names: list[str | Path], of_file: int | None, asked: int | None) -> tuple[Tokenizer, int]:
    if of_file is not None and asked is not None and of_file != asked:
        raise ConfigError(f"vocab_size {asked} was asked for, but the tokenizer file says {of_file}; leave one out.")
    scan = scan_ids(names)
    size = asked if asked is not None else of_file if of_file is not None else scan.max_id + 1
    chosen = Ids(size)
    if scan.max_id >= size:
        raise DataError(
            f"{scan.source}: the largest id is {scan.max_id}, first at position {scan.position}, but vocab_size is "
            f"{size} (ids 0 to {size - 1}). Use vocab_size {scan.max_id + 1} or more, or other data."
        )
    return chosen, scan.n_tokens


def _scan_alphabet(names: list[str | Path]) -> tuple[Tokenizer, int]:
    seen = np.zeros(0x110000, np.bool_)
    n_tokens = 0
    for text in read_texts(names):
        seen[code_points(text)] = True
        n_tokens += len(text)
    return Chars(tuple(map(chr, np.flatnonzero(seen).tolist()))), n_tokens


def _count(names: list[str | Path], tokenizer: Tokenizer, unknown: OnUnknown) -> int:
    if not isinstance(tokenizer, Chars) or unknown != "abort":
        return sum(ids.size for ids in encoded(tokenizer, read_texts(names), unknown))
    n_tokens = 0
    missing: dict[str, int] = {}
    for text in read_texts(names):
        for character, position in tokenizer.unknown(text).items():
            missing.setdefault(character, n_tokens + position)
        n_tokens += len(text)
    if missing:
        raise tokenizer.refusal(missing, str(names[0]) if len(names) == 1 else f"the {len(names)} sources, joined,")
    return n_tokens


def _second_pass(names: list[str | Path], tokenizer: Tokenizer, unknown: OnUnknown) -> Iterator[IdArray]:
    if isinstance(tokenizer, Ids):
        for name in names:
            yield from read_ids(name)
    else:
        yield from encoded(tokenizer, read_texts(names), unknown)


def _write_tokens(
    file: BinaryIO, pieces: Iterator[IdArray], n_tokens: int, vocab_size: int, progress: Progress | None
) -> str:
    """Write a `.npy` of the pieces and return the SHA-256 of its numbers.

    Plain writes, not a memory map: a full disk is then an error that can be told, and no page stays resident.
    """
    dtype = narrowest_dtype(vocab_size)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n_tokens,)}
    np.lib.format.write_array_header_1_0(file, header)
    digest, done = hashlib.sha256(), 0
    for ids in pieces:
        if ids.size and int(ids.max()) >= vocab_size:
            raise _changed()
        data = ids.astype(dtype).data
        file.write(data)
        digest.update(data)
        done += ids.size
        if done > n_tokens:
            raise _changed()
        if progress is not None:
            progress(done, n_tokens)
    if done != n_tokens:
        raise _changed()
    return digest.hexdigest()


def _spare_files_of_others(folder: Path) -> None:
    """FileError where a file in the way was not written by `prepare`: somebody's data or another model's tokenizer."""
    if (folder / TOKENIZER).exists():
        try:
            load_tokenizer(folder / TOKENIZER, own=True)
        except FileError as error:
            raise FileError(f"{folder} cannot take the tokens, its {TOKENIZER} would be lost: {error}") from None
    # A run killed while it renamed its files leaves tokens.npy and a partial corpus.json.
    ours = (folder / CORPUS).exists() or has_partial(folder, CORPUS)
    if (folder / TOKENS).exists() and not ours:
        raise FileError(
            f"{folder} has a {TOKENS} that handgrad did not write (there is no {CORPUS} beside it), and it would be "
            "lost. Choose another folder, or move the file."
        )


def _stamp(name: str | Path) -> tuple[int, int] | None:
    """Size and time of change of a source's file, checked to be readable; None for `embedded`."""
    if name == EMBEDDED:
        return None
    found = (regular_file(name, "token file") if holds_ids(name) else text_file(name)).stat()
    return found.st_size, found.st_mtime_ns


def _describe(name: str | Path) -> dict[str, Any]:
    if name == EMBEDDED:
        data = embedded_text().encode()
        return {"name": EMBEDDED, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    try:
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"name": str(name), "bytes": file.tell(), "sha256": digest}
    except OSError as error:
        raise FileError(f"cannot read {name}: {error.strerror or error}.") from None


def _changed() -> DataError:
    return DataError("a data file changed while it was read; nothing was written. Start again when it is complete.")
