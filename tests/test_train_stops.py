"""Every way to stop early: a value that is not finite, Ctrl-C once and twice, a full disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from train_runs import CONFIG, Seen, a_corpus, a_whole_run, lasting, metrics, shape, weights

from handgrad.core.errors import FileError, NumericError
from handgrad.data import Corpus
from handgrad.train import checkpoint, loop
from handgrad.train import metrics as metrics_module
from handgrad.train.evaluate import evaluate
from handgrad.train.loop import Result, resume, train
from handgrad.train.metrics import Metrics


@pytest.fixture(name="corpus")
def the_corpus() -> Corpus:
    return a_corpus()


@pytest.fixture(name="whole")
def the_whole_run() -> tuple[Path, Seen, Result]:
    return a_whole_run()


# A value that is not finite.


def test_a_nan_stops_before_the_update_and_the_last_checkpoint_is_intact(whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    good = weights(folder)

    def spoiling(real):
        def step_on(model, batches, g, state, lr, config, step):
            if step == 22:
                model.params["blocks.0.mlp.up.w"][1, 2] = float("nan")
            return real(model, batches, g, state, lr, config, step)

        return step_on

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "step_on", spoiling(loop.step_on))
        with pytest.raises(NumericError) as caught:
            resume(folder, steps=40)
    first, second = str(caught.value).split("\n")
    assert first.startswith("step 22: the loss is nan and the gradient's norm nan; nothing was updated: ")
    assert "blocks.0.mlp.up is the first signal to hold NaN, in the forward pass" in first
    assert second == (
        f"The last checkpoint is intact: {folder / 'checkpoints' / 'step_000020'}. "
        "Try a lower --lr, or a smaller --clip"
    )
    assert torch.equal(weights(folder), good)
    assert metrics(folder)[-1]["step"] == 21
    assert resume(folder).step == 40


def test_a_rate_far_too_high_before_the_first_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(NumericError) as caught:
        train(tmp_path / "run", shape(corpus), replace(CONFIG, lr=1e30, warmup=0), corpus)
    first, second = str(caught.value).split("\n")
    assert re.match(r"step 2: the loss is (nan|inf) .* first signal to hold (NaN|infinity), in the forward pass", first)
    assert second == "No checkpoint had been written yet. Try a lower --lr, or a smaller --clip"
    assert [r["step"] for r in metrics(tmp_path / "run")] == [0, 1]


def test_a_validation_loss_that_is_not_finite_stops_too(corpus: Corpus, whole, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)

    def spoiled(model, *how):
        model.params["norm.gamma"][0] = float("nan")
        return evaluate(model, *how)

    monkeypatch.setattr(loop, "evaluate", spoiled)
    with pytest.raises(NumericError, match=r"the validation loss is nan: norm is .*\nThe last checkpoint is intact"):
        resume(folder, steps=24)
    assert [r["step"] for r in metrics(folder)][-1] == 23
    assert checkpoint.latest(folder).name == "step_000020"


# Ctrl-C.


@pytest.fixture(autouse=True)
def as_in_a_terminal():
    """Tests may themselves run in the background, where Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background job"])
def test_ctrl_c_finishes_the_step_saves_and_can_be_resumed(corpus: Corpus, whole, tmp_path: Path, before) -> None:
    def at(record) -> None:
        if record["step"] == 7:
            signal.raise_signal(signal.SIGINT)

    folder, seen = tmp_path / "run", Seen(at)
    signal.signal(signal.SIGINT, before)
    result = train(folder, shape(corpus), CONFIG, corpus, observer=seen)
    assert (result.step, result.interrupted, result.checkpoint.name) == (7, True, "step_000007")
    assert seen.messages == ["stopped after step 7"]
    assert signal.getsignal(signal.SIGINT) is before
    assert not resume(folder).interrupted
    assert torch.equal(weights(folder), weights(whole[0]))
    assert lasting(metrics(folder)) == lasting(metrics(whole[0]))


