"""Data that are token ids already: `.npy`, `.bin`, text of numbers, and all that they can have wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.data import Bytes, Ids, prepare, save_tokenizer
from handgrad.data.ids import CHUNK_IDS, read_ids, scan_ids


def write(folder, data, name="a.txt"):
    path = folder / name
    path.write_bytes(data)
    return str(path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_npy_and_bin_and_text_of_numbers(tmp_path, out):
    np.save(tmp_path / "a.npy", np.array([5, 0, 300], ">i4"))
    (tmp_path / "b.BIN").write_bytes(np.array([7, 258], "<u2").tobytes())
    write(tmp_path, b"1 2\r\n 3", "c.txt")
    sources = [str(tmp_path / name) for name in ("a.npy", "b.BIN", "c.txt", "c.txt")]
    corpus = prepare(sources, "ids", out)
    assert corpus.tokens.tolist() == [5, 0, 300, 7, 258, 1, 2, 3, 1, 2, 3]
    assert corpus.tokenizer == Ids(301)
    assert corpus.tokens.dtype == np.uint16
    for spec in (None, "auto"):
        assert prepare(sources[:2], spec, out).tokenizer == Ids(301)
        assert prepare([write(tmp_path, b"1")], spec, out).tokenizer == Bytes()
    assert prepare(sources, "ids", out, vocab_size=70_000).tokens.dtype == np.uint32
    save_tokenizer(Ids(400), tmp_path / "t.json")
    assert prepare(sources, str(tmp_path / "t.json"), out).tokenizer == Ids(400)
    with pytest.raises(ConfigError, match="vocab_size 500 was asked for, but the tokenizer file says 400"):
        prepare(sources, str(tmp_path / "t.json"), out, vocab_size=500)


def test_numbers_are_not_cut_between_pieces(tmp_path, out):
    numbers = [12345, 7, 0, 99, 65535, 3] * 20
    source = write(tmp_path, " ".join(map(str, numbers)).encode())
    for chunk in (1, 2, 3, 7):
        assert np.concatenate(list(read_ids(source, chunk))).tolist() == numbers
    bad = write(tmp_path, b"1 22 333 x4 5")
    with pytest.raises(DataError, match=r"a\.txt: 'x4' at position 3 is not a token id"):
        list(read_ids(bad, 3))
    with pytest.raises(DataError, match=r"at position 0 is not a token id"):
        prepare([write(tmp_path, b"x" * 100_000)], "ids", out)
    with pytest.raises(DataError, match="no token ids at all"):
        prepare([write(tmp_path, b" \n ")], "ids", out)


def test_d11_id_beyond_the_vocabulary_with_position_before_anything_else(tmp_path, out):
    (tmp_path / "a.bin").write_bytes(np.array([1, 2], "<u2").tobytes())
    (tmp_path / "b.bin").write_bytes(np.array([3, 10, 11, 4, 11], "<u2").tobytes())
    (tmp_path / "c.bin").write_bytes(np.array([11], "<u2").tobytes())
    sources = [str(tmp_path / name) for name in ("a.bin", "b.bin", "c.bin")]
    with pytest.raises(
        DataError,
        match=r"b\.bin: the largest id is 11, first at position 2, but vocab_size is 11 \(ids 0 to 10\)\. Use.* 12 ",
    ):
        prepare(sources, "ids", out, vocab_size=11)
    assert not out.exists()
    assert prepare(sources, "ids", out, vocab_size=12).tokenizer == Ids(12)


def test_position_of_the_largest_counts_over_pieces(tmp_path):
    ids = np.zeros(CHUNK_IDS + 10, np.uint16)
    ids[CHUNK_IDS + 4] = 9
    np.save(tmp_path / "a.npy", ids)
    scan = scan_ids([tmp_path / "a.npy"])
    assert (scan.n_tokens, scan.max_id, scan.position) == (ids.size, 9, CHUNK_IDS + 4)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([0.5]), r"array of shape \(1,\) and type float64; token ids are a 1-D array of integers"),
        (np.zeros((2, 3), np.int32), r"array of shape \(2, 3\) and type int32"),
        (np.array(3), r"array of shape \(\) and type int64"),
        (np.array([True]), "type bool"),
        (np.array(["a"]), "type <U1"),
        (np.zeros(0, np.uint8), "holds no token ids: its array is empty"),
        (np.array([4, -1, -2]), r"a\.npy: id -1 at position 1 is not a token id"),
        (np.array([4, 2**32]), r"a\.npy: id 4294967296 at position 1 is not a token id"),
        (np.array([2**64 - 1], np.uint64), r"id 18446744073709551615 at position 0 is not a token id"),
    ],
)
def test_arrays_that_are_no_ids(tmp_path, out, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=message):
        prepare([str(tmp_path / "a.npy")], "ids", out)
    assert not out.exists()


def test_damaged_npy_and_bin(tmp_path, out):
    np.save(tmp_path / "a.npy", np.arange(1000))
    data = (tmp_path / "a.npy").read_bytes()
    for cut in (3, 9, 60, 128, 1000, len(data) - 1):
        with pytest.raises(FileError, match=r"is not a whole \.npy array"):
            prepare([write(tmp_path, data[:cut], "b.npy")], "ids", out)
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(FileError, match=r"is not a whole \.npy array: .*Python objects"):
        prepare([str(tmp_path / "o.npy")], "ids", out)
    with pytest.raises(DataError, match=r"c\.bin has 3 bytes, an odd number; .*raw uint16"):
        prepare([write(tmp_path, b"abc", "c.bin")], "ids", out)
    with pytest.raises(FileError, match=r"d\.bin' is empty"):
        prepare([write(tmp_path, b"", "d.bin")], "ids", out)
    with pytest.raises(
        DataError, match=r"c\.bin holds token ids already, but the tokenizer asked for \(chars\) is for"
    ):
        prepare([write(tmp_path, b"ab"), str(tmp_path / "c.bin")], "chars", out)
    with pytest.raises(ConfigError, match="vocab_size 300 was asked for, but the bytes tokenizer has 256"):
        prepare([write(tmp_path, b"ab")], "bytes", out, vocab_size=300)
    assert not out.exists()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=60), st.integers(0, 128))
def test_any_damage_to_an_npy_header_is_a_plain_error(tmp_path_factory, noise, at):
    folder = tmp_path_factory.getbasetemp()
    np.save(folder / "good.npy", np.arange(4, dtype=np.uint8))
    data = (folder / "good.npy").read_bytes()
    source = write(folder, data[:at] + noise + data[at + len(noise) :], "noise.npy")
    try:
        corpus = prepare([source], "ids", folder / "noise")
    except (DataError, FileError):
        return
    assert corpus.n_tokens > 0
