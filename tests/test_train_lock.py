"""One process a run folder: the second is refused, a killed one leaves nothing that locks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from train_runs import CONFIG, a_corpus, shape

from handgrad.cli import main
from handgrad.core.errors import ConfigError, FileError
from handgrad.train.lock import held
from handgrad.train.loop import resume, train

pytest.importorskip("fcntl", reason="the system has no such locks")

HOLD = (
    "import sys; from pathlib import Path; from handgrad.train.lock import held\n"
    "with held(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds tmp_path/run."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_another_process_is_refused_until_it_ends(
    tmp_path: Path, other: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, corpus = tmp_path / "run", a_corpus()
    message = (
        f"process {other.pid} is training in {run}, and two would spoil each other's files; "
        "wait until it ends, stop it, or choose another folder"
    )
    with pytest.raises(ConfigError) as caught:
        train(run, shape(corpus), CONFIG, corpus)
    assert str(caught.value) == message
    assert main.run(["train", "embedded", "--out", str(run)]) == 2
    assert capsys.readouterr().err == f"handgrad: {message}\n"
    assert os.listdir(run) == [".lock"], "not even the tokens were written"
    other.kill()
    other.wait(30)
    assert (run / ".lock").exists()
    with held(run):
        assert (run / ".lock").read_text() == f"{os.getpid()}\n"
    assert os.listdir(run) == []


def test_a_run_that_another_process_resumes_is_left_as_it_is(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    run = tmp_path / "run"
    unfinished = run / "checkpoints" / ".unfinished-step_000003-1"
    unfinished.mkdir(parents=True)
    (run / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=rf"process {other.pid} is training in .*run, and two would"):
        resume(run)
    assert unfinished.is_dir()


def test_a_thread_may_ask_again_and_another_may_not(tmp_path: Path) -> None:
    caught: list[ConfigError] = []

    def try_it() -> None:
        try:
            with held(tmp_path):
                pass
        except ConfigError as error:
            caught.append(error)

    with held(tmp_path):
        with held(tmp_path / ".." / tmp_path.name):
            pass
        assert (tmp_path / ".lock").exists()
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert str(caught[0]).startswith(f"process {os.getpid()} is training in {tmp_path}, and two would")
    assert not (tmp_path / ".lock").exists()


def test_what_fails_leaves_no_empty_folders_and_what_it_wrote_stays(tmp_path: Path) -> None:
    for n, kept in ((1, False), (2, True)):
        run = tmp_path / f"new{n}" / "run"
        with pytest.raises(FileNotFoundError), held(run):  # noqa: PT012
            if kept:
                (run / "file").write_text("x")
            (run / "missing").read_text()
        assert run.exists() is run.parent.exists() is kept
    assert os.listdir(tmp_path / "new2" / "run") == ["file"]


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/run"):
        with pytest.raises(FileError, match=rf"cannot use '.*{name}' as a run folder: "), held(tmp_path / name):
            pass
    (tmp_path / "other").write_text("")
    (tmp_path / ".lock").symlink_to("other")
    with pytest.raises(FileError, match="as a run folder: Too many levels of symbolic links"), held(tmp_path):
        pass
    assert (tmp_path / "other").read_text() == ""


def test_an_error_of_the_block_is_not_said_to_be_the_folders(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="of the block"), held(tmp_path):
        raise PermissionError(13, "of the block")
