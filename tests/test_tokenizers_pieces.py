"""Trained vocabularies: exact ids (T04, T06, T08), control tokens only when asked for, streams, damaged files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handgrad.core.errors import ConfigError, DataError
from handgrad.data import prepare
from handgrad.data.bpe import size_of, train_bpe
from handgrad.data.formats import from_gpt2, from_llama2c
from handgrad.data.library import Library, byte_alphabet, byte_level
from handgrad.data.sentencepiece_style import SentencePiece, merged
from handgrad.data.streaming import StreamDecoder, encoded, safe_pieces
from handgrad.data.tokenizers import fingerprint, load_tokenizer, save_tokenizer

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
TEXT = "the cat sat on the mat, and the dog sat on the log.\nThe cow said: moo, 12 times!\n" * 4
HARD = ["", " ", "  a  b ", "\n\n", "é☃😀", "<|endoftext|>", "<s>x</s>", "<0x0A>", "a\u0301", "\0\x7f"]
HARD += ["don't  I'll\n\n"]

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} of the shared fixtures")
    return path


def trained() -> Library:
    return train_bpe([TEXT], 300)


def small_pieces(fallback: bool = True) -> SentencePiece:
    """<unk>, <s>, </s>, perhaps 256 bytes, then some pieces of which the longer have the better scores."""
    words = [" ", "a", "b", "n", "ab", "an", " an", "ana", " a", "nan", "<", "s", ">"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256) if fallback), *words]
    types = [2, 3, 3, *[6] * (256 if fallback else 0), *[1] * len(words)]
    scores = [0.0] * (len(tokens) - len(words)) + [-float(10 - len(word)) for word in words]
    return SentencePiece(tuple(tokens), tuple(scores), tuple(types))


def metaspace() -> Library:
    """The same kind of model as a `tokenizer.json`, as Llama 2 has it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    value = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": name,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for i, name in enumerate(["<unk>", "<s>", "</s>"])
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": ["▁ a", "a b", "▁a b"],
        },
    }
    return Library(json.dumps(value))


MAKERS: dict[str, Callable[[], Any]] = {"bpe": trained, "pieces": small_pieces, "metaspace": metaspace}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("text", HARD)
def test_every_text_comes_back_and_no_name_of_a_control_token_becomes_one(name: str, text: str) -> None:
    tokenizer = MAKERS[name]()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == text
    assert not set(tokenizer.names.values()) & set(ids.tolist())


@QUICK
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_comes_back_also_through_a_stream(text: str) -> None:
    for tokenizer in (CACHED["bpe"], CACHED["pieces"], CACHED["metaspace"]):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        stream = StreamDecoder(tokenizer)
        shown = [stream.push(i) for i in ids.tolist()]
        assert not any("\ufffd" in piece for piece in shown if "\ufffd" not in text)
        assert "".join(shown) + stream.flush() == text


@QUICK
@given(st.lists(st.integers(0, 258), max_size=30))
def test_any_ids_stream_as_they_decode(ids: list[int]) -> None:
    for tokenizer in CACHED.values():
        known = [i for i in ids if i < tokenizer.vocab_size]
        stream = StreamDecoder(tokenizer)
        for _ in range(2):
            assert "".join(map(stream.push, known)) + stream.flush() == tokenizer.decode(known)


CACHED = {name: make() for name, make in MAKERS.items()}


def test_the_lowest_rank_is_merged_first() -> None:
    alphabet = {c: i for i, c in enumerate(byte_alphabet())}
    tokenizer = Library(byte_level({**alphabet, "bc": 256, "ab": 257}, ["b c", "a b"], {}))
    assert tokenizer.encode("abc").tolist() == [alphabet["a"], 256]
    assert merged("abc", {"ab": 0, "bc": 1}, [-2.0, -1.0]) == ["a", "bc"]
    assert merged("aaa", {"aa": 0}, [-1.0]) == ["aa", "a"]


def naive(tokenizer: SentencePiece, text: str) -> list[int]:
    """llama2.c's loop in the plainest words: the best pair of all, the first of equals, until there is none."""
    symbols = list(" " + text) if text else []
    while True:
        best, at = -np.inf, None
        for i in range(len(symbols) - 1):
            id = tokenizer.ids.get(symbols[i] + symbols[i + 1])
            if id is not None and tokenizer.scores[id] > best:
                best, at = tokenizer.scores[id], i
        if at is None:
            break
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [
        i
        for symbol in symbols
        for i in ([tokenizer.ids[symbol]] if symbol in tokenizer.ids else [3 + b for b in symbol.encode()])
    ]


@QUICK
@given(st.text("abn <s>☃", max_size=25))
def test_merging_by_scores_is_the_plain_loop(text: str) -> None:
    assert CACHED["pieces"].encode(text).tolist() == naive(CACHED["pieces"], text)


def test_a_character_without_a_piece_becomes_its_bytes() -> None:
    tokenizer = small_pieces()
    assert tokenizer.encode("a☃", more=True).tolist() == [tokenizer.ids["a"], 3 + 0xE2, 3 + 0x98, 3 + 0x83]
    assert tokenizer.decode([3 + 0x98]) == "\ufffd"
    assert tokenizer.decode([3 + 0x0A]) == "\n"
    stream = StreamDecoder(tokenizer)
    assert [stream.push(3 + b) for b in "☃".encode()] == ["", "", "☃"]


