"""Prepared tokens on disk, opened and checked: `tokens.npy`, `tokenizer.json`, and `corpus.json` about both."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from handgrad.core.errors import ConfigError, FileError
from handgrad.data.files import read_json, regular_file
from handgrad.data.ids import open_npy
from handgrad.data.tokenizers import Tokenizer, fingerprint, load_tokenizer

TokenArray: TypeAlias = np.ndarray[tuple[int], np.dtype[Any]]

TOKENS, TOKENIZER, CORPUS = "tokens.npy", "tokenizer.json", "corpus.json"
FORMAT_KEY, FORMAT_VERSION = "handgrad_corpus", 1
_MAX_CORPUS_BYTES = 16 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Corpus:
    """Prepared tokens: a read-only memory map in file order, and the tokenizer they belong to."""

    tokens: np.memmap[Any, np.dtype[Any]]
    tokenizer: Tokenizer
    folder: Path
    n_tokens: int

    def split(self, fraction: float = 0.9) -> tuple[TokenArray, TokenArray]:
        """Training and validation part, views in file order: the first `floor(n_tokens * fraction)` tokens, the rest.

        `fraction` is taken as the decimal it is written as. Raises ConfigError unless 0 < fraction <= 1.
        """
        if not 0 < fraction <= 1:
            raise ConfigError(f"the training fraction is {fraction}; it has to be above 0 and at most 1.")
        # 0.29 * 100 is 28.999... in binary; the decimal fraction has no such accident.
        n_train = int(Fraction(repr(float(fraction))) * self.n_tokens)
        return self.tokens[:n_train], self.tokens[n_train:]


def open_corpus(folder: str | Path) -> Corpus:
    """Open what `prepare` wrote, and check it: every id in range, every byte as written.

    Raises FileError for a folder without a corpus, and for files that are damaged or do not belong together.
    """
    target = Path(folder)
    if not os.path.isfile(target / CORPUS):
        raise FileError(f"{target} has no prepared data: {CORPUS} is missing. Prepare the data again.")
    description = read_json(target / CORPUS, _MAX_CORPUS_BYTES)
    if not isinstance(description, dict) or description.get(FORMAT_KEY) != FORMAT_VERSION:
        raise FileError(f"{target / CORPUS} is not a corpus description of format {FORMAT_VERSION}.")
    tokenizer = load_tokenizer(target / TOKENIZER)
    if description.get("tokenizer_fingerprint") != fingerprint(tokenizer):
        raise _mixed(target, TOKENIZER)
    tokens = open_npy(regular_file(target / TOKENS, "token file"))
    if tokens.ndim != 1 or tokens.dtype != narrowest_dtype(tokenizer.vocab_size):
        raise FileError(
            f"{target / TOKENS} holds shape {tokens.shape} of type {tokens.dtype}; "
            f"expected 1-D {narrowest_dtype(tokenizer.vocab_size)}. Prepare the data again."
        )
    if description.get("n_tokens") != tokens.size:
        raise _mixed(target, TOKENS)
    if description.get("tokens_sha256") != _checked_digest(target / TOKENS, tokens, tokenizer.vocab_size):
        raise _mixed(target, TOKENS)
    return Corpus(tokens, tokenizer, target, int(tokens.size))


def narrowest_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest of uint8, uint16, uint32 that holds the ids `0 .. vocab_size - 1`.

    >>> narrowest_dtype(256), narrowest_dtype(257), narrowest_dtype(65537)
    (dtype('uint8'), dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.uint8 if vocab_size <= 1 << 8 else np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def _checked_digest(path: Path, tokens: np.memmap[Any, np.dtype[Any]], vocab_size: int) -> str:
    digest, at = hashlib.sha256(), 0
    # Read, not mapped: pages of a map would count as this process's memory.
    with open(path, "rb") as file:
        file.seek(tokens.offset)
        while at < tokens.size:
            piece = np.fromfile(file, tokens.dtype, count=min(_CHUNK, tokens.size - at))
            if piece.size == 0:
                raise FileError(f"{path} ends after {at} of {tokens.size} tokens. Prepare the data again.")
            largest = int(piece.argmax())
            if piece[largest] >= vocab_size:
                raise FileError(
                    f"{path} has id {piece[largest]} at position {at + largest}, outside the vocabulary of "
                    f"{vocab_size}. Prepare the data again."
                )
            digest.update(piece.data)
            at += piece.size
    return digest.hexdigest()


def _mixed(folder: Path, name: str) -> FileError:
    return FileError(
        f"{folder / name} is not the file that {folder / CORPUS} describes: it was changed, damaged, or left by an "
        "interrupted run. Prepare the data again."
    )
