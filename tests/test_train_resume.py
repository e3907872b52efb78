"""Resumed runs are, bit for bit, runs that never stopped; and files that do not belong together are told."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train_runs import CONFIG, TEXT, Seen, a_corpus, a_whole_run, lasting, metrics, shape, stop_after, weights

from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.data import Corpus, prepare
from handgrad.train import checkpoint
from handgrad.train.config import read_toml
from handgrad.train.loop import Result, resume, train
from handgrad.train.metrics import Metrics, belongs, record_of
from handgrad.train.schedule import lr_at


@pytest.fixture(name="corpus")
def the_corpus() -> Corpus:
    return a_corpus()


@pytest.fixture(name="whole")
def the_whole_run() -> tuple[Path, Seen, Result]:
    return a_whole_run()


@pytest.mark.parametrize("stop", [5, 6, 10])
def test_stopped_and_resumed_is_bit_for_bit_never_stopped(corpus: Corpus, whole, tmp_path: Path, stop: int) -> None:
    folder = tmp_path / "run"
    first = train(folder, shape(corpus), CONFIG, corpus, keep_going=stop_after(stop))
    assert (first.step, first.interrupted, first.checkpoint.name) == (stop, False, f"step_{stop:06d}")
    assert first.val_loss_nats is not None
    seen = Seen()
    second = resume(folder, observer=seen)
    assert second.step == 20
    assert seen.info["resumed"]
    assert seen.info["step"] == stop
    assert [r["step"] for r in seen.records] == list(range(stop + 1, 21))
    assert second.tokens_seen == whole[2].tokens_seen
    assert second.elapsed_s > first.elapsed_s
    assert torch.equal(weights(folder), weights(whole[0]))
    ours, theirs = lasting(metrics(folder)), lasting(metrics(whole[0]))
    ours[stop].pop("val_loss_nats")  # where it stopped it validated once more
    theirs[stop].pop("val_loss_nats", None)
    assert ours == theirs


def test_records_beyond_the_checkpoint_are_dropped_and_written_anew(corpus: Corpus, whole, tmp_path: Path) -> None:
    """A crash at step 9: the last checkpoint is of step 6, and a record is half written."""

    def crash(record) -> None:
        assert metrics(folder)[-1] == record, "a record is on disk as soon as it is told"
        if record["step"] == 9:
            raise ZeroDivisionError

    folder = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        train(folder, shape(corpus), CONFIG, corpus, observer=Seen(crash))
    assert metrics(folder)[-1]["step"] == 9
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 10, "loss_n')
    (folder / "checkpoints" / ".unfinished-step_000012-9").mkdir()
    assert not belongs(b'{"step": 3}', 3)
    assert belongs(b'{"step": 3}\n', 3)
    resume(folder)
    assert lasting(metrics(folder)) == lasting(metrics(whole[0]))
    assert torch.equal(weights(folder), weights(whole[0]))
    assert sorted(os.listdir(folder / "checkpoints")) == ["step_000018", "step_000020"]


def test_a_crash_before_the_first_checkpoint_starts_again(corpus: Corpus, whole, tmp_path: Path) -> None:
    def crash(record) -> None:
        if record["step"] == 3:
            raise ZeroDivisionError

    folder, seen = tmp_path / "run", Seen()
    with pytest.raises(ZeroDivisionError):
        train(folder, shape(corpus), CONFIG, corpus, observer=Seen(crash))
    resume(folder, observer=seen)
    assert seen.messages == ["the run has no checkpoint yet; it starts again from its first step"]
    assert lasting(metrics(folder)) == lasting(metrics(whole[0]))
    assert torch.equal(weights(folder), weights(whole[0]))


def test_time_and_durability_span_the_sessions(whole, tmp_path: Path, monkeypatch) -> None:
    folder, order = tmp_path / "run", []
    shutil.copytree(whole[0], folder)
    state = folder / "checkpoints" / "step_000020" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "elapsed_s": 5000.0}))
    for owner, name in ((Metrics, "sync"), (checkpoint, "save")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, _real=real, _name=name, **k: order.append(_name) or _real(*a, **k))
    assert 5000 < resume(folder, steps=25).elapsed_s < 5600
    assert 5000 < checkpoint.load(checkpoint.latest(folder)).progress.elapsed_s < 5600
    assert order == ["sync", "save"] * 2, "records are durable before the checkpoint that stands on them"


def test_a_run_folder_can_move_with_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    inside = prepare([tmp_path / "text.txt"], "chars", tmp_path / "run" / "tokens")
    train(tmp_path / "run", shape(inside), replace(CONFIG, steps=2), inside)
    assert read_toml(tmp_path / "run" / "config.toml").data["tokens"] == "tokens"
    (tmp_path / "run").rename(tmp_path / "moved")
    assert resume(tmp_path / "moved", steps=3).step == 3


def test_a_finished_run_is_left_as_it_is(whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for steps, asked in ((None, 20), (20, 20)):
        seen = Seen()
        result = resume(folder, steps=steps, observer=seen)
        assert seen.messages == [
            f"the run is finished: 20 steps are done, {asked} were asked for; nothing is changed. "
            "To train on, give --steps a larger number"
        ]
        assert (result.step, result.checkpoint.name, result.interrupted) == (20, "step_000020", False)
        assert result.val_loss_nats == whole[2].val_loss_nats
        assert (result.val_step, whole[2].val_step) == (20, 20)
        assert result.tokens_seen == whole[2].tokens_seen
        assert seen.results == [result]
        assert seen.records == []
    with pytest.raises(ConfigError, match=r"--steps is 19, and 20 steps are done already, .* number than 20$"):
        resume(folder, steps=19)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_more_steps_go_on_and_are_kept_in_the_config(whole, tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", Seen()
    shutil.copytree(whole[0], folder)
    result = resume(folder, steps=25, observer=seen, keep_going=stop_after(2))
    assert result.step == 22
    assert "--steps is now 25 (was 20): the run goes on with that from step 21" in seen.messages
    assert "the learning rate follows the longer schedule: 0.001 -> 0.00178 at step 21" in seen.messages
    assert seen.records[0]["lr"] == lr_at(21, replace(CONFIG, steps=25))
    assert read_toml(folder / "config.toml").train_config == replace(CONFIG, steps=25)
    assert resume(folder).step == 25
    assert [r["step"] for r in metrics(folder)] == list(range(26))


def test_a_run_that_stopped_early_is_not_called_finished(corpus: Corpus, tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", Seen()
    train(folder, shape(corpus), CONFIG, corpus, keep_going=stop_after(10))
    shutil.rmtree(folder / "checkpoints" / "step_000010")  # as a kill would have left it: validated at 0, saved at 6
    before = (folder / "config.toml").read_bytes()
    result = resume(folder, steps=6, observer=seen)
    assert (result.step, result.val_step, result.val_loss_nats is None) == (6, 0, False)
    assert seen.messages == [
        "6 steps are done, as many as --steps asks for, of the 20 in config.toml; nothing is changed. "
        "To train on, leave --steps out, or give a larger number"
    ]
    message = r"--steps is 5, and 6 steps are done already, .*; without it, the run goes on to its 20 steps$"
    with pytest.raises(ConfigError, match=message):
        resume(folder, steps=5)
    assert (folder / "config.toml").read_bytes() == before


# Files of a run that do not belong together.


def test_another_tokenizer_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    inside = prepare([tmp_path / "text.txt"], "chars", tmp_path / "run" / "tokens")
    train(tmp_path / "run", shape(inside), replace(CONFIG, steps=2), inside)
    (tmp_path / "text.txt").write_text(TEXT.replace("cat", "cow"))
    prepare([tmp_path / "text.txt"], "chars", tmp_path / "run" / "tokens")
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(DataError, match="made by another tokenizer than this model was trained with: fingerprint"):
        resume(tmp_path / "run", steps=4)
    assert (tmp_path / "run" / "config.toml").read_bytes() == before
    shutil.rmtree(tmp_path / "run" / "tokens")
    with pytest.raises(FileError, match="no prepared data"):
        resume(tmp_path / "run", steps=4)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_other_tokens_of_the_same_alphabet_are_refused(tmp_path: Path, checkpoints: bool) -> None:
    run = tmp_path / "run"
    (tmp_path / "text.txt").write_text(TEXT)
    inside = prepare([tmp_path / "text.txt"], "chars", run / "tokens")
    train(run, shape(inside), replace(CONFIG, steps=2), inside)
    expected = json.loads((run / "tokens" / "corpus.json").read_text())["tokens_sha256"]
    assert read_toml(run / "config.toml").data["tokens_sha256"] == expected
    assert checkpoint.load(checkpoint.latest(run)).tokens_sha256 == expected
    (tmp_path / "text.txt").write_text(TEXT[::-1])
    prepare([tmp_path / "text.txt"], "chars", run / "tokens")
    found = json.loads((run / "tokens" / "corpus.json").read_text())["tokens_sha256"]
    by = checkpoint.latest(run)
    if not checkpoints:
        shutil.rmtree(run / "checkpoints")
        by = run / "config.toml"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(DataError) as caught:
        resume(run, steps=4)
    assert str(caught.value) == (
        f"the tokens in {run / 'tokens'} are not those that this run was trained on: {by} expects SHA-256 "
        f"{expected[:12]}, {found[:12]} found. Put the data back as they were, or start a new run"
    )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (tmp_path / "text.txt").write_text(TEXT)
    prepare([tmp_path / "text.txt"], "chars", run / "tokens")
    assert resume(run, steps=4).step == 4


def test_a_folder_of_tokens_with_an_impossible_name_is_said(whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    text = (folder / "config.toml").read_text().replace("steps = 20", "steps = 22")
    (folder / "config.toml").write_text(re.sub("tokens = .*", f'tokens = "{"x" * 400}"', text))
    with pytest.raises(FileError, match=r"x{400} has no prepared data: corpus.json is missing"):
        resume(folder)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "loss_nats": ' + "9" * 400 + "}",
        '{"step": 1, "loss_nats": 1e999}',
        '{"step": 1, "loss_nats": ' + "9" * 5000 + "}",
        '{"step": ' + "9" * 400 + "}",
        '{"step": -1}',
        '{"step": 1, "x": ' + "[" * 20_000,
    ],
)
def test_a_line_that_no_run_writes_is_no_record(line: str) -> None:
    assert record_of(line) is None
    assert not belongs(line.encode() + b"\n", 10**500)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("n_heads = 2", "n_heads = 4", ConfigError, r"describes another model .*: n_heads 4 \(the checkpoint has 2\)"),
        (
            'dtype = "float32"',
            'dtype = "float64"',
            ConfigError,
            "--dtype is float64, but the run was trained in float32",
        ),
        ("steps = 20", "steps = 0", ConfigError, "--steps is 0"),
        ("[data]", "[date]", KeyError, "did you mean 'data'"),
    ],
)
def test_a_changed_config_that_does_not_fit(whole, tmp_path: Path, old: str, new: str, error, message: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    text = (folder / "config.toml").read_text()
    assert old in text
    (folder / "config.toml").write_text(text.replace(old, new))
    with pytest.raises(error, match=message):
        resume(folder, steps=None if "steps" in old else 22)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_run_from_another_machine_goes_on_and_says_what_is_lost(whole, tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", Seen()
    shutil.copytree(whole[0], folder)
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('"cpu"', '"cuda"').replace("clip = 1.0", "clip = 0.5"))
    state = folder / "checkpoints" / "step_000020" / "state.json"
    state.write_text(state.read_text().replace(f'"{torch.__version__}"', '"1.0"'))
    assert resume(folder, steps=21, observer=seen).step == 21
    assert seen.messages == [
        "this machine has no cuda: training goes on on the CPU, no longer bit for bit the same run",
        "--steps is now 21 (was 20), --clip is now 0.5 (was 1.0): the run goes on with that from step 21",
        "the learning rate follows the longer schedule: 0.001 -> 0.001 at step 21",
        f"the versions differ, so the run need not be bit for bit the same: torch {torch.__version__} (was 1.0)",
    ]
    assert read_toml(folder / "config.toml").train_config.device == "cuda", "it may go back to the other machine"


def test_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no run to resume in .*: config.toml is missing"):
        resume(tmp_path)
