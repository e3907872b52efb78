"""`handgrad finetune` and `handgrad merge` as people use them: the folder they leave, going on, adapters as MODEL."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import handgrad as hg
from handgrad.adapt.lora import base_of
from handgrad.adapt.peft import CONFIG, WEIGHTS
from handgrad.cli import main
from handgrad.core.errors import FileError

TEXT = "the cat sat on the mat, and the dog sat on the log.\n" * 20
OTHER = "a bird flew over the sea, then a fish swam under it.\n" * 20
SHAPE = ["--layers", "2", "--heads", "2", "--width", "16", "--context", "12"]
FEW = ["--batch-size", "2", "--lr", "0.01", "--validate-every", "3", "--save-every", "3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small trained run `base`, a second text, and an adapter `tuned` of six steps on it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT + OTHER, encoding="utf-8")
    (folder / "other.txt").write_text(OTHER, encoding="utf-8")
    train = ["train", str(folder / "text.txt"), "--tokenizer", "chars", "--steps", "20", "--lr", "0.02", *SHAPE]
    assert main.run([*train, "--out", str(folder / "base")]) == 0
    tune = ["finetune", str(folder / "base"), str(folder / "other.txt"), "--steps", "6", "--rank", "2", *FEW]
    assert main.run([*tune, "--targets", "attention.*, up", "--dropout", "0.1", "--out", str(folder / "tuned")]) == 0
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main.run([str(a) for a in arguments]) == 2
    return capsys.readouterr().err


def test_the_folder_is_an_adapter_and_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(p.name for p in (runs / "tuned").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "checkpoints",
        "config.toml",
        "data",
        "metrics.jsonl",
        "report.html",
    ]
    config = json.loads((runs / "tuned" / CONFIG).read_text())
    assert config["base_model_name_or_path"] == str((runs / "base").resolve())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 16, 0.1)
    assert config["target_modules"] == ["attn.c_attn", "attn.c_proj", "mlp.c_fc"]
    tensors = load_file(runs / "tuned" / WEIGHTS)
    assert len(tensors) == 2 * 3 * 2
    assert tensors["base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"].shape == (48, 2)
    assert all(float(x.norm()) > 0 for x in tensors.values())
    table = tomllib.loads((runs / "tuned" / "config.toml").read_text())["finetune"]
    assert (table["rank"], table["window"], table["full"]) == (2, 12, False)
    records = [json.loads(line) for line in (runs / "tuned" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["val_loss_nats"] < records[0]["val_loss_nats"]
    model, base = hg.load(runs / "tuned"), hg.load(runs / "base")
    assert torch.equal(base_of(model).params.flat, base.params.flat)
    assert model.tokenizer.decode(model.tokenizer.encode("the cat")) == "the cat"


@pytest.mark.parametrize("command", ["generate", "eval", "explain", "verify"])
def test_an_adapter_is_a_model(command: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"generate": ["--prompt", "a ", "--max-new-tokens", "5"], "eval": [str(runs / "other.txt")]}
    assert main.run([command, str(runs / "tuned"), *more.get(command, [])]) == 0
    out = capsys.readouterr().out
    if command == "explain":
        assert "2 x  blocks.*.attention.query.lora.B" in out
        assert "LowRank " in out
    if command == "verify":
        assert "rows hold" in out


def test_a_run_goes_on_as_if_it_had_never_stopped(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "tuned", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step_000006")
    (tmp_path / "again" / WEIGHTS).unlink()
    assert main.run(["finetune", "--out", str(tmp_path / "again"), "--resume"]) == 0
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (runs / "tuned" / WEIGHTS).read_bytes()
    assert (tmp_path / "again" / CONFIG).read_bytes() == (runs / "tuned" / CONFIG).read_bytes()
    assert main.run(["finetune", "--out", str(tmp_path / "again"), "--resume", "--steps", "9"]) == 0
    assert (tmp_path / "again" / WEIGHTS).read_bytes() != (runs / "tuned" / WEIGHTS).read_bytes()
    assert tomllib.loads((tmp_path / "again" / "config.toml").read_text())["finetune"]["rank"] == 2


def test_another_adapter_on_top(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "second"
    tune = ["finetune", str(runs / "tuned"), str(runs / "text.txt"), "--steps", "3", "--rank", "3", *FEW]
    assert main.run([*tune, "--out", str(out)]) == 0
    two, one = hg.load(out), hg.load(runs / "tuned")
    assert [b.layout.count for b in two.frozen] == [hg.load(runs / "base").params.layout.count, one.params.layout.count]
    assert torch.equal(two.frozen[1].flat, one.params.flat)
    assert main.run(["merge", str(out), "--out", str(tmp_path / "merged")]) == 0
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    assert float((hg.load(tmp_path / "merged")(ids) - two(ids)).norm() / two(ids).norm()) < 1e-5


def test_merging_leaves_the_adapter_as_it_is(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (runs / "tuned" / WEIGHTS).read_bytes()
    assert main.run(["merge", str(runs / "tuned"), "--out", str(tmp_path / "m"), "--dtype", "bfloat16"]) == 0
    assert "rounded to bfloat16" in capsys.readouterr().err
    assert (runs / "tuned" / WEIGHTS).read_bytes() == before
    assert main.run(["merge", str(runs / "tuned"), "--out", str(tmp_path / "n"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == hg.load(runs / "base").params.layout.count
    assert "exists and is not an empty folder" in said(capsys, "merge", runs / "tuned", "--out", tmp_path / "n")
    assert "without an adapter" in said(capsys, "merge", runs / "base", "--out", tmp_path / "x")
    assert "merge them first" in said(capsys, "export", runs / "tuned", "--out", tmp_path / "x")
    assert "merge them first" in said(capsys, "import", runs / "tuned", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_full_trains_all_parameters_and_leaves_a_run(runs: Path, tmp_path: Path, capsys) -> None:
    tune = ["finetune", str(runs / "base"), str(runs / "other.txt"), "--full", "--steps", "6", *FEW, "--context", "7"]
    assert main.run([*tune, "--out", str(tmp_path / "full")]) == 0
    assert not (tmp_path / "full" / CONFIG).exists()
    found, base = hg.load(tmp_path / "full"), hg.load(runs / "base")
    assert found.params.keys() == base.params.keys()
    assert all(not torch.equal(x, base.params[name]) for name, x in found.params.items())
    records = [json.loads(line) for line in (tmp_path / "full" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["val_loss_nats"] < records[0]["val_loss_nats"] < 3
    assert "6 steps of 14 tokens" in capsys.readouterr().err
    assert main.run(["finetune", "--out", str(tmp_path / "full"), "--resume", "--steps", "7"]) == 0


def test_what_cannot_be_is_refused_before_anything_is_written(runs: Path, tmp_path: Path, capsys) -> None:
    base, text, out = runs / "base", runs / "other.txt", tmp_path / "out"
    begin = ["finetune", base, text, "--out", out]
    assert "did you mean 'attention.query'" in said(capsys, *begin, "--targets", "attention.qury")
    assert "--context is 13, and the model's context is 12" in said(capsys, *begin, "--context", "13")
    assert "takes no --rank" in said(capsys, *begin, "--full", "--rank", "2")
    assert "--compile cannot go with --dropout" in said(capsys, *begin, "--compile", "--dropout", "0.1")
    assert "rank of a low-rank update is 0" in said(capsys, *begin, "--rank", "0")
    assert "--steps is 0" in said(capsys, *begin, "--steps", "0")
    assert "DATA is missing" in said(capsys, "finetune", base, "--out", out)
    assert "MODEL is missing" in said(capsys, "finetune", "--out", out)
    assert "there is no model 'gone'" in said(capsys, "finetune", "gone", text, "--out", out)
    (tmp_path / "odd.txt").write_text("ß")
    assert "ß" in said(capsys, "finetune", base, tmp_path / "odd.txt", "--out", out)
    assert not (out / "config.toml").exists()
    assert "already holds a run" in said(capsys, "finetune", base, text, "--out", runs / "tuned")
    assert "leave out --rank" in said(capsys, "finetune", "--out", runs / "tuned", "--resume", "--rank", "3")
    assert "resume it with handgrad train" in said(capsys, "finetune", "--out", base, "--resume")
    assert "resume it with handgrad finetune" in said(capsys, "train", "--out", runs / "tuned", "--resume")


def test_a_run_goes_on_with_the_model_that_it_began_with_alone(runs: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(runs / "base", tmp_path / "base")
    tune = ["finetune", tmp_path / "base", runs / "other.txt", "--out", tmp_path / "tuned", "--steps", "2", *FEW]
    assert main.run([str(a) for a in tune]) == 0
    assert main.run(["train", "--out", str(tmp_path / "base"), "--resume", "--steps", "21"]) == 0
    text = said(capsys, "finetune", "--out", tmp_path / "tuned", "--resume", "--steps", "4")
    assert "is not the one that this run began with" in text
    with pytest.raises(FileError, match="beside a frozen model, not a model"):
        hg.load(tmp_path / "tuned" / "checkpoints" / "step_000002")
