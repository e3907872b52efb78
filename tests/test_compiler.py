"""A compiler that is there and does not work is noticed by compiling, before anything is written."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_generate_cache import random_model, some_ids
from train_runs import CONFIG, a_corpus

import handgrad as hg
from handgrad.cli import main
from handgrad.core import compiler
from handgrad.core.compiler import fault, no_compiler
from handgrad.core.errors import ConfigError
from handgrad.generate.generate import complete
from handgrad.train.config import TrainConfig
from handgrad.train.loop import train
from handgrad.train.prepare import prepared

SOURCE = Path(compiler.__file__).parents[1]
SHAPE = hg.GPT2Config(vocabulary=20, context=8, n_layers=1, n_heads=1, d_model=8)


@pytest.fixture(params=["false", "true"])
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that answers --version and makes nothing, or fails in everything."""
    path = tmp_path / f"c++-{request.param}"
    path.write_text(f"#!/bin/sh\n{request.param}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


def test_what_is_wrong_is_said_with_what_to_do(broken: Path) -> None:
    status = 1 if broken.name.endswith("false") else 0
    assert no_compiler() == (
        f"--compile was asked for and needs a C++ compiler, and {str(broken)!r}, which CXX names, does not compile "
        f"three lines: exit status {status} and no library; install g++ (and Python's headers, python3-dev), let CXX "
        "name a compiler that works, or leave --compile out"
    )


@pytest.mark.parametrize("name", ["no-such-compiler", ""])
def test_a_name_without_a_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", name)
    assert re.search(f"{name!r}, which CXX names, (is not there|cannot be run)", no_compiler())


def test_the_compiler_s_own_words_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c++"
    path.write_text("#!/bin/sh\necho 'In file included' >&2\necho 'fatal error: Python.h: No such file' >&2\nexit 1\n")
    path.chmod(0o755)
    assert fault(str(path)) == "does not compile three lines: fatal error: Python.h: No such file"
    path.with_name("text").write_text("no program")
    assert fault(str(path.with_name("text"))).startswith("cannot be run: ")


def test_it_is_tried_once_and_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def hangs(command: list[str]) -> None:
        calls.append(command)
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(compiler, "run", hangs)
    monkeypatch.setenv("CXX", "a compiler that hangs")
    assert no_compiler() == no_compiler() != ""
    assert len(calls) == 1
    assert calls[0][0] == "a compiler that hangs"


def test_nothing_is_written_for_a_run_that_cannot_be_compiled(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 30)
    assert main.run(["train", str(text), "--out", str(out), "--steps", "1", "--compile"]) == 2
    assert capsys.readouterr().err == f"handgrad: {no_compiler()}\n"
    with pytest.raises(ConfigError, match="does not compile three lines"):
        train(out, SHAPE, replace(CONFIG, compile=True), a_corpus())
    with pytest.raises(ConfigError, match="does not compile three lines"):
        prepared(hg.build(SHAPE), TrainConfig(compile=True))
    assert not out.exists()


def test_a_pass_that_cannot_be_compiled_is_refused_before_the_first_token(broken: Path) -> None:
    with pytest.raises(ConfigError, match=r"--compile was asked for and needs a C\+\+ compiler"):
        complete(random_model(), some_ids(5), 3, compiled=True)


def test_the_question_is_asked_in_one_place() -> None:
    asking = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"shutil\.which|\"CXX\"", path.read_text(encoding="utf-8"))
    ]
    assert asking == ["core/compiler.py"]
