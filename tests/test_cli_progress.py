"""What is shown while a run trains: the time that is left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from handgrad.cli import progress
from handgrad.cli.output import Output
from handgrad.cli.progress import COMPILING, Shown, TimeLeft

INFO = {
    "step": 0, "steps": 20, "validate_every": 10, "tokens_per_step": 100, "n_validation_tokens": 600, "resumed": False,
    "n_parameters": 7, "vocabulary": 5, "context": 4, "n_training_tokens": 99, "dtype": "float32", "device": "cpu",
    "optimiser": "AdamW", "compile": True,
}  # fmt: skip


def test_the_time_left_is_of_steps_and_validations_apart() -> None:
    left = TimeLeft(steps=25, validate_every=10, tokens_per_step=100, n_validation_tokens=600, now_s=5.0)
    left.took({"step": 0, "val_loss_nats": 3.0}, 45.0)  # 40 s, which no step has to answer for
    for step in range(1, 5):
        left.took({"step": step, "tokens_per_s": 50.0}, 45.0 + 2 * step)
        assert left.seconds(step) is None
    left.took({"step": 5, "tokens_per_s": 50.0}, 55.0)
    assert left.seconds(5) == 20 * 2 + 3 * 40  # validations at 10, 20 and 25
    left.took({"step": 10, "tokens_per_s": 50.0, "val_loss_nats": 2.0}, 77.0)  # 2 s of it were the step's
    assert left.seconds(10) == 15 * 2 + 2 * 30
    assert left.seconds(25) is None
    resumed = TimeLeft(steps=20, validate_every=10, tokens_per_step=100, n_validation_tokens=600, now_s=0.0)
    for step in range(11, 16):
        resumed.took({"step": step, "tokens_per_s": 50.0}, 2.0 * step)
    assert resumed.seconds(15) == 5 * 2 + 1 * 4  # not measured yet: a third of the work of a step, token by token
    resumed.validate_every = 0
    assert resumed.seconds(15) == 5 * 2


def test_what_compiling_takes_is_no_part_of_the_time_left() -> None:
    left = TimeLeft(
        steps=20, validate_every=10, tokens_per_step=100, n_validation_tokens=600, now_s=0.0, compiling=True
    )
    left.took({"step": 0, "val_loss_nats": 3.0}, 40.0)
    left.took({"step": 1, "loss_nats": 3.0, "tokens_per_s": 4.0}, 65.0)
    for step in range(2, 7):
        assert left.seconds(step - 1) is None
        left.took({"step": step, "loss_nats": 3.0, "tokens_per_s": 50.0}, 65.0 + 2 * (step - 1))
    assert left.seconds(6) == 14 * 2 + 2 * 4  # a validation was not measured yet: a third of a step, token by token


def test_compiling_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for live in (False, True):
        screen = io.StringIO()
        monkeypatch.setattr(Output, "live", property(lambda self, live=live: live))
        console = Console(file=screen, force_terminal=True, width=120)
        monkeypatch.setattr(progress, "Console", lambda console=console, **how: console)
        shown = Shown(Output())
        shown.started(INFO)
        shown.stepped({"step": 0, "val_loss_nats": 3.0})
        shown.stepped({"step": 1, "loss_nats": 3.0, "tokens_per_s": 4.0})
        shown.stepped({"step": 2, "loss_nats": 3.0, "tokens_per_s": 50.0})
        shown.close()
        assert shown.rate == 50.0
        said = screen.getvalue() if live else capsys.readouterr().err
        assert COMPILING in said
