"""Whole runs: what they leave, and what is checked before the first step."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from train_runs import CONFIG, TEXT, Seen, a_corpus, a_whole_run, metrics, shape, weights

import handgrad as hg
from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.data import Corpus
from handgrad.data.tokenizers import Ids
from handgrad.train import checkpoint, loop, start
from handgrad.train.config import read_toml
from handgrad.train.evaluate import evaluate
from handgrad.train.loop import Result, resume, train
from handgrad.train.schedule import lr_at
from handgrad.train.size import least_parameters, size_problem


@pytest.fixture(name="corpus")
def the_corpus() -> Corpus:
    return a_corpus()


@pytest.fixture(name="whole")
def the_whole_run() -> tuple[Path, Seen, Result]:
    return a_whole_run()


def test_a_run_leaves_what_it_promises(corpus: Corpus, whole) -> None:
    folder, seen, result = whole
    assert sorted(os.listdir(folder)) == ["checkpoints", "config.toml", "metrics.jsonl"]
    assert sorted(os.listdir(folder / "checkpoints")) == ["step_000018", "step_000020"]
    assert result == seen.results[0]
    assert (result.step, result.interrupted) == (20, False)
    assert result.checkpoint == folder / "checkpoints" / "step_000020"
    assert result.tokens_seen == 20 * 3 * 8
    assert result.tokens_per_s > 0
    assert result.elapsed_s > 0
    records = metrics(folder)
    assert records == seen.records
    assert [r["step"] for r in records] == list(range(21))
    assert [r["step"] for r in records if "val_loss_nats" in r] == [0, 8, 16, 20]
    assert "loss_nats" not in records[0]
    assert records[0]["val_loss_nats"] == pytest.approx(math.log(corpus.tokenizer.vocab_size), abs=0.05)
    assert result.val_loss_nats == records[-1]["val_loss_nats"] < records[0]["val_loss_nats"]
    assert result.loss_nats == records[-1]["loss_nats"]
    for r in records[1:]:
        assert r["lr"] == lr_at(r["step"], CONFIG)
        assert set(r) - {"val_loss_nats"} == {
            "step",
            "loss_nats",
            "lr",
            "grad_norm",
            "tokens_per_s",
            "peak_rss_bytes",
        }
        assert all(math.isfinite(value) for value in r.values())
        assert r["peak_rss_bytes"] > 1e7
    assert seen.info["n_training_tokens"] == int(len(TEXT) * 0.9)
    assert seen.info["n_training_tokens"] + seen.info["n_validation_tokens"] == len(TEXT)
    assert seen.info["optimiser"] == "AdamW, torch's fused operator"
    assert seen.messages == []


def test_the_validation_loss_is_that_of_the_loaded_model(corpus: Corpus, whole) -> None:
    folder, _, result = whole
    model = hg.load(folder)
    loss, n = evaluate(model, corpus.split(0.9)[1], 8, 5)
    assert n == len(TEXT) - int(len(TEXT) * 0.9) - 1
    assert loss == pytest.approx(result.val_loss_nats, rel=1e-5)


def test_best_and_last_losses_are_in_the_checkpoint(whole) -> None:
    folder, seen, result = whole
    progress = checkpoint.load(result.checkpoint).progress
    losses = {r["step"]: r["val_loss_nats"] for r in seen.records if "val_loss_nats" in r}
    assert progress.val_loss_nats == losses[20]
    assert progress.best_val_loss_nats == min(losses.values())
    assert losses[progress.best_step] == min(losses.values())
    assert progress.tokens_seen == result.tokens_seen
    older = checkpoint.load(folder / "checkpoints" / "step_000018").progress
    assert (older.val_loss_nats, older.loss_nats) == (losses[16], seen.records[18]["loss_nats"])


def test_config_toml_says_what_was_done(corpus: Corpus, whole) -> None:
    file = read_toml(whole[0] / "config.toml")
    assert file.train_config == CONFIG
    assert file.model_config == shape(corpus)
    assert file.data["sources"] == [str(corpus.folder.parent / "text.txt")]
    assert file.data["tokenizer"] == "chars"
    assert Path(file.data["tokens"]) == corpus.folder
    assert file.versions["torch"] == torch.__version__


def test_a_run_shorter_than_every_interval_is_saved(corpus: Corpus, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=1, validate_every=100, save_every=100)
    result = train(tmp_path / "run", shape(corpus), config, corpus)
    assert result.checkpoint.name == "step_000001"
    assert [("val_loss_nats" in r) for r in metrics(tmp_path / "run")] == [True, True]


def test_accumulation_counts_optimiser_steps(corpus: Corpus, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=6, accumulate=4, batch_size=2, clip=0.01)
    result = train(tmp_path / "run", shape(corpus), config, corpus)
    records = metrics(tmp_path / "run")[1:]
    assert result.tokens_seen == 6 * 4 * 2 * 8
    assert max(records, key=lambda r: r["lr"])["step"] == 4 == config.warmup
    assert min(r["grad_norm"] for r in records) > 0.01, "the norm is the one from before clipping"


def test_the_micro_batches_of_a_step_are_drawn_one_by_one(corpus: Corpus, tmp_path: Path, monkeypatch) -> None:
    drawn, real = [], loop.training_windows

    def noted(*where):
        drawn.append(where[3:])
        return real(*where)

    monkeypatch.setattr(loop, "training_windows", noted)
    train(tmp_path / "run", shape(corpus), replace(CONFIG, steps=2, accumulate=3, seed=7), corpus)
    assert drawn == [(7, step, micro) for step in (1, 2) for micro in (0, 1, 2)]


def test_float64_and_the_explicit_formulas(corpus: Corpus, tmp_path: Path) -> None:
    config, seen = replace(CONFIG, steps=2, dtype="float64", implementation="explicit"), Seen()
    train(tmp_path / "run", shape(corpus), config, corpus, observer=seen)
    assert weights(tmp_path / "run").dtype == torch.float64
    assert seen.info["optimiser"] == "AdamW, explicit formulas"
    assert resume(tmp_path / "run", steps=3).step == 3


# What is checked before the first step, and before anything is written.


def by_hand(tmp_path: Path, tokens: np.ndarray, vocabulary: int) -> Corpus:
    return Corpus(tokens, Ids(vocabulary), tmp_path / "tokens", len(tokens))


def refused(folder: Path, error: type[Exception], corpus: Corpus, model: hg.GPT2Config, **how) -> str:
    with pytest.raises(error) as caught:
        train(folder, model, replace(CONFIG, **how), corpus)
    assert not folder.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_id_outside_the_vocabulary_is_found_with_its_position(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(start, "_CHUNK", 100)
    tokens = np.zeros(1000, np.uint16)
    tokens[[345, 700]] = 11
    tokens[346] = 7
    message = refused(tmp_path / "run", DataError, by_hand(tmp_path, tokens, 11), hg.GPT2Config(11, 8, 1, 1, 8))
    assert message == (
        "the largest token id is 11, first at position 345, but the model's vocabulary is 11 (ids 0 to 10). "
        "Give the model 12 tokens or more, or other data"
    )


@pytest.mark.parametrize("n", [1, 10, 16])
def test_fewer_tokens_than_a_window_are_refused(tmp_path: Path, n: int) -> None:
    corpus = by_hand(tmp_path, np.zeros(n, np.uint8), 3)
    message = refused(tmp_path / "run", DataError, corpus, hg.GPT2Config(3, 16, 1, 1, 8))
    assert message.startswith(f"there are {n} tokens to train on, but context 16 needs at least 17")


def test_one_window_exactly_is_trained_on(tmp_path: Path) -> None:
    seen, corpus = Seen(), by_hand(tmp_path, np.arange(17, dtype=np.uint8), 17)
    model = hg.GPT2Config(17, 16, 1, 1, 8)
    result = train(tmp_path / "run", model, replace(CONFIG, steps=3), corpus, observer=seen)
    assert (result.step, result.val_loss_nats) == (3, None)
    assert seen.info["n_training_tokens"] == 17
    assert seen.messages == [
        "validation is off: of 17 tokens none can be set aside, because a window of context 16 takes 17; "
        "all of them are trained on"
    ]


def test_validation_that_cannot_be_is_known_before_the_first_step(tmp_path: Path) -> None:
    def at(record) -> None:
        assert seen.messages

    seen = Seen(at)
    corpus = by_hand(tmp_path, np.zeros(40, np.uint8), 3)
    result = train(tmp_path / "run", hg.GPT2Config(3, 16, 1, 1, 8), replace(CONFIG, steps=9), corpus, observer=seen)
    assert result.val_loss_nats is None
    assert seen.messages[0].startswith("validation is off: its part of the data has 4 tokens")
    assert [r["step"] for r in seen.records] == list(range(1, 10))
    assert not any("val_loss_nats" in r for r in metrics(tmp_path / "run"))


def test_a_folder_with_a_run_is_left_as_it_is(corpus: Corpus, whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("config.toml", "metrics.jsonl", "checkpoints"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match=rf"already holds a run \({name} is there\), and it is left as it is"):
            train(folder, shape(corpus), CONFIG, corpus)
        assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, "mine")]
        (folder / name).unlink()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot use .*file.* as a run folder"):
        train(tmp_path / "file" / "run", shape(corpus), CONFIG, corpus)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_that_is_not_there(corpus: Corpus, tmp_path: Path) -> None:
    message = refused(tmp_path / "run", ConfigError, corpus, shape(corpus), device="cuda")
    assert message == "--device cuda was asked for, and this machine has no CUDA device; use --device cpu"


def test_too_large_for_the_memory_is_one_plain_line(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is not enough memory.*Use a smaller --batch-size"):
        train(tmp_path / "run", shape(corpus), replace(CONFIG, batch_size=10**13), corpus)


@pytest.mark.parametrize("how", [{"d_model": 2**20}, {"n_layers": 10_000, "d_model": 10**4}])
def test_a_model_too_large_for_the_memory_is_refused_before_it_is_built(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, int]
) -> None:
    monkeypatch.setattr("handgrad.train.loop.build", lambda *_: pytest.fail("it was built"))
    monkeypatch.setattr("handgrad.train.size.memory_bytes", lambda: 25_000_000_000)
    message = refused(tmp_path / "run", ConfigError, corpus, shape(corpus, **how))
    count = least_parameters(shape(corpus, **how))
    assert message == (
        f"there is not enough memory: {count:,} parameters with their gradient and AdamW's two moments take "
        f"{16 * count:,} bytes, and this machine has 25,000,000,000. Use a smaller --width, --layers or --context"
    )


def test_a_model_that_fits_or_whose_machine_does_not_say_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hg.GPT2Config(vocabulary=65)
    needed = 16 * least_parameters(model)
    for memory, fits in ((needed, True), (needed - 1, False), (None, True)):
        monkeypatch.setattr("handgrad.train.size.memory_bytes", lambda memory=memory: memory)
        assert (size_problem(model, CONFIG) is None) is fits
        assert size_problem(model, replace(CONFIG, device="cuda")) is None
        assert (size_problem(model, replace(CONFIG, dtype="float64")) is None) is (memory is None)


def test_the_estimate_is_just_below_the_parameters_that_are_built(corpus: Corpus) -> None:
    for how in ({}, {"tied": False, "d_mlp": 24, "n_layers": 3, "context": 5}):
        model = shape(corpus, bias=False, **how)
        gains = (2 * model.n_layers + 1) * model.d_model
        assert least_parameters(model) + gains == hg.build(model, 0).params.layout.count
