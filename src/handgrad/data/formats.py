"""Tokenizers of other programs: GPT-2's two files, llama2.c's file, a Hugging Face folder."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from handgrad.core.errors import DataError, FileError
from handgrad.data.checks import shown
from handgrad.data.control import Control
from handgrad.data.engine import call
from handgrad.data.files import read_bytes, read_json, regular_file
from handgrad.data.library import BYTE, MAX_TOKENS, Library, byte_level
from handgrad.data.sentencepiece_style import BYTES, CONTROL, NORMAL, UNKNOWN, SentencePiece
from handgrad.data.tokenizers import MAX_FILE_BYTES, load_tokenizer

END_OF_TEXT = "<|endoftext|>"
MAX_PIECE = 1 << 12  # bytes of one piece of llama2.c


def from_gpt2(vocabulary: str | Path, merges: str | Path) -> Library:
    """GPT-2's `vocab.json` (or `encoder.json`) and `merges.txt` (or `vocab.bpe`). Raises FileError."""
    pieces = read_json(regular_file(vocabulary, "vocabulary file"), MAX_FILE_BYTES)
    if not isinstance(pieces, dict) or not all(type(i) is int and 0 <= i < MAX_TOKENS for i in pieces.values()):
        raise FileError(f"{vocabulary} is no vocabulary; expected an object of pieces and their ids.")
    lines = read_bytes(regular_file(merges, "merges file"), MAX_FILE_BYTES).decode("utf-8", "replace").split("\n")
    rules = [line for line in lines[lines[0].startswith("#version") :] if line]
    added = {END_OF_TEXT: True} if END_OF_TEXT in pieces else {}
    end = tuple(pieces[name] for name in added)
    try:
        return Library(byte_level(pieces, rules, added), Control(end=end))
    except DataError as error:
        raise FileError(f"{vocabulary} and {merges} are no pair: {error}") from None


def from_llama2c(path: str | Path, vocab_size: int | None = None) -> SentencePiece:
    """llama2.c's `tokenizer.bin`: int32 longest length, then for each token float32 score, int32 length, its bytes.

    `vocab_size`: how many tokens the model has; default: as many as the file holds. Raises FileError.
    """
    data = read_bytes(regular_file(path, "tokenizer file"), MAX_FILE_BYTES)
    tokens, scores = [], []
    at = 4
    while at < len(data) and len(tokens) != vocab_size:
        where = f"{path} is no whole llama2.c tokenizer: token {len(tokens)} at byte {at}"
        if at + 8 > len(data):
            raise FileError(f"{where} is cut off; the file has {len(data)} bytes.")
        score, length = struct.unpack_from("<fi", data, at)
        if not 0 <= length <= MAX_PIECE or at + 8 + length > len(data):
            raise FileError(f"{where} has a length of {length}, and {len(data) - at - 8} bytes are left.")
        try:
            tokens.append(data[at + 8 : at + 8 + length].decode())
        except UnicodeDecodeError:
            raise FileError(f"{where} is not UTF-8 text.") from None
        scores.append(score)
        at += 8 + length
    if len(tokens) < 259 or (vocab_size is not None and len(tokens) < vocab_size):
        raise FileError(f"{path} has {len(tokens)} tokens; expected {vocab_size or 'at least 259 (3 and the bytes)'}.")
    if not all(BYTE.fullmatch(token) for token in tokens[3:259]):
        raise FileError(f"{path} is no llama2.c tokenizer: its tokens 3 to 258 are not the 256 bytes.")
    types = (UNKNOWN, CONTROL, CONTROL, *[BYTES] * 256, *[NORMAL] * (len(tokens) - 259))
    names = ("<unk>", "<s>", "</s>")  # 1 and 2 have line ends around them in the file, for nobody to type
    try:
        return SentencePiece((*names, *tokens[3:]), tuple(scores), types, True, Control(begin=(1,), end=(1, 2)))
    except DataError as error:
        raise FileError(f"{path} is damaged: {error}") from None


def from_folder(folder: str | Path) -> Library | Any | None:
    """The tokenizer of a Hugging Face folder, with its ends and its chat template; None where there is none.

    Read are `tokenizer.json`, or `vocab.json` and `merges.txt`; besides, `tokenizer_config.json`,
    `chat_template.jinja`, `generation_config.json` and `config.json`. Raises FileError.
    """
    folder = Path(folder)
    if (folder / "tokenizer.json").exists():
        found: Any = load_tokenizer(folder / "tokenizer.json")
    elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        found = from_gpt2(folder / "vocab.json", folder / "merges.txt")
    elif (folder / "tokenizer.model").exists():
        raise FileError(
            f"{folder} has a tokenizer.model only, which is not read; save a tokenizer.json beside it (transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder))."
        )
    else:
        return None
    if not isinstance(found, Library) or found.control != Control():
        return found
    settings = optional_json(folder / "tokenizer_config.json")
    ends = [found.vocabulary.get(name_of(settings.get("eos_token")), -1)]
    ends += [i for name in ("generation_config.json", "config.json") for i in ids_in(optional_json(folder / name))]
    template = template_of(settings)
    if (folder / "chat_template.jinja").exists():
        template = read_bytes(folder / "chat_template.jinja", 1 << 20).decode("utf-8", "replace")
    end = tuple(dict.fromkeys(i for i in ends if 0 <= i < found.vocab_size))
    try:
        return replace(found, control=Control(begins(found, settings), end, template))
    except DataError as error:
        raise FileError(f"{folder}: {error}") from None


def begins(tokenizer: Library, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that the library's own post-processor puts before a text; else the start token, where it is asked for."""
    made = tokenizer.made(True, False)
    bare = call(made.encode, "a", add_special_tokens=False).ids
    whole = call(made.encode, "a", add_special_tokens=True).ids
    if len(whole) > len(bare):
        at = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        return tuple(whole[:at])
    start = tokenizer.vocabulary.get(name_of(settings.get("bos_token")))
    return (start,) if settings.get("add_bos_token") is True and start is not None else ()


def ids_in(settings: Mapping[str, Any]) -> list[int]:
    value = settings.get("eos_token_id")
    return [i for i in (value if isinstance(value, list) else [value]) if type(i) is int and i >= 0]


def name_of(token: Any) -> str:
    """A special token as a name, or as an object with its `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def template_of(settings: Mapping[str, Any]) -> str:
    """The chat template: one text, or the one named "default" of several."""
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = [entry.get("template") for entry in value if isinstance(entry, dict) and entry.get("name") == "default"]
        value = named[-1] if named else ""
    return value if isinstance(value, str) else ""


def optional_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = read_json(regular_file(path, "settings file"), MAX_FILE_BYTES)
    if not isinstance(value, dict):
        raise FileError(f"{path} holds {shown(value)}; expected an object.")
    return value
