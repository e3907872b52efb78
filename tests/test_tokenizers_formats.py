"""Tokenizers of other programs: llama2.c, GGUF, Hugging Face folders; damaged ones are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_tokenizers_pieces import metaspace, small_pieces

from handgrad.core.errors import DataError, FileError
from handgrad.data.formats import from_folder, from_llama2c
from handgrad.data.gguf_tokens import from_gguf
from handgrad.data.library import Library, byte_alphabet
from handgrad.data.tokenizers import load_tokenizer


def llama2c(tokens: list[bytes]) -> bytes:
    return struct.pack("<i", 27) + b"".join(struct.pack("<fi", -1.0, len(t)) + t for t in tokens)


BASE = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % b for b in range(256)), b" a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (llama2c(BASE)[:-1], "token 259 at byte .* has a length of 2, and 1 bytes are left"),
        (llama2c(BASE)[:-9], "is cut off"),
        (llama2c(BASE[:40]), "has 40 tokens"),
        (llama2c(BASE[::-1]), "are not the 256 bytes"),
        (llama2c([*BASE, b"\xff"]), "token 260 .* is not UTF-8"),
        (struct.pack("<ifi", 27, 0.0, -5), "has a length of -5"),
        (struct.pack("<ifi", 27, 0.0, 1 << 30), "has a length of 1073741824"),
        (llama2c(BASE).replace(struct.pack("<f", -1.0), struct.pack("<f", float("nan")), 1), "finite"),
        (b"", "empty"),
    ],
)
def test_a_damaged_llama2c_file_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(data)
    with pytest.raises(FileError, match=message):
        from_llama2c(tmp_path / "t.bin")


def gguf_fields() -> dict[str, Any]:
    alphabet = list(byte_alphabet())
    tokens = [*alphabet, "Ġa", "<|im_end|>", "1"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens[:-1],
        "tokenizer.ggml.token_type": [1] * 257 + [3],
        "tokenizer.ggml.merges": ["Ġ a"],
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": "{{ messages }}",
    }


def test_gguf_fields_become_a_tokenizer() -> None:
    tokenizer = from_gguf(gguf_fields())
    assert isinstance(tokenizer, Library)
    assert tokenizer.encode(" a").tolist() == [256]
    assert (tokenizer.control.end, tokenizer.control.begin) == ((257,), ())
    assert tokenizer.control.template == "{{ messages }}"
    pieces = small_pieces()
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [token.replace(" ", "▁") for token in pieces.tokens],
        "tokenizer.ggml.scores": np.array(pieces.scores, np.float32),
        "tokenizer.ggml.token_type": np.array(pieces.types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    found = from_gguf(fields)
    assert (found.tokens, found.types, found.scores) == (pieces.tokens, pieces.types, pieces.scores)
    assert (found.control.begin, found.control.end) == ((1,), (2,))
    assert from_gguf({}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "is 'bert'; known: gpt2, llama"),
        ({"pre": "falcon"}, "pre is 'falcon'; known: "),
        ({"tokens": []}, "has 0 entries"),
        ({"tokens": 5}, "expected a list"),
        ({"token_type": [1]}, "1 entries, and there are 258 tokens"),
        ({"merges": ["a"]}, "merge 0 is 'a'"),
        ({"merges": ["a zz"]}, "merge 0"),
        ({"eos_token_id": 999}, "end names token 999"),
        ({"tokens": ["a"] * 258}, "same token twice"),
    ],
)
def test_gguf_fields_that_contradict_each_other_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_gguf(gguf_fields() | {f"tokenizer.ggml.{name}": value for name, value in change.items()})


def test_a_hugging_face_folder_brings_ends_and_template(tmp_path: Path) -> None:
    assert from_folder(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text(metaspace().text, encoding="utf-8")
    settings_file = {"eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": "hi"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_file), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}', encoding="utf-8")
    found = from_folder(tmp_path)
    assert (found.control.begin, found.control.end, found.control.template) == ((1,), (2, 7), "hi")
    (tmp_path / "chat_template.jinja").write_text("own file", encoding="utf-8")
    assert from_folder(tmp_path).control.template == "own file"
    (tmp_path / "tokenizer_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(FileError, match=r"tokenizer_config.json holds \[1\]; expected an object"):
        from_folder(tmp_path)


def test_gpt2_files_in_a_folder(tmp_path: Path) -> None:
    vocabulary = {c: i for i, c in enumerate([*byte_alphabet(), "ab", "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n", encoding="utf-8")
    found = from_folder(tmp_path)
    assert (found.encode("ab").tolist(), found.control.end) == ([256], (257,))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na z\n", encoding="utf-8")
    with pytest.raises(FileError, match="are no pair: merge 0 is 'a z'"):
        from_folder(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": -1}', encoding="utf-8")
    with pytest.raises(FileError, match="is no vocabulary"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"model": {"type": "BPE"}, "decoder": {"type": "WordPiece"}}, "its decoder is"),
        ({"model": {"type": "Nothing"}, "decoder": {"type": "ByteLevel"}}, "is damaged"),
        ({"model": [], "decoder": {"type": "ByteLevel"}}, "some other kind"),
    ],
)
def test_a_damaged_library_file_is_refused(value: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(FileError, match=message):
        load_tokenizer(tmp_path / "tokenizer.json")
