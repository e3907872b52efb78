"""Prepared files: whole or none, checked when opened, made in memory that does not grow with the data."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from handgrad.core.errors import DataError, FileError
from handgrad.data import Chars, open_corpus, prepare, save_tokenizer

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


def test_error_while_writing_leaves_the_old_files_as_they_were(tmp_path, out):
    prepare([write(tmp_path, b"old text")], "chars", out)
    before = {name: (out / name).read_bytes() for name in FILES}

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([write(tmp_path, b"new text, longer")], "chars", out, progress=stop)
    assert names(out) == FILES
    assert {name: (out / name).read_bytes() for name in FILES} == before
    assert open_corpus(out).tokenizer.decode(open_corpus(out).tokens) == "old text"


def test_full_disk_is_a_plain_error_and_nothing_is_lost(tmp_path, out, monkeypatch):
    prepare([write(tmp_path, b"old text")], "chars", out)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"cannot write .*tokens\.npy: No space left on device\. .*unchanged"):
        prepare([write(tmp_path, b"new text, longer")], "chars", out)
    monkeypatch.undo()
    assert names(out) == FILES
    assert open_corpus(out).n_tokens == 8


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_run_leaves_the_old_files_and_its_rest_goes_at_the_next(tmp_path, out):
    prepare([write(tmp_path, b"old text")], "chars", out)
    new = write(tmp_path, b"new text, longer", "new.txt")
    program = "import os, sys; from handgrad.data import prepare; "
    program += "prepare([sys.argv[1]], 'bytes', sys.argv[2], progress=lambda d, t: os.kill(os.getpid(), 9))"
    killed = subprocess.run([sys.executable, "-c", program, new, str(out)], env=environment(), check=False)
    assert killed.returncode == -9
    partial = [name for name in names(out) if name.endswith(".partial")]
    assert len(partial) == 3
    assert open_corpus(out).tokenizer.decode(open_corpus(out).tokens) == "old text"
    write(out, b"kept", "notes.partial")
    write(out, b"kept", ".other.partial")
    assert prepare([new], "bytes", out).n_tokens == 16
    assert names(out) == [".other.partial", *FILES[:1], "notes.partial", *FILES[1:]]


def test_killed_between_the_renames_is_noticed_and_can_be_repaired(tmp_path, out, monkeypatch):
    prepare([write(tmp_path, b"old text")], "bytes", out)
    real, calls = os.replace, []

    def once(source, target):
        calls.append(target)
        if len(calls) > 1:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        prepare([write(tmp_path, b"new text")], "bytes", out)
    monkeypatch.undo()
    assert Path(calls[0]).name == "tokens.npy"
    with pytest.raises(FileError, match=r"tokens\.npy is not the file that .*corpus\.json describes.*Prepare the data"):
        open_corpus(out)
    assert prepare([write(tmp_path, b"new text")], "bytes", out).n_tokens == 8


def test_source_that_changes_meanwhile_is_noticed(tmp_path, out):
    for grown in (b"ab" * 5, b"Z" + b"ab" * 4 + b"\n", b"ba" * 2):
        source = write(tmp_path, b"ab" * 3)
        corpus_before = prepare([source], "bytes", out)

        def change(done, total, grown=grown, source=source):
            Path(source).write_bytes(grown)
            os.utime(source, ns=(1, 1))

        with pytest.raises(DataError, match="a data file changed while it was read"):
            prepare([source], "bytes", out, progress=change)
        assert corpus_before.tokens.tolist() == open_corpus(out).tokens.tolist()


def test_second_pass_never_wraps_an_id_that_does_not_fit(tmp_path, out, monkeypatch):
    source = write(tmp_path, b"ab")
    for pieces in ([[0, 256]], [[0]], [[0, 1, 2]], [[0], [1], [1]]):
        monkeypatch.setattr("handgrad.data.tokens._second_pass", lambda *_, p=pieces: iter([np.array(q) for q in p]))
        with pytest.raises(DataError, match="a data file changed"):
            prepare([source], "bytes", out)


def test_files_of_others_are_not_replaced(tmp_path, out):
    out.mkdir()
    foreign = write(out, b'{"model": {"type": "BPE"}}', "tokenizer.json")
    with pytest.raises(FileError, match=r"its tokenizer\.json would be lost: .*Hugging Face"):
        prepare([write(tmp_path, b"ab")], "bytes", out)
    assert names(out) == ["tokenizer.json"]
    os.unlink(foreign)
    np.save(out / "tokens.npy", np.arange(3))
    with pytest.raises(FileError, match=r"has a tokens\.npy that handgrad did not write"):
        prepare([str(out / "tokens.npy")], "ids", out)
    assert np.load(out / "tokens.npy").dtype == np.int64
    write(out, b"", ".corpus.json.1.partial")
    assert prepare([write(tmp_path, b"ab")], "bytes", out).n_tokens == 2


def test_links_are_not_written_through(tmp_path, out):
    out.mkdir()
    victim = write(tmp_path, b"precious")
    os.symlink(victim, out / f".tokens.npy.{os.getpid()}.partial")
    prepare([write(tmp_path, b"ab", "b.txt")], "bytes", out)
    assert Path(victim).read_bytes() == b"precious"


def test_a_left_over_of_the_same_name_is_no_obstacle(tmp_path):
    victim = write(tmp_path, b"precious")
    os.symlink(victim, tmp_path / f".t.json.{os.getpid()}.partial")
    save_tokenizer(Chars.of("ab"), tmp_path / "t.json")
    assert Path(victim).read_bytes() == b"precious"
    assert names(tmp_path) == ["a.txt", "t.json"]


def test_all_bytes_are_on_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    events = []
    sync, replace, close = os.fsync, os.replace, os.close

    def synced(handle):
        found = os.fstat(handle)
        events.append("folder" if stat.S_ISDIR(found.st_mode) else found.st_size)
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    monkeypatch.setattr(os, "close", lambda handle: (events.append("close"), close(handle)))
    save_tokenizer(Chars.of("ab"), tmp_path / "t.json")
    assert events == [(tmp_path / "t.json").stat().st_size, "rename", "folder", "close"]


def test_folder_that_cannot_be(tmp_path):
    blocked = write(tmp_path, b"file")
    for folder, reason in ((blocked, "File exists"), (blocked + "/x", "Not a directory"), ("a\0b", "null byte")):
        with pytest.raises(FileError, match=rf"cannot use .* as a folder for tokens: .*{reason}"):
            prepare([blocked], "bytes", folder)


def test_open_corpus_refuses_what_is_missing_or_damaged(tmp_path, out):
    source = write(tmp_path, b"abcabc")
    with pytest.raises(FileError, match=r"has no prepared data: corpus\.json is missing"):
        open_corpus(out)
    prepare([source], "chars", out)
    good = {name: (out / name).read_bytes() for name in FILES}

    def damaged(name, data, message):
        (out / name).write_bytes(data)
        with pytest.raises(FileError, match=message):
            open_corpus(out)
        (out / name).write_bytes(good[name])

    damaged("tokens.npy", good["tokens.npy"][:-1], r"not a whole \.npy array")
    damaged("tokens.npy", good["tokens.npy"][:-1] + b"\x03", r"has id 3 at position 5, outside the vocabulary of 3")
    damaged("tokens.npy", good["tokens.npy"][:-1] + b"\x01", r"tokens\.npy is not the file that")
    damaged("tokens.npy", b"", "is empty")
    damaged("corpus.json", b"{}", "not a corpus description of format 1")
    damaged("corpus.json", b"[]", "not a corpus description of format 1")
    damaged("corpus.json", b"{", "is not JSON")
    damaged("corpus.json", good["corpus.json"].replace(b'"n_tokens": 6', b'"n_tokens": 7'), r"tokens\.npy is not the")
    damaged("tokenizer.json", b"{}", "other kind")
    save_tokenizer(Chars.of("abd"), out / "tokenizer.json")
    with pytest.raises(FileError, match=r"tokenizer\.json is not the file that"):
        open_corpus(out)
    save_tokenizer(Chars.of("abc"), out / "tokenizer.json")
    np.save(out / "tokens.npy", np.zeros(6, np.uint16))
    with pytest.raises(FileError, match=r"holds shape \(6,\) of type uint16; expected 1-D uint8"):
        open_corpus(out)
    np.save(out / "tokens.npy", np.zeros((2, 3), np.uint8))
    with pytest.raises(FileError, match=r"holds shape \(2, 3\)"):
        open_corpus(out)
    os.unlink(out / "tokens.npy")
    with pytest.raises(FileError, match="there is no token file"):
        open_corpus(out)


def test_open_corpus_checks_every_piece(tmp_path, out, monkeypatch):
    prepare([write(tmp_path, b"abcabcabc")], "chars", out)
    monkeypatch.setattr("handgrad.data.corpus._CHUNK", 4)
    assert open_corpus(out).n_tokens == 9
    data = bytearray((out / "tokens.npy").read_bytes())
    data[-3] = 7
    (out / "tokens.npy").write_bytes(data)
    with pytest.raises(FileError, match="has id 7 at position 6, outside the vocabulary of 3"):
        open_corpus(out)


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src"), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("spec", ["bytes", "chars"])
def test_d09_allocations_do_not_grow_with_the_text(tmp_path, out, spec):
    line = "all work and no play ☃\r\n".encode()
    peaks = []
    for n_bytes in (6_000_000, 30_000_000):
        source = write(tmp_path, line * (n_bytes // len(line)))
        tracemalloc.start()
        try:
            corpus = prepare([source], spec, out)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert corpus.n_tokens > 0.8 * n_bytes
    assert peaks[1] < 1.02 * peaks[0]
    assert peaks[1] < 40_000_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the process figures of Linux")
def test_d09_resident_memory_is_bounded(tmp_path, out):
    line = "all work and no play ☃\r\n".encode()
    source = write(tmp_path, line * (60_000_000 // len(line)))
    program = textwrap.dedent("""
        import re, sys
        from handgrad.data import prepare
        def peak():
            return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
        before = peak()
        corpus = prepare([sys.argv[1]], "chars", sys.argv[2])
        print(peak() - before)
    """)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, source, str(out)],
        env=environment(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert int(done.stdout) < 55_000_000
