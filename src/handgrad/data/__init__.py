"""Text to tokens to windows. Imports numpy only; the tokenizers library where a vocabulary of it is used."""

from handgrad.data.corpus import Corpus, narrowest_dtype, open_corpus
from handgrad.data.sources import embedded_text, read_text, read_texts
from handgrad.data.tokenizers import (
    Bytes,
    Chars,
    Ids,
    Library,
    SentencePiece,
    StreamDecoder,
    Tokenizer,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
)
from handgrad.data.tokens import prepare
from handgrad.data.windows import n_windows, training_windows, validation_problem, validation_windows

__all__ = [
    "Bytes",
    "Chars",
    "Corpus",
    "Ids",
    "Library",
    "SentencePiece",
    "StreamDecoder",
    "Tokenizer",
    "embedded_text",
    "fingerprint",
    "load_tokenizer",
    "n_windows",
    "narrowest_dtype",
    "open_corpus",
    "prepare",
    "read_text",
    "read_texts",
    "save_tokenizer",
    "training_windows",
    "validation_problem",
    "validation_windows",
]
