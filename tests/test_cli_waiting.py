"""On a terminal, whatever takes long says that it is at work; elsewhere nothing is added."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from handgrad.cli import waiting
from handgrad.cli.main import run
from handgrad.cli.output import Output
from handgrad.models.found import find
from handgrad.plan import calibrate


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody watches, and is told at once."""
    monkeypatch.setattr(Output, "live", property(lambda self: True))
    monkeypatch.setattr(waiting, "AFTER_S", 0.0)


@pytest.mark.usefixtures("terminal")
def test_a_line_is_shown_while_something_takes_long_and_wiped_out(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting.waiting("loading a", live=True):
        time.sleep(0.1)
    with pytest.raises(ValueError, match="told"), waiting.waiting("loading b", live=True):
        raise ValueError("told")
    shown = capsys.readouterr().err
    assert shown.startswith("\rloading a … 0 s\r")
    assert shown.endswith(" \r")
    assert "\n" not in shown


def test_nothing_is_shown_before_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting.waiting("loading", live=True):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--layers", "1", "--no-time"], "counting a step"),
        (["plan", "--layers", "1", "--no-time", "--fits", "8GB"], "trying one --batch-size after another"),
        (["plan", "--layers", "1", "--calibrate"], "measuring this machine's rates"),
        (["generate", "MODEL", "--max-new-tokens", "1"], "loading MODEL"),
        (["eval", "MODEL", "embedded", "--limit", "99"], "reading the text"),
        (["explain", "MODEL"], "loading MODEL"),
        (["train", "embedded", "--out", "OUT", "--steps", "1", "--layers", "1"], "writing the report"),
        (["import", "MODEL", "--out", "OUT"], "loading MODEL"),
        (["import", "MODEL", "--out", "OUT"], "writing OUT"),
        (["export", "MODEL", "--out", "OUT"], "writing OUT"),
    ],
)
def test_what_takes_long_says_so(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {str(size): 1e9 for size in calibrate.SIZES}
    rates = calibrate.Calibration(calibrate.machine(), dict.fromkeys(calibrate.names(), 1e10), sizes, sizes, 1e-6)
    monkeypatch.setattr(calibrate, "measure", lambda: rates)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = {"MODEL": str(find("docs-1m").path), "OUT": str(tmp_path / "out")}
    assert run([paths.get(word, word) for word in arguments]) == 0
    for word, path in paths.items():
        said = said.replace(word, path)
    assert f"\r{said[:60]}" in capsys.readouterr().err
