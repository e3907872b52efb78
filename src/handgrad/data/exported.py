"""Our tokenizers as files of the `tokenizers` library, from which transformers makes the same ids.

Bytes are byte-level pieces that nothing joins. Characters are byte-level pieces that are looked up whole, one character
at a time; one that the alphabet lacks is left out there. Pieces with scores are rules of joining in the order of the
scores, where that is the same: `ranked` says when, and why. Numbers are no text and need no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from handgrad.core.errors import ConfigError
from handgrad.data.control import control_of
from handgrad.data.library import ONE_BY_ONE, SPACE, Library, byte_alphabet, byte_level, byte_piece
from handgrad.data.sentencepiece_style import CONTROL, NORMAL, UNKNOWN, USER, SentencePiece
from handgrad.data.tokenizers import Bytes, Chars, Ids, Tokenizer

PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def files_of(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Name -> content of the files that say to transformers what `tokenizer` does. Raises ConfigError where none can.

    >>> list(files_of(Bytes()))
    ['tokenizer.json', 'tokenizer_config.json']
    """
    data, control = data_of(tokenizer), control_of(tokenizer)
    names = names_of(tokenizer, (*control.begin, *control.end))
    if data.get("post_processor") is None and control.begin:
        data = {**data, "post_processor": beginning(control.begin, names)}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if not isinstance(tokenizer, Library):
        settings["split_special_tokens"] = True  # a "<s>" that somebody typed is text
    if control.begin:
        settings |= {"bos_token": names[control.begin[0]], "add_bos_token": True}
    if control.end:
        settings["eos_token"] = names[next((i for i in control.end if i not in control.begin), control.end[0])]
    if control.template:
        settings["chat_template"] = control.template
    files = {
        "tokenizer.json": json.dumps(data, ensure_ascii=False).encode(),
        "tokenizer_config.json": as_file(settings),
    }
    if control.end:
        files["generation_config.json"] = as_file({"eos_token_id": list(control.end)})
    return files


def as_file(table: Mapping[str, Any]) -> bytes:
    return (json.dumps(table, indent=2) + "\n").encode()


def data_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The `tokenizer.json` of the library that gives the same ids. Raises ConfigError where that is not certain.

    >>> pair = json.dumps(data_of(Bytes())), json.dumps(data_of(Chars.of("hé")))
    >>> [Library(text).encode("éh").tolist() for text in pair]
    [[195, 169, 104], [1, 0]]
    """
    if isinstance(tokenizer, Library):
        return tokenizer.data
    if isinstance(tokenizer, Bytes):
        return Library.parsed(byte_level(byte_alphabet(), [], {}))
    if isinstance(tokenizer, Chars):
        pieces = {byte_piece(c): i for i, c in enumerate(tokenizer.alphabet)}
        return Library.parsed(byte_level(pieces, [], {}, ONE_BY_ONE, whole_first=True))
    if isinstance(tokenizer, Ids):
        raise ConfigError("its texts are numbers, the ids themselves")
    return scored(tokenizer)


def names_of(tokenizer: Tokenizer, ids: Collection[int]) -> dict[int, str]:
    """Id -> piece, of these ids."""
    if isinstance(tokenizer, SentencePiece):
        return {i: tokenizer.tokens[i] for i in ids}
    return {i: name for name, i in tokenizer.vocabulary.items() if i in ids} if isinstance(tokenizer, Library) else {}


def beginning(ids: Collection[int], names: Mapping[int, str]) -> dict[str, Any]:
    """The library's step that puts these tokens before a text."""
    starts = [{"SpecialToken": {"id": names[i], "type_id": 0}} for i in ids]
    first, second = ({"Sequence": {"id": id, "type_id": 0}} for id in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [*starts, first],
        "pair": [*starts, first, *starts, second],
        "special_tokens": {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in ids},
    }


def scored(tokenizer: SentencePiece) -> dict[str, Any]:
    """Pieces with scores in the library's words; spaces stay spaces, so that a typed ▁ is not one."""
    merges = ranked(tokenizer)
    special = tokenizer.of_type(CONTROL, UNKNOWN)
    front = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if tokenizer.prefix else []
    same = {"type": "Replace", "pattern": {"String": " "}, "content": " "}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": name, **PLAIN, "special": True} for name, i in special.items()],
        "normalizer": {"type": "Prepend", "prepend": " "} if tokenizer.prefix else None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [same, {"type": "ByteFallback"}, {"type": "Fuse"}, *front]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(tokenizer.tokens)},
            "merges": merges,
        },
    }


def ranked(tokenizer: SentencePiece) -> list[tuple[str, str]]:
    """Every pair of pieces that joins to a third, the best score first. Raises ConfigError where that is another rule.

    The library joins the pair of the lowest rank, pieces with scores the pair of the best join, both the leftmost of
    equals. With different scores these could differ only among pairs that join to one piece, and there is one such
    pair: as long as no join reaches over its ends, what is within a stretch of text is joined by itself, always in the
    same order, and so comes to the same last two pieces wherever it stands.
    """
    ids, scores = tokenizer.ids, tokenizer.scores
    long = sorted((piece for piece in ids if len(piece) > 1), key=lambda piece: -scores[ids[piece]])
    beside = [piece for piece, kind in zip(tokenizer.tokens, tokenizer.types, strict=True) if kind != NORMAL]
    wrong = {
        "not every byte is a token": not tokenizer.byte_ids,
        "some tokens are looked up before all others": USER in tokenizer.types,
        "a token is there twice": len(set(tokenizer.tokens)) < tokenizer.vocab_size,
        f"a token holds {SPACE}": any(SPACE in piece for piece in tokenizer.tokens),
        "a token that no text becomes looks like one": any(len(piece) < 2 for piece in beside),
        "a character of some token is no token itself": not {c for piece in long for c in piece} <= ids.keys(),
        "two tokens have one score": len({scores[ids[piece]] for piece in long}) < len(long),
    }
    if why := [reason for reason, true in wrong.items() if true]:
        raise ConfigError(f"{why[0]}, which the tokenizers library has no exact words for")
    return [pair for piece in long for pair in splits(piece, ids)]


def splits(piece: str, ids: Collection[str]) -> list[tuple[str, str]]:
    """The pairs of pieces that make `piece`.

    >>> splits("aab", {"a", "b", "ab"})
    [('a', 'ab')]
    """
    found = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
    return [pair for pair in found if pair[0] in ids and pair[1] in ids]
