"""Text sources: what is kept of a text, in pieces of any size, and every refusal in plain words."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.data import embedded_text, read_text, read_texts

QUICK = settings(max_examples=100, deadline=None, derandomize=True)


def write(folder, data, name="a.txt"):
    path = folder / name
    path.write_bytes(data)
    return path


def whole(path, chunk=1 << 20):
    return "".join(read_text(path, chunk))


def test_embedded_is_the_documentation_of_this_interpreter():
    from pydoc_data.topics import topics

    text = whole("embedded")
    assert text == embedded_text()
    assert len(text) > 300_000
    first, last = min(topics), max(topics)
    assert text.startswith(topics[first].strip("\n") + "\n\n")
    assert text.endswith("\n\n" + topics[last].strip("\n") + "\n")
    assert "\r" not in text


def test_embedded_comes_in_pieces():
    pieces = list(read_text("embedded", 1000))
    assert {len(piece) for piece in pieces[:-1]} == {1000}
    assert "".join(pieces) == embedded_text()


def test_a_file_named_embedded_is_read_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, b"mine", "embedded")
    assert whole("./embedded") == "mine"
    assert whole(Path("embedded")) == "mine"
    assert whole("embedded") == embedded_text()


def test_embedded_without_the_module(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="no 'embedded' text; name a text file instead"):
        read_text("embedded")


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 1000])
def test_d07_mark_dropped_and_newlines_normalised(tmp_path, chunk):
    assert whole(write(tmp_path, b"\xef\xbb\xbfab\r\nab\r\n"), chunk) == "ab\nab\n"
    assert whole(write(tmp_path, b"\r\r\n\n\ra\r"), chunk) == "\n\n\n\na\n"
    assert whole(write(tmp_path, "a\ufeffb\u2028c\x85\x0c☃😀".encode()), chunk) == "a\ufeffb\u2028c\x85\x0c☃😀"
    assert whole(write(tmp_path, b"\xef\xbb\xbf\xef\xbb\xbfa"), chunk) == "\ufeffa", "one mark only"


@QUICK
@given(st.text(st.one_of(st.sampled_from("\r\n\ufeff☃😀é"), st.characters(exclude_characters="\0", codec="utf-8"))))
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_pieces_join_to_the_same_text(tmp_path_factory, chunk, text):
    kept = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    path = write(tmp_path_factory.getbasetemp(), text.encode(), f"pieces{chunk}.txt")
    if kept:
        pieces = list(read_text(path, chunk))
        assert "".join(pieces) == kept
        assert all(0 < len(piece) <= chunk + 1 for piece in pieces)
    else:
        with pytest.raises((DataError, FileError), match=r"empty|no text"):
            whole(path, chunk)


@pytest.mark.parametrize("chunk", [1, 2, 3, 1000])
def test_invalid_utf8_names_file_byte_and_offset(tmp_path, chunk):
    path = write(tmp_path, b"ab\xc3\xa9\xe9 c")
    with pytest.raises(DataError, match=r"a\.txt is not UTF-8 text: byte 0xE9 at offset 4 .*Save it as UTF-8.*iconv"):
        whole(path, chunk)
    path = write(tmp_path, b"abcd\xe2\x98")
    with pytest.raises(DataError, match=r"byte 0xE2 at offset 4 \(unexpected end of data\)"):
        whole(path, chunk)
    path = write(tmp_path, b"abcd\xe2\x98z")
    with pytest.raises(DataError, match=r"byte 0xE2 at offset 4"):
        whole(path, chunk)


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_binary_and_utf16_are_refused(tmp_path, chunk):
    with pytest.raises(DataError, match=r"is not text: it has a zero byte at offset 3\. .*\.npy or \.bin"):
        whole(write(tmp_path, b"abc\0\xff"), chunk)
    for codec in ("utf-16-le", "utf-16-be"):
        with pytest.raises(DataError, match="is UTF-16 text; save it as UTF-8"):
            whole(write(tmp_path, "\ufeffab".encode(codec)), chunk)


def test_missing_folder_empty_pipe(tmp_path):
    with pytest.raises(FileError, match=r"there is no text file '.*none\.txt'; check the name"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(FileError, match="is a folder; name the file inside it"):
        read_text(tmp_path)
    with pytest.raises(FileError, match=r"a\.txt' is empty \(0 bytes\)"):
        read_text(write(tmp_path, b""))
    with pytest.raises(DataError, match="holds no text: nothing but a byte order mark"):
        whole(write(tmp_path, b"\xef\xbb\xbf"))
    with pytest.raises(FileError, match="is empty; name a text file or use 'embedded'"):
        read_text("")
    with pytest.raises(FileError, match="cannot read 'a\\\\x00b'"):
        read_text("a\0b")
    with pytest.raises(FileError, match="cannot read"):
        read_text("x" * 5000)
    with pytest.raises(FileError, match=r"there is no text file 'embeded'; did you mean 'embedded'\?"):
        read_text("embeded")
    with pytest.raises(ConfigError, match="chunk_chars is 0"):
        read_text("embedded", 0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="a pipe or a device, which can be read once only"):
        read_text(tmp_path / "pipe")


def test_unreadable(tmp_path, monkeypatch):
    path = write(tmp_path, b"a")
    # The superuser may read everything, so the answer of the system is stood in for.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FileError, match="permission denied"):
        read_text(path)


def test_several_sources_in_order_with_a_newline_between_where_missing(tmp_path):
    a, b, c = (write(tmp_path, data, name) for data, name in ((b"x", "a"), (b"y\n", "b"), (b"\xef\xbb\xbfz\r", "c")))
    assert "".join(read_texts([a, b, c, a])) == "x\ny\nz\nx"
    assert "".join(read_texts([b, a], 1)) == "y\nx"
    assert "".join(read_texts([a, a])) == "x\nx"
