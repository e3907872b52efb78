"""`handgrad demo`: the number of steps that fit, what is stated before and said after, and where it writes."""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import pytest

from handgrad.cli import main, showing
from handgrad.cli.showing import Expectation, demo_settings, free_folder, remarks, steps_for

TEXT = "the cat sat on the mat, and the dog sat on the log.\n" * 80


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo of few steps on a short text, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for module in ("sources", "tokens"):
        monkeypatch.setattr(f"handgrad.data.{module}.embedded_text", lambda: TEXT)
    for name, value in (("LEAST_STEPS", 12), ("MOST_STEPS", 12), ("TRIAL_STEPS", 6), ("TRIAL_TOKENS", 2000)):
        monkeypatch.setattr(showing, name, value)
    return tmp_path


def frequencies() -> float:
    """The loss of who knows only the frequencies in the first nine tenths, for the last tenth; counts raised by one."""
    training, validation = TEXT[: len(TEXT) * 9 // 10], TEXT[len(TEXT) * 9 // 10 :]
    share = {c: (training.count(c) + 1) / (len(training) + len(set(TEXT))) for c in set(TEXT)}
    return -sum(log(share[c]) for c in validation[1:]) / (len(validation) - 1)


def test_a_demo_from_beginning_to_end(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["demo", "--seed", "1"]) == 0
    shown = capsys.readouterr()
    assert "measuring this machine: 6 steps of a model that is thrown away" in shown.err
    assert " steps a second: 12 steps, about " in shown.err
    assert "this model must fall below 2.44 on text that it never learns from (a run this short is held" in shown.err
    assert "what it writes after 'the cat sat on the mat, " in shown.out
    assert "it fell below 2.44, as stated: " in shown.out
    assert "next        handgrad generate runs/demo --temperature 0.8" in shown.out
    assert sorted(p.name for p in Path("runs/demo").iterdir()) == [
        "checkpoints", "config.toml", "data", "metrics.jsonl", "report.html"
    ]  # fmt: skip
    assert len(Path("runs/demo/metrics.jsonl").read_text().splitlines()) == 13


def test_it_takes_the_next_free_name_but_not_the_folder_of_another_run(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs/demo").mkdir(parents=True)
    assert free_folder(Path("runs/demo")) == Path("runs/demo-2")
    Path("runs/demo-2").mkdir()
    assert main.run(["demo", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r.get("step") for r in records[:-1]] == list(range(13))
    result = records[-1]["result"]
    assert result["report"] == "runs/demo-3/report.html"
    assert result["reached"] is (result["val_loss_nats"] < result["expected_nats"])
    assert result["expected_nats"] == result["frequencies_nats"] == pytest.approx(frequencies(), rel=1e-12)
    assert result["sample"].startswith("the cat sat")
    assert main.run(["demo", "--out", "runs/demo-3"]) == 2
    refused = capsys.readouterr().err
    assert "runs/demo-3 already holds a run (config.toml is there)" in refused
    assert refused.count("\n") == 1  # at once, before its tokens are written again


def test_what_was_missed_is_said_and_is_no_failure(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "STATED_STEPS", 12)
    monkeypatch.setattr(showing, "STATED_LOSS_NATS", 0.5)
    assert main.run(["demo", "--out", "here"]) == 0
    shown = capsys.readouterr()
    assert "must fall below 0.50 on text that it never learns from\n" in shown.err
    assert "it did NOT fall below 0.50, as stated before: " in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes is 0.0, and must be above 0 and at most 1440"),
        (["--minutes", "nan", "--seed", "-1"], "--minutes is nan, and must be above 0"),
        (["--seed", "-1"], "--seed is -1, and must be a whole number of at least 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    arguments: list[str], message: str, quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["demo", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(quick.iterdir()) == []


def test_steps_fit_the_time_and_the_schedule_ends_with_them() -> None:
    assert steps_for(budget_s=120, steps_per_s=10.0, validation_s=1.0) == 860  # (0.8 · 120 - 10 · 1) · 10
    assert steps_for(budget_s=120, steps_per_s=0.5, validation_s=1.0) == 100
    assert steps_for(budget_s=120, steps_per_s=100.0, validation_s=0.1) == 3000
    for steps in (100, 860, 3000):
        train = demo_settings(steps, seed=4).train
        assert (train.steps, train.warmup, train.seed) == (steps, min(100, steps // 10), 4)
        assert 8 <= steps // train.validate_every <= 10


def test_a_whole_run_is_held_to_the_stated_figure() -> None:
    whole, short = Expectation(3.2, 2.0), Expectation(3.2, 3.2)
    assert "must fall below 2.00" in whole.before
    assert "a run this short" not in whole.before
    assert short.before.endswith("(a run this short is held to no more)")
    assert whole.after(1.5, True) == "it fell below 2.00, as stated: 1.500"
    assert "is not known" in whole.after(None, False)


def test_a_floor_that_beats_the_time_and_a_slow_machine_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    floor = "0.5 minutes were asked; the demo needs at least 100 steps, here about 31 s"
    slow = "on a busy machine OMP_NUM_THREADS=1 is often faster"
    assert remarks(budget_s=30.0, steps_per_s=2.0, steps=100, took_s=31.0) == [floor]
    assert remarks(budget_s=30.0, steps_per_s=1.9, steps=100, took_s=30.0) == [slow]
    assert remarks(budget_s=60.0, steps_per_s=1.0, steps=100, took_s=90.0) == [
        "1 minute was asked; the demo needs at least 100 steps, here about 1 min 30 s", slow
    ]  # fmt: skip
    assert remarks(budget_s=30.0, steps_per_s=9.0, steps=110, took_s=31.0) == []
    assert main.run(["demo", "--help"]) == 0
    assert "at least 100 steps are done" in " ".join(capsys.readouterr().out.split())


def test_the_remarks_are_printed(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "speed", lambda corpus, seed: (1.0, 0.5))
    assert main.run(["demo", "--minutes", "0.1", "--out", "here"]) == 0
    shown = capsys.readouterr().err.splitlines()
    assert "0.1 minutes were asked; the demo needs at least 12 steps, here about 17 s" in shown
    assert "on a busy machine OMP_NUM_THREADS=1 is often faster" in shown