def test_a_character_that_nothing_stands_for_is_said() -> None:
    tokenizer = small_pieces(fallback=False)
    with pytest.raises(DataError, match="not in the tokenizer's vocabulary: '☃' at position 1"):
        tokenizer.encode("a☃b")
    assert tokenizer.decode(tokenizer.encode("a☃b", "skip")) == "ab"
    assert tokenizer.decode(tokenizer.encode("a☃b", "replace")) == "a\ufffdb"
    for maker in MAKERS.values():
        with pytest.raises(DataError, match="UTF-8 can write"):
            maker().encode("a\udce9")
        assert maker().decode(maker().encode("a\udce9", "skip")) == "a"


def test_a_vocabulary_without_all_bytes_drops_nothing_in_silence() -> None:
    tokenizer = Library(byte_level({"a": 0, "b": 1, "ab": 2}, ["a b"], {}))
    assert tokenizer.encode("ab").tolist() == [2]
    with pytest.raises(DataError, match="'c' at position 2"):
        tokenizer.encode("abc")
    assert tokenizer.encode("abc", "skip").tolist() == [2]
    value = json.loads(metaspace().text)
    value["model"] |= {"byte_fallback": False, "unk_token": None}
    with pytest.raises(DataError, match="leave characters out"):
        Library(json.dumps(value))


def test_control_tokens_come_when_asked_for_and_show_as_nothing() -> None:
    alphabet = {c: i for i, c in enumerate(byte_alphabet())}
    tokenizer = Library(byte_level({**alphabet, "<|im_end|>": 256, "<b>": 257}, [], {"<|im_end|>": True, "<b>": False}))
    assert tokenizer.encode("a<|im_end|>").size == 11
    assert tokenizer.encode("a<|im_end|>", control=True).tolist() == [alphabet["a"], 256]
    assert tokenizer.encode("<b>").tolist() == [257]  # the file says that it is text
    assert tokenizer.decode([256, 257]) == "<b>"
    pieces = small_pieces()
    assert pieces.encode("<s>an</s>an", control=True).tolist() == [1, pieces.ids[" an"], 2, pieces.ids[" an"]]
    assert pieces.decode([1, pieces.ids[" an"]]) == "an"


def test_a_text_in_pieces_gives_the_ids_of_the_whole() -> None:
    for tokenizer in CACHED.values():
        for n in (1, 7, 50):
            pieces = [TEXT[i : i + n] for i in range(0, len(TEXT), n)]
            ids = np.concatenate(list(encoded(tokenizer, pieces)))
            assert ids.tolist() == tokenizer.encode(TEXT).tolist()
    assert "".join(safe_pieces(["a" * 10, "b" * 10], most=5)) == "a" * 10 + "b" * 10


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_brings_the_same_tokenizer_back(name: str, tmp_path: Path) -> None:
    tokenizer = MAKERS[name]()
    save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert fingerprint(again) == fingerprint(tokenizer)
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert (again.kind, again.vocab_size, again.control) == (tokenizer.kind, tokenizer.vocab_size, tokenizer.control)
    assert len(repr(tokenizer)) < 200


SCRIPT = "import sys; from handgrad.data.bpe import train_bpe; from handgrad.data.tokenizers import fingerprint; "
SCRIPT += "print(fingerprint(train_bpe([sys.argv[1]], 400)))"


def test_training_gives_the_same_vocabulary_every_time() -> None:
    found = set()
    for hash_seed, threads in (("1", "1"), ("2", "4")):
        environment = {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads, "PATH": ""}
        command = [sys.executable, "-c", SCRIPT, TEXT * 5 + "é☃ " * 3]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


@pytest.mark.parametrize("spec", ["bpe", "bpe:", "bpe:255", "bpe:-1", "bpe:1e3", "bpe:99999999", "bpe:²"])
def test_a_number_of_tokens_that_cannot_be_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"write bpe:N .* from 256"):
        size_of(spec)


def test_prepared_tokens_are_those_of_the_trained_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    corpus = prepare([tmp_path / "a.txt"], "bpe:300", tmp_path / "tokens")
    assert corpus.tokenizer.vocab_size <= 300
    assert corpus.tokenizer.kind == "bpe:300"
    assert corpus.tokenizer.decode(corpus.tokens) == TEXT
    assert corpus.tokens.dtype == np.uint16


def test_gpt2_counts_tinyshakespeare() -> None:
    folder = shared("gpt2-bpe")
    tokenizer = from_gpt2(folder / "encoder.json", folder / "vocab.bpe")
    text = shared("tinyshakespeare.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text)
    assert (tokenizer.vocab_size, len(ids)) == (50257, 338_025)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert tokenizer.control.end == (50256,)
    assert 50256 not in tokenizer.encode("<|endoftext|>").tolist()
    assert (
        sum(ids.size for ids in encoded(tokenizer, [text[i : i + 4999] for i in range(0, len(text), 4999)])) == 338_025
    )


def test_llama2c_reads_its_own_text() -> None:
    tokenizer = from_llama2c(shared("tok512.bin"))
    text = shared("stories260K.golden.txt").read_text(encoding="utf-8")
    assert tokenizer.vocab_size == 512
    assert tokenizer.encode("Once upon a time").tolist() == [403, 407, 261, 378]
    assert tokenizer.encode(text).tolist() == naive(tokenizer, text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'handgrad\[tokenizers\]'"):
        train_bpe([TEXT], 300)
    assert small_pieces().encode("an").size  # pieces with scores need no library
