"""Prepared tokens: exact values, the narrowest width, the split, refusals before anything is written."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handgrad.core.errors import ConfigError, DataError, FileError, UnknownName
from handgrad.data import (
    Bytes,
    Chars,
    Ids,
    embedded_text,
    fingerprint,
    narrowest_dtype,
    open_corpus,
    prepare,
    read_texts,
    save_tokenizer,
    validation_problem,
)

FILES = ["corpus.json", "tokenizer.json", "tokens.npy"]


def write(folder, data, name="a.txt"):
    path = folder / name
    path.write_bytes(data)
    return str(path)


def names(folder):
    return sorted(entry.name for entry in Path(folder).iterdir())


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_bytes_chars_known_values(tmp_path, out):
    source = write(tmp_path, "bé\na".encode())
    corpus = prepare([source], "bytes", out)
    assert corpus.tokens.tolist() == [0x62, 0xC3, 0xA9, 0x0A, 0x61]
    assert corpus.tokenizer == Bytes()
    corpus = prepare([source], "chars", out)
    assert corpus.tokenizer == Chars(("\n", "a", "b", "é"))
    assert corpus.tokens.tolist() == [2, 3, 0, 1]
    assert corpus.tokens.dtype == np.uint8
    assert (corpus.n_tokens, corpus.folder) == (4, out)
    assert names(out) == FILES
    assert isinstance(corpus.tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        corpus.tokens[0] = 0


def test_corpus_file_says_what_the_tokens_are(tmp_path, out):
    source = write(tmp_path, b"ab\r\n")
    prepare([source, "embedded"], "chars", out)
    described = json.loads((out / "corpus.json").read_text("utf-8"))
    corpus = open_corpus(out)
    assert described == {
        "handgrad_corpus": 1,
        "sources": [
            {"name": source, "bytes": 4, "sha256": hashlib.sha256(b"ab\r\n").hexdigest()},
            {
                "name": "embedded",
                "bytes": len(embedded_text().encode()),
                "sha256": hashlib.sha256(embedded_text().encode()).hexdigest(),
            },
        ],
        "n_tokens": 3 + len(embedded_text()),
        "tokens_sha256": hashlib.sha256(corpus.tokens.tobytes()).hexdigest(),
        "tokenizer_fingerprint": fingerprint(corpus.tokenizer),
    }
    assert corpus.tokenizer.decode(corpus.tokens) == "ab\n" + embedded_text()


def test_d07_same_vocabulary_and_tokens_as_the_lf_copy(tmp_path, out):
    marked = prepare([write(tmp_path, b"\xef\xbb\xbfab\r\nab\r\n")], "chars", out / "1")
    plain = prepare([write(tmp_path, b"ab\nab\n")], "chars", out / "2")
    assert marked.tokenizer == plain.tokenizer == Chars(("\n", "a", "b"))
    assert marked.tokens.tolist() == plain.tokens.tolist() == [1, 2, 0, 1, 2, 0]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_characters="\0\r\ufeff", codec="utf-8"), min_size=1))
@pytest.mark.parametrize("spec", ["bytes", "chars"])
def test_what_is_kept_round_trips(tmp_path_factory, spec, text):
    base = tmp_path_factory.getbasetemp()
    corpus = prepare([write(base, text.encode(), f"{spec}.txt")], spec, base / f"round-{spec}")
    assert corpus.tokenizer.decode(corpus.tokens) == text


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [
        (1, np.uint8),
        (256, np.uint8),
        (257, np.uint16),
        (65536, np.uint16),
        (65537, np.uint32),
        (2**32, np.uint32),
    ],
)
def test_narrowest_width(tmp_path, out, vocab_size, dtype):
    assert narrowest_dtype(vocab_size) == dtype
    np.save(tmp_path / "ids.npy", np.array([0, vocab_size - 1], np.uint64))
    corpus = prepare([str(tmp_path / "ids.npy")], "ids", out)
    assert corpus.tokens.dtype == dtype
    assert corpus.tokens.tolist() == [0, vocab_size - 1]
    assert corpus.tokenizer == Ids(vocab_size)


def test_chars_beyond_one_byte(tmp_path, out):
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    corpus = prepare([write(tmp_path, text.encode())], "chars", out)
    assert corpus.tokens.dtype == np.uint16
    assert corpus.tokens.tolist() == list(range(300))


def test_many_pieces_equal_one(tmp_path, out, monkeypatch):
    text = "añ☃\n" * 700
    source = write(tmp_path, text.encode())
    monkeypatch.setattr("handgrad.data.tokens.read_texts", lambda sources: read_texts(sources, 7))
    seen = []
    corpus = prepare([source], "chars", out, progress=lambda done, total: seen.append((done, total)))
    assert corpus.tokenizer.decode(corpus.tokens) == text
    assert seen[-1] == (2800, 2800)
    assert len(seen) > 100
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}), "progress only grows"


def test_given_tokenizer_file(tmp_path, out, monkeypatch):
    save_tokenizer(Chars.of("ab?"), tmp_path / "t.json")
    corpus = prepare([write(tmp_path, b"abba")], str(tmp_path / "t.json"), out)
    assert corpus.tokenizer == Chars(("?", "a", "b"))
    assert corpus.tokens.tolist() == [1, 2, 2, 1]
    os.rename(tmp_path / "t.json", tmp_path / "t")
    assert prepare([write(tmp_path, b"abba")], str(tmp_path / "t"), out).tokenizer == corpus.tokenizer
    monkeypatch.setattr("handgrad.data.tokens.read_texts", lambda sources: read_texts(sources, 3))
    for unknown in ("abort", "skip"):
        assert prepare([write(tmp_path, b"abba")], tmp_path / "t", out, unknown=unknown).n_tokens == 4


def test_given_tokenizer_lacks_characters_of_the_data(tmp_path, out, monkeypatch):
    save_tokenizer(Chars.of("ab?"), tmp_path / "t.json")
    source = write(tmp_path, b"abbaZbZY")
    monkeypatch.setattr("handgrad.data.tokens.read_texts", lambda sources: read_texts(sources, 3))
    with pytest.raises(
        DataError, match=r"a\.txt has characters .*alphabet of 3 characters: 'Z' at position 4, 'Y' at "
    ):
        prepare([source], str(tmp_path / "t.json"), out)
    with pytest.raises(
        DataError, match=r"the 2 sources, joined, has characters.*'\\n' at position 8, 'c' at position 9"
    ):
        prepare([write(tmp_path, b"abababab"), write(tmp_path, b"c", "b")], tmp_path / "t.json", out)
    assert not out.exists()
    source = write(tmp_path, b"abbaZbZY")
    assert prepare([source], tmp_path / "t.json", out, unknown="skip").tokens.tolist() == [1, 2, 2, 1, 2]
    assert prepare([source], tmp_path / "t.json", out, unknown="replace").tokens.tolist() == [1, 2, 2, 1, 0, 2, 0, 0]
    with pytest.raises(DataError, match="no tokens are left"):
        prepare([write(tmp_path, b"ZZZ")], tmp_path / "t.json", out, unknown="skip")


def test_unknown_tokenizer_and_missing_tokenizer_file(tmp_path, out):
    source = write(tmp_path, b"ab")
    with pytest.raises(UnknownName, match="no tokenizer named 'byte'; did you mean 'bytes'"):
        prepare([source], "byte", out)
    with pytest.raises(FileError, match=r"there is no tokenizer file 'none\.json'"):
        prepare([source], "none.json", out)
    with pytest.raises(FileError, match="there is no tokenizer file 'no/such'"):
        prepare([source], "no/such", out)
    assert not out.exists()


def test_no_sources_missing_source_one_source(tmp_path, out):
    with pytest.raises(DataError, match="no data were named"):
        prepare([], "bytes", out)
    with pytest.raises(FileError, match="there is no text file"):
        prepare([write(tmp_path, b"ab"), str(tmp_path / "no.txt")], "bytes", out)
    with pytest.raises(FileError, match="there is no token file"):
        prepare([str(tmp_path / "no.npy")], "ids", out)
    assert not out.exists()
    assert prepare(write(tmp_path, b"ab"), "bytes", out).n_tokens == 2, "a bare string is one source, not letters"


def test_split_in_file_order(tmp_path, out):
    corpus = prepare([write(tmp_path, bytes(range(1, 41)).replace(b"\r", b"z"))], "bytes", out)
    train, val = corpus.split()
    assert (train.size, val.size) == (36, 4)
    assert np.concatenate([train, val]).tolist() == corpus.tokens.tolist()
    assert np.shares_memory(train, corpus.tokens)
    assert np.shares_memory(val, corpus.tokens)
    assert validation_problem(val.size, 16) is not None, "D04"
    assert corpus.split(1.0)[1].size == 0
    for fraction in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="above 0 and at most 1"):
            corpus.split(fraction)


def test_split_takes_the_fraction_as_written(tmp_path, out):
    corpus = prepare([write(tmp_path, b"a" * 100)], "bytes", out)
    assert int(100 * 0.29) == 28, "the accident to avoid"
    assert corpus.split(0.29)[0].size == 29
    assert prepare([write(tmp_path, b"a" * 19)], "bytes", out).split()[0].size == 17
