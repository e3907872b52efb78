"""Tokenizers: exact ids, exact messages, every id sequence decodes, streams equal whole decoding."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handgrad.core.errors import DataError, FileError, UnknownName
from handgrad.data import Bytes, Chars, Ids, StreamDecoder, fingerprint, load_tokenizer, save_tokenizer

QUICK = settings(max_examples=150, deadline=None, derandomize=True)
# Pieces of UTF-8 that are whole, cut, overlong, surrogates and beyond the last code point.
ROUGH_BYTES = st.lists(
    st.one_of(
        st.integers(0, 255),
        st.sampled_from([0xC2, 0xE2, 0x98, 0x83, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xA0, 0x80, 0xF4, 0x90, 0xC0, 0xE0]),
    ),
    max_size=40,
)


def test_bytes_known_values():
    assert Bytes().vocab_size == 256
    assert Bytes().kind == "bytes"
    ids = Bytes().encode("a☃\n")
    assert ids.dtype == np.int64
    assert ids.tolist() == [0x61, 0xE2, 0x98, 0x83, 0x0A]
    assert Bytes().decode(ids) == "a☃\n"
    assert Bytes().encode("").shape == (0,)
    assert Bytes().decode([]) == ""


def test_bytes_decode_never_fails_on_broken_utf8():
    assert Bytes().decode([0x83]) == "\ufffd"
    assert Bytes().decode([0x61, 0xE2, 0x98, 0x62]) == "a\ufffdb"


def test_bytes_lone_surrogate_is_the_only_unknown():
    text = "a\udce9b\udcff\udce9"
    with pytest.raises(
        DataError, match=r"'\\udce9' at position 1, '\\udcff' at position 3, counted from 0\. .*skip.*replace.*abort"
    ):
        Bytes().encode(text)
    assert Bytes().encode(text, "skip").tolist() == [0x61, 0x62]
    assert Bytes().decode(Bytes().encode(text, "replace")) == "a\ufffdb\ufffd\ufffd"


@QUICK
@given(st.text())
def test_bytes_round_trip(text):
    assert Bytes().decode(Bytes().encode(text)) == text


@QUICK
@given(st.text(min_size=1))
def test_chars_round_trip_and_range(text):
    tokenizer = Chars.of(text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.shape == (len(text),)
    assert set(ids.tolist()) == set(range(tokenizer.vocab_size))


@QUICK
@given(ROUGH_BYTES)
def test_stream_equals_whole_decoding_bytes(ids):
    stream = StreamDecoder(Bytes())
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == Bytes().decode(ids)
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == Bytes().decode(ids), "flush starts anew"


@QUICK
@given(st.lists(st.integers(0, 2), max_size=20))
def test_stream_equals_whole_decoding_chars_and_ids(ids):
    for tokenizer in (Chars(("a", "é", "😀")), Ids(3)):
        stream = StreamDecoder(tokenizer)
        assert "".join([stream.push(i) for i in ids]) + stream.flush() == tokenizer.decode(ids)
        assert "".join([stream.push(i) for i in ids]) + stream.flush() == tokenizer.decode(ids), "flush starts anew"


def test_stream_never_shows_half_a_character():
    stream = StreamDecoder(Bytes())
    assert [stream.push(i) for i in "é😀!".encode()] == ["", "é", "", "", "", "😀", "!"]
    assert stream.push(0xF0) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(0x9F) == "\ufffd", "nothing of the old stream is left"


def test_stream_counts_positions():
    stream = StreamDecoder(Chars(("a", "b")))
    assert stream.push(1) + stream.push(0) == "ba"
    with pytest.raises(DataError, match=r"id 2 at position 2 is outside the vocabulary: vocab_size is 2"):
        stream.push(2)


def test_chars_are_sorted_code_points():
    tokenizer = Chars.of("zaé😀Z z")
    assert tokenizer.alphabet == (" ", "Z", "a", "z", "é", "😀")
    assert tokenizer.vocab_size == 6
    ids = tokenizer.encode("az😀")
    assert ids.dtype == np.int64
    assert ids.tolist() == [2, 3, 5]


def test_t01_unknown_character_is_listed_with_its_position_and_the_choices():
    with pytest.raises(DataError) as caught:
        Chars.of("ab").encode("aZb")
    assert str(caught.value) == (
        "the text has characters that are not in the tokenizer's alphabet of 2 characters: 'Z' at position 1, "
        "counted from 0. "
        "Choose what happens to unknown ones: skip (leave them out), replace (put a stand-in) or abort (stop here)."
    )


def test_t01_every_distinct_unknown_once_first_few():
    with pytest.raises(
        DataError, match="'Z' at position 1, 'Y' at position 2, '\\\\n' at position 5, counted from 0\\."
    ):
        Chars.of("ab").encode("aZYZb\n")
    with pytest.raises(DataError, match="'j' at position 9, counted from 0, and 2 more\\."):
        Chars.of("ab").encode("abcdefghijkl")
    with pytest.raises(DataError, match="'j' at position 9, counted from 0\\. Choose"):
        Chars.of("ab").encode("abcdefghij")
    assert Chars.of("ab").unknown("😀a") == {"😀": 0}, "above the whole alphabet"
    assert Chars.of("ab").unknown("\0a") == {"\0": 0}, "below the whole alphabet"


def test_t01_skip_and_replace():
    assert Chars.of("ab").encode("aZbZ", "skip").tolist() == [0, 1]
    assert Chars.of("ab").encode("ZZ", "skip").tolist() == []
    for alphabet, stand_in in (("ab ?\ufffd", "\ufffd"), ("ab ?", "?"), ("ab ", " ")):
        tokenizer = Chars.of(alphabet)
        assert tokenizer.decode(tokenizer.encode("aZb", "replace")) == f"a{stand_in}b"
    with pytest.raises(DataError, match=r"alphabet has none of the stand-ins U\+FFFD, '\?' and ' '\. Choose skip or"):
        Chars.of("ab").encode("aZb", "replace")
    assert Chars.of("ab").encode("ab", "replace").tolist() == [0, 1], "nothing unknown, no stand-in needed"


def test_unknown_choice_is_refused_with_the_nearest():
    for tokenizer in (Bytes(), Chars.of("ab"), Ids(3)):
        with pytest.raises(UnknownName, match=r"named 'skipp'; did you mean 'skip'\? Known: abort, replace, skip"):
            tokenizer.encode("1", "skipp")


@pytest.mark.parametrize(
    ("alphabet", "message"),
    [
        ((), "at least one character"),
        ("ab", "tuple of at least one"),
        (("a", "a"), "'a' twice"),
        (("b", "a"), "not sorted: 'b' comes before 'a'"),
        (("a", "bc"), "'bc' is not a single character"),
        (("a", ""), "'' is not a single character"),
        (("a", 3), "3 is not a single character"),
        (("\ud800",), "is not a single character"),
    ],
)
def test_chars_refuses_what_is_no_alphabet(alphabet, message):
    with pytest.raises(DataError, match=message):
        Chars(alphabet)


def test_ids_known_values():
    assert Ids(10).kind == "ids"
    assert Ids(10).encode(" 3 1\n4\t9 ").tolist() == [3, 1, 4, 9]
    assert Ids(10).encode("3").dtype == np.int64
    assert Ids(10).decode(np.array([3, 1], np.uint16)) == "3 1"
    assert Ids(10).encode("").shape == (0,)
    assert Ids(10).encode("3 10 4", "skip").tolist() == [3, 4]
    with pytest.raises(DataError, match="id 10 at position 1 is outside the vocabulary: vocab_size is 10"):
        Ids(10).encode("3 10 4")
    with pytest.raises(DataError, match="no stand-in"):
        Ids(10).encode("3 10 4", "replace")
    assert Ids(10).encode("3 4", "replace").tolist() == [3, 4]


@pytest.mark.parametrize("word", ["x", "-1", "1.5", "1_0", "٣", "4294967296", "9" * 5000, "+1"])
def test_ids_refuses_words_that_are_no_ids(word):
    with pytest.raises(DataError, match=r"at position 1 is not a token id; ids are whole numbers from 0 to 4294967295"):
        Ids(10).encode(f"0 {word}")


@pytest.mark.parametrize("size", [0, -1, 2**32 + 1, 1.0, "9", None, True])
def test_ids_refuses_a_vocab_size_that_cannot_be(size):
    with pytest.raises(DataError, match="it has to be a whole number from 1 to 4294967296"):
        Ids(size)


@pytest.mark.parametrize("tokenizer", [Bytes(), Chars.of("ab"), Ids(7)], ids=lambda t: t.kind)
def test_decode_out_of_range_names_id_position_and_size(tokenizer):
    size = tokenizer.vocab_size
    assert tokenizer.decode([0, size - 1])
    for bad in (size, -1, 2**40, 2**70, -(2**70)):
        with pytest.raises(
            DataError,
            match=rf"id {bad} at position 2 is outside the vocabulary: vocab_size is {size}, .*0 to {size - 1}",
        ):
            tokenizer.decode([0, 1, bad, bad])


@pytest.mark.parametrize("ids", [[0.5], [[0, 1]], ["a"], [[0], [0, 1]], [True], np.zeros((2, 2), int), [None]])
def test_decode_refuses_what_are_no_ids(ids):
    with pytest.raises(DataError, match="one list of whole numbers"):
        Bytes().decode(ids)


def test_decode_takes_any_sequence():
    for ids in ([97, 98], (97, 98), iter([97, 98]), np.array([97, 98], np.uint8), np.array([97, 98], np.int32)):
        assert Bytes().decode(ids) == "ab"


def test_fingerprints_are_pinned_and_differ():
    # A checkpoint written today has to be recognised by every later version.
    assert fingerprint(Bytes()) == "a9b9d5dc4f992518f730b1039a9f18deecbbe6fe2538f0ab060fb29c6adfe68f"
    different = [Bytes(), Chars.of("ab"), Chars.of("abc"), Ids(2), Ids(256)]
    assert len({fingerprint(tokenizer) for tokenizer in different}) == 5
    assert fingerprint(Chars.of("ab")) == fingerprint(Chars(("a", "b")))


@pytest.mark.parametrize("tokenizer", [Bytes(), Chars.of('a"\\é😀\n\u2028'), Ids(300)], ids=lambda t: t.kind)
def test_tokenizer_file_round_trip(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    save_tokenizer(tokenizer, path)
    loaded = load_tokenizer(str(path))
    assert loaded == tokenizer
    assert type(loaded) is type(tokenizer)
    assert json.loads(path.read_text("utf-8"))["handgrad_tokenizer"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": {"type": "BPE", "vocab": {}}}', r"is damaged: its decoder is \[\]"),
        ("[1]", "is JSON of some other kind"),
        ("{}", "is JSON of some other kind"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON: it is nested too deeply"),
        ('{"handgrad_tokenizer": 2, "kind": "bytes"}', r"tokenizer format 2; this version reads 1 only"),
        ('{"handgrad_tokenizer": true, "kind": "bytes"}', r"tokenizer format True"),
        ('{"handgrad_tokenizer": 1, "kind": "bpe"}', r"tokenizer kind 'bpe'; known: bytes, chars, ids"),
        ('{"handgrad_tokenizer": 1, "kind": ["bytes"]}', r"tokenizer kind \['bytes'\]"),
        ('{"handgrad_tokenizer": 1}', r"tokenizer kind None"),
        ('{"handgrad_tokenizer": 1, "kind": "bytes", "x": 1}', r"no bytes tokenizer: .* field 'x'"),
        ('{"handgrad_tokenizer": 1, "kind": "chars"}', r"no chars tokenizer: .* field 'alphabet'"),
        ('{"handgrad_tokenizer": 1, "kind": "chars", "alphabet": "ab"}', "is damaged: the alphabet is not a list"),
        ('{"handgrad_tokenizer": 1, "kind": "chars", "alphabet": []}', "is damaged: .*at least one"),
        ('{"handgrad_tokenizer": 1, "kind": "chars", "alphabet": ["a", "a"]}', "is damaged: .*'a' twice"),
        ('{"handgrad_tokenizer": 1, "kind": "chars", "alphabet": [["a"]]}', r"is damaged: .*\['a'\] is not a single"),
        ('{"handgrad_tokenizer": 1, "kind": "ids", "vocab_size": "9"}', "is damaged: vocab_size is '9'"),
        ('{"handgrad_tokenizer": 1, "kind": "ids", "vocab_size": 1e99}', "is damaged: vocab_size is 1e"),
    ],
)
def test_tokenizer_file_of_another_kind_gets_a_plain_message(text, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(text, "utf-8")
    with pytest.raises(FileError, match=message):
        load_tokenizer(path)


def test_tokenizer_file_missing_folder_binary_and_too_large(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="there is no tokenizer file"):
        load_tokenizer(tmp_path / "none.json")
    with pytest.raises(FileError, match="is a folder"):
        load_tokenizer(tmp_path)
    path = tmp_path / "t.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="is not JSON"):
        load_tokenizer(path)
    save_tokenizer(Bytes(), path)
    n_bytes = path.stat().st_size
    monkeypatch.setattr("handgrad.data.tokenizers.MAX_FILE_BYTES", n_bytes)
    assert load_tokenizer(path) == Bytes()
    monkeypatch.setattr("handgrad.data.tokenizers.MAX_FILE_BYTES", n_bytes - 1)
    with pytest.raises(FileError, match=f"has more than {n_bytes - 1} bytes"):
        load_tokenizer(path)
