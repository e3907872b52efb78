"""TrainConfig, config.toml and the schedule: what may be asked for, and how it is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from handgrad.core.errors import ConfigError, FileError, UnknownName
from handgrad.models.gpt2 import GPT2Config
from handgrad.train.config import RunFile, TrainConfig, available_device, read_toml, write_toml
from handgrad.train.schedule import lr_at

MODEL = GPT2Config(vocabulary=11, context=7, n_layers=1, n_heads=2, d_model=6, dropout=0.1, activation="relu")


def test_every_problem_is_told_at_once_in_the_flags_spelling() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(steps=0, batch_size=-1, lr=float("nan"), lr_floor=0.0, beta2=1.0, dtype="float16", device="gpu")
    assert str(caught.value) == (
        "--steps is 0, and must be at least 1; --batch-size is -1, and must be at least 1; "
        "--lr is nan, and must be a finite number; --beta2 is 1.0, and must be at least 0 and below 1; "
        "--dtype is 'float16', and must be one of float32, float64, bfloat16; "
        "--device is 'gpu', and must be cpu, cuda or cuda:N, N at most 99"
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("accumulate", 0, "--accumulate is 0, and must be at least 1"),
        ("accumulate", 2.0, "--accumulate is 2.0, and must be a whole number"),
        ("steps", True, "--steps is True, and must be a whole number"),
        ("steps", 2**63, "must be at most 9223372036854775807"),
        ("warmup", -1, "--warmup is -1, and must be at least 0"),
        ("seed", -1, "--seed is -1"),
        ("validate_every", 0, "--validate-every is 0"),
        ("save_every", 0, "--save-every is 0"),
        ("weight_decay", -0.1, "--weight-decay is -0.1, and must be at least 0"),
        ("clip", -1.0, "--clip is -1.0"),
        ("clip", float("inf"), "--clip is inf, and must be a finite number"),
        ("lr", "fast", "--lr is 'fast', and must be a finite number"),
        ("beta1", -0.1, "--beta1 is -0.1"),
        ("lr_floor", 0.5, "--lr-floor 0.5 is above --lr 0.001"),
        ("implementation", "quick", "--impl is 'quick', and must be one of auto, explicit, fused"),
        ("device", "cuda:", "--device is 'cuda:'"),
        ("device", "cuda:99999999999999999999", "--device is 'cuda:99999999999999999999', and must be cpu, cuda or"),
        ("device", "cuda:" + "9" * 5000, "9" * 52 + "...', and must be cpu, cuda or cuda:N, N at most 99"),
        ("device", "cuda:01", "--device is 'cuda:01'"),
        ("device", "cuda:-1", "--device is 'cuda:-1'"),
    ],
)
def test_each_field_is_checked(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{field: value})
    assert message in str(caught.value)
    assert ";" not in message or "; --" not in str(caught.value)


def test_zero_is_a_value_where_it_means_off() -> None:
    config = TrainConfig(clip=0.0, warmup=0, weight_decay=0, lr=0.0, lr_floor=0.0, beta1=0.0)
    assert (config.clip, config.warmup) == (0.0, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_that_is_not_there_is_one_plain_line() -> None:
    assert available_device(TrainConfig()).type == "cpu"
    with pytest.raises(ConfigError) as caught:
        available_device(TrainConfig(device="cuda:1"))
    assert str(caught.value) == "--device cuda:1 was asked for, and this machine has no CUDA device; use --device cpu"


def test_config_toml_comes_back_as_it_was(tmp_path: Path) -> None:
    config = TrainConfig(steps=7, lr=2e-4, clip=0.0, seed=2**63 - 1, implementation="explicit")
    data = {"sources": ["a.txt", 'odd "name"\n.txt'], "tokenizer": "chars", "tokens": "tokens"}
    write_toml(tmp_path / "config.toml", MODEL, config, {"data": data})
    file = read_toml(tmp_path / "config.toml")
    assert file.model_config == MODEL
    assert file.train_config == config
    assert file.data == data
    assert file.versions["torch"] == torch.__version__
    assert set(file.versions) == {"handgrad", "torch", "numpy", "python"}
    assert 'kind = "gpt2"' in (tmp_path / "config.toml").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_file_written_by_hand_may_give_a_part(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nlr = 1\nsteps = 5\n[model]\nn_layers = 2\n")
    file = read_toml(path)
    assert file == RunFile(model={"n_layers": 2}, train={"lr": 1.0, "steps": 5})
    assert type(file.train["lr"]) is float
    assert file.train_config == TrainConfig(steps=5, lr=1.0)
    with pytest.raises(ConfigError, match=r"\[model\]: vocabulary is missing"):
        _ = file.model_config


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("[train]\nbatchsize = 2", UnknownName, "named 'batchsize'; did you mean 'batch_size'?"),
        ("[trian]\nsteps = 2", UnknownName, "no table in .* named 'trian'; did you mean 'train'?"),
        ("[model]\nlayers = 2", UnknownName, "did you mean 'n_layers'?"),
        ("[data]\ntoken = 'a'", UnknownName, "did you mean 'tokens'?"),
        ("[train]\nsteps = 2.5", ConfigError, r"\[train\]: steps is 2.5, and must be a whole number"),
        ("[train]\nsteps = true", ConfigError, "steps is True, and must be a whole number"),
        ("[train]\nlr = '1'", ConfigError, "lr is '1', and must be a number"),
        ("[train]\nlr = [1.0]", ConfigError, "must be a number"),
        ("[model]\nbias = 1", ConfigError, r"\[model\]: bias is 1, and must be true or false"),
        ("[model]\nkind = 'lama'", UnknownName, "no kind of model in .* named 'lama'; did you mean 'llama'"),
        ("[model]\nkind = 'llama'\nrope = 3", ConfigError, "rope is 3, and must be a table"),
        ("[model]\nkind = 'llama'\nrope = {kind = 'liner'}", UnknownName, "did you mean 'linear'"),
        (
            "[model]\nkind = 'llama'\nrope = {kind = 'ntk', base = 'x'}",
            ConfigError,
            "base is 'x', and must be a number",
        ),
        ("[model]\nkind = 'llama'\nrope = {kind = 'ntk'}", ConfigError, r"\[model\], rope: .* needs its factor"),
        ("[data]\nsources = [1]", ConfigError, r"sources is \[1\], and must be a list of text"),
        ("train = 3", ConfigError, "train is 3, and must be a table"),
        ("[train\n", FileError, "is not TOML"),
        ("[train]\nseed = " + "9" * 5000, FileError, "is not TOML"),
        ("a = " + "[" * 20000, FileError, "is not TOML"),
        ("#" * (1 << 21), FileError, "more than 1048576 bytes, too many for such a file; it is not read"),
    ],
)
def test_config_toml_is_not_trusted(tmp_path: Path, content: str, error: type[Exception], message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(error, match=message):
        read_toml(path)


def test_values_that_cannot_be_are_refused_when_built(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[train]\nlr = nan\n[model]\nvocabulary = 5\nn_heads = 3\nd_model = 8\n")
    file = read_toml(path)
    with pytest.raises(ConfigError, match="--lr is nan"):
        _ = file.train_config
    with pytest.raises(ConfigError, match=r"\[model\]: d_model 8 is not a multiple of n_heads 3"):
        _ = file.model_config


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no configuration file"):
        read_toml(tmp_path / "gone.toml")
    with pytest.raises(FileError, match="there is no configuration file"):
        read_toml(tmp_path)
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="is not TOML"):
        read_toml(tmp_path / "a.toml")


SCHEDULE = TrainConfig(steps=30, warmup=10, lr=1.0, lr_floor=0.1)


def test_the_peak_is_at_optimiser_step_warmup_whatever_the_accumulation() -> None:
    for accumulate in (1, 4):
        rates = [lr_at(t, replace(SCHEDULE, accumulate=accumulate)) for t in range(1, 31)]
        assert max(range(30), key=rates.__getitem__) + 1 == 10
        assert rates[9] == 1.0
        assert rates[0] == pytest.approx(0.1, abs=1e-15)
        assert rates[4] == pytest.approx(0.5, abs=1e-15)
        assert rates[19] == pytest.approx(0.55, abs=1e-15)  # half of the cosine: the middle of peak and floor
        assert rates[14] == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, abs=1e-15)
        assert rates[29] == pytest.approx(0.1, abs=1e-15)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (2, 0), (5, 10), (10, 10), (11, 10), (7, 1)])
def test_finite_and_monotone_after_the_peak(steps: int, warmup: int) -> None:
    config = replace(SCHEDULE, steps=steps, warmup=warmup)
    rates = [lr_at(t, config) for t in range(1, steps + 20)]
    assert all(math.isfinite(rate) and 0 < rate <= 1.0 for rate in rates)
    peak = max(range(len(rates)), key=rates.__getitem__)
    assert peak + 1 == min(max(warmup, 1), steps)
    assert rates[peak] == (1.0 if warmup <= steps else steps / warmup)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[steps:] == [0.1] * 19