def test_ctrl_c_in_the_last_step_is_a_finished_run(corpus: Corpus, tmp_path: Path) -> None:
    def at(record) -> None:
        if record["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    result = train(tmp_path / "run", shape(corpus), replace(CONFIG, steps=2), corpus, observer=Seen(at))
    assert not result.interrupted


def test_ctrl_c_before_the_first_step_saves_step_0(corpus: Corpus, whole, tmp_path: Path) -> None:
    def at(record) -> None:
        if record["step"] == 0:
            signal.raise_signal(signal.SIGINT)

    result = train(tmp_path / "run", shape(corpus), CONFIG, corpus, observer=Seen(at))
    assert (result.step, result.interrupted, result.loss_nats) == (0, True, None)
    assert resume(tmp_path / "run").step == 20
    assert lasting(metrics(tmp_path / "run")) == lasting(metrics(whole[0]))


def test_ctrl_c_twice_stops_at_once_and_loses_no_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    def at(record) -> None:
        if record["step"] == 8:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    folder, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(folder, shape(corpus), CONFIG, corpus, observer=Seen(at))
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint.load(checkpoint.latest(folder)).progress.step == 6
    assert resume(folder).step == 20


def test_ctrl_c_twice_within_a_save_keeps_the_checkpoint_before(corpus: Corpus, tmp_path: Path, monkeypatch) -> None:
    saving = checkpoint.save_file

    def pressed(tensors, path, metadata):
        if "step_000012" in str(path):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        saving(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", pressed)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", shape(corpus), CONFIG, corpus)
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step_000006"]


def test_a_run_in_another_thread_leaves_ctrl_c_alone(corpus: Corpus, tmp_path: Path) -> None:
    before, results = signal.getsignal(signal.SIGINT), []

    def at(record) -> None:
        assert signal.getsignal(signal.SIGINT) is before

    def run() -> None:
        results.append(train(tmp_path / "run", shape(corpus), replace(CONFIG, steps=2), corpus, observer=Seen(at)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [result.step for result in results] == [2]


def test_a_full_disk_is_said_and_the_checkpoint_before_stays(corpus: Corpus, tmp_path: Path, monkeypatch) -> None:
    saving = checkpoint.save_file

    def full(tensors, path, metadata):
        if "step_000012" in str(path):
            raise OSError(28, "No space left on device")
        saving(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(
        FileError, match=r"step_000012: No space left on device. .*step_000006 is complete and unchanged"
    ):
        train(tmp_path / "run", shape(corpus), CONFIG, corpus)
    monkeypatch.undo()
    assert resume(tmp_path / "run").step == 20


def test_a_path_keeps_its_case_in_what_is_said_of_a_full_disk(corpus: Corpus, tmp_path: Path, monkeypatch) -> None:
    def full(tensors, path, metadata):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    train(Path("tf"), shape(corpus), replace(CONFIG, steps=1), corpus)
    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(FileError, match=r"left on device\. The checkpoint tf/checkpoints/step_000001 is complete"):
        resume(Path("tf"), steps=2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full, a disk that is always full")
def test_records_that_cannot_be_written_are_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(metrics_module, "keep_until", lambda *_: None)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with (
        pytest.raises(FileError, match=r"cannot write .*metrics.jsonl: No space left on device. Checkp"),
        Metrics(tmp_path, after=None) as records,
    ):
        records.write({"step": 1})


def test_a_step_without_targets_is_said_once_and_changes_nothing(corpus: Corpus, tmp_path: Path, monkeypatch) -> None:
    drawn = loop.training_windows

    def empty(*where):
        inputs, targets = drawn(*where)
        return inputs, np.full_like(targets, -1) if where[4] in (3, 4) else targets

    monkeypatch.setattr(loop, "training_windows", empty)
    seen = Seen()
    result = train(tmp_path / "run", shape(corpus), replace(CONFIG, steps=5), corpus, observer=seen)
    assert seen.messages == ["step 3 has no target that counts: its loss is 0 and no weight changes"]
    assert [r["loss_nats"] == 0.0 for r in seen.records[1:]] == [False, False, True, True, False]
    assert result.tokens_seen == 3 * 3 * 8
    assert checkpoint.load(result.checkpoint).state.step == 3
