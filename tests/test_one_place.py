"""What several parts of the package need is written once, and a folder of a model alone is not taken for a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest
from train_runs import CONFIG, a_corpus, shape

import handgrad
from handgrad.cli import main
from handgrad.cli.chat import chat
from handgrad.cli.generate import generate
from handgrad.core.errors import ConfigError
from handgrad.train.loop import train

SOURCE = Path(handgrad.__file__).parent


def places(pattern: str) -> list[str]:
    found = (p for p in SOURCE.rglob("*.py") if re.search(pattern, p.read_text(encoding="utf-8")))
    return sorted(path.relative_to(SOURCE).as_posix() for path in found)


def test_a_bounded_file_is_read_in_one_place() -> None:
    assert places(r"\.read\(.*\+ 1\)") == ["data/files.py"]


def test_options_of_drawing_are_those_of_generate() -> None:
    ours, theirs = (get_type_hints(command, include_extras=True) for command in (chat, generate))
    shared = {*ours} & {*theirs} - {"context", "model", "return"}
    assert {"temperature", "top_k", "top_p", "min_p", "greedy", "seed", "stop", "dtype", "max_new_tokens"} < shared
    assert [name for name in sorted(shared) if ours[name] != theirs[name]] == []


@pytest.fixture
def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main.run(["import", "docs-1m", "--out", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    return tmp_path / "model"


def test_a_model_alone_is_no_run_to_go_on_with(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "--out", str(imported), "--resume"]) == 2
    assert capsys.readouterr().err == (
        f"handgrad: there is no run to resume in {str(imported)!r}: config.toml is missing. It holds a model alone, as "
        "handgrad import writes it, without data, settings and moments: write with it (handgrad generate), or train it "
        "on from Python (handgrad.load)\n"
    )


def test_a_run_is_not_written_over_a_model(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in imported.iterdir())
    why = f"{imported} already holds a model (state.json is there), and it is left as it is. Choose another folder"
    (imported.parent / "text.txt").write_text("the cat sat on the mat. " * 30)
    data, out = str(imported.parent / "text.txt"), str(imported)
    for command in (["train", data, "--steps", "1", "--out", out], ["demo", "--out", out]):
        assert main.run(command) == 2
        assert capsys.readouterr().err.endswith(f"handgrad: {why}\n")
    with pytest.raises(ConfigError, match="already holds a model"):
        train(imported, shape(a_corpus()), CONFIG, a_corpus())
    assert sorted(path.name for path in imported.iterdir()) == before


def test_the_checkpoint_of_a_run_names_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("the cat sat on the mat. " * 30)
    small = ["--layers", "1", "--heads", "1", "--width", "4", "--context", "8", "--steps", "1"]
    assert main.run(["train", str(text), "--out", str(run), *small]) == 0
    capsys.readouterr()
    assert main.run(["train", "--out", str(run / "checkpoints" / "step_000001"), "--resume"]) == 2
    assert f"It is a checkpoint of the run {run}; resume that" in capsys.readouterr().err


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "ids"])
def test_an_export_says_what_becomes_of_the_tokenizer(
    tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, run, out = tmp_path / "text.txt", tmp_path / "run", tmp_path / "out"
    text.write_text("the cat sat on the mat. " * 30)
    if tokenizer == "ids":
        import numpy as np

        text = tmp_path / "ids.npy"
        np.save(text, np.arange(600, dtype=np.uint16) % 7)
    small = ["--layers", "1", "--heads", "1", "--width", "4", "--context", "8", "--steps", "1"]
    assert main.run(["train", str(text), "--out", str(run), *small, "--tokenizer", tokenizer]) == 0
    capsys.readouterr()
    assert main.run(["export", str(run), "--out", str(out)]) == 0
    said, written = capsys.readouterr().err, {file.name for file in out.iterdir()}
    assert ("tokenizer.json" in written) == (tokenizer != "ids")
    if tokenizer == "ids":
        assert said == (
            "written are config.json and model.safetensors, not the tokenizer (ids): its texts are numbers, the ids "
            "themselves. handgrad.load(MODEL).tokenizer.encode(TEXT) gives the ids that it takes\n"
        )
        assert written == {"config.json", "model.safetensors"}
        assert main.run(["export", str(out), "--out", str(tmp_path / "again")]) == 0
        assert capsys.readouterr().err == "no tokenizer is written: this model came without one\n"
    assert main.run(["export", str(run), "--out", str(tmp_path / "bare"), "--no-tokenizer"]) == 0
    assert capsys.readouterr().err == ""
