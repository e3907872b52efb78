"""`handgrad lab`: list, run, all and report, on steps that are quick and judged by what they really found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from handgrad.cli import main, measuring
from handgrad.core.errors import ConfigError
from handgrad.inspect import report as inspect_report
from handgrad.lab import run as lab_run
from handgrad.lab.rungs import RUNGS
from handgrad.lab.steps import HOLDS, Finding, Number, Result, Trial

SMALL = ["--steps", "4", "--width", "8", "--batch-size", "4", "--seeds", "2"]
SMALL += ["--set", "pairs=2", "--set", "n_keys=4", "--set", "n_values=4"]


@dataclass
class Counted:
    """A step whose trials count how often they are done."""

    name: str
    n: int = 2
    seconds: float = 0.01
    before: Callable[[str], None] = lambda key: None
    question: str = "Why?"
    claim: str = "It is so."
    formula: str = "a = b"
    rungs: Sequence[str] = ()
    done: list[str] = field(default_factory=list)

    def trials(self) -> list[Trial]:
        return [Trial(f"{self.name} {i}", self.seconds, lambda say, i=i: self.work(say, i)) for i in range(self.n)]

    def work(self, say: Callable[[str, float], None], i: int) -> Result:
        self.before(f"{self.name} {i}")
        say("halfway", 0.5)
        self.done.append(f"{self.name} {i}")
        return {"value": i + 1.0}

    def judge(self, results: Mapping[str, Result]) -> Finding:
        values = [r["value"] for r in results.values()]
        return Finding(HOLDS, f"{len(values)} values.", [Number.over("value", values)])


@pytest.fixture(autouse=True)
def _quick_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_report, "_plotly_script", lambda: "/* plotly */")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    found = [Counted("memory"), Counted("cost")]
    monkeypatch.setattr(measuring, "STEPS", tuple(found))
    return found


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def saved(folder: Path) -> dict:
    return json.loads((folder / "lab.json").read_text(encoding="utf-8"))


# ---- list and run ---------------------------------------------------------------------------------------------------
def test_list_names_rungs_tasks_and_steps(steps: list[Counted], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "list", "--json"]) == 0
    found = lines(capsys)
    assert [row["rung"] for row in found if "rung" in row] == [*RUNGS]
    assert [row["task"] for row in found if "task" in row] == ["recall", "pocket", "patterns"]
    assert found[-2:] == [{"step": name, "question": "Why?", "trials": 2} for name in ("memory", "cost")]
    assert main.run(["lab", "list"]) == 0
    assert "pairs=8" in capsys.readouterr().out


def test_run_compares_rungs_over_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "run", "rnn", "softmax", "rnn", *SMALL, "--json"]) == 0
    found = lines(capsys)
    trained, rows = found[:4], found[4:]
    assert [(r["rung"], r["seed"]) for r in trained] == [("rnn", 0), ("softmax", 0), ("rnn", 1), ("softmax", 1)]
    assert [r["rung"] for r in rows] == ["rnn", "softmax"]
    rnn, softmax = rows
    mean = (trained[0]["accuracy"] + trained[2]["accuracy"]) / 2
    assert rnn["accuracy"] == pytest.approx(mean)
    assert rnn["low"] <= rnn["accuracy"] <= rnn["high"]
    assert (rnn["fixed_state_bytes"], rnn["state_bytes_per_token"]) == (4 * 2 * 8, 0)
    assert softmax["fixed_state_bytes"] == 0
    assert softmax["state_bytes_per_token"] > 0
    assert rnn["seeds"] == 2


def test_run_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "run", "self_only", *SMALL]) == 0
    heads, row, about = capsys.readouterr().out.splitlines()
    assert heads.split()[:2] == ["rung", "accuracy"]
    assert row.startswith("self_only  ")
    assert "%" in row
    assert about == "task recall: 8 tokens, chance 25.0%; state in bytes of float32"


def test_run_gives_rungs_as_many_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "run", "rnn", "transformer", *SMALL, "--parameters", "20000", "--json"]) == 0
    trained = [r["stack_parameters"] for r in lines(capsys)[:2]]
    assert all(abs(n - 20000) < 5000 for n in trained)


def test_ctrl_c_in_a_run_keeps_what_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, calls = measuring.train, []

    def pressed(*arguments):
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(measuring, "train", pressed)
    assert main.run(["lab", "run", "rnn", "lstm", *SMALL]) == 130
    told = capsys.readouterr()
    assert "interrupted: 1 of 4 runs" in told.err
    assert "not measured" in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no rung named 'nonsense'"),
        (["rnn", "--task", "x"], "no task named 'x'"),
        (["rnn", "--seeds", "0", "--lr", "nan"], "--lr is nan"),
        (["rnn", "--set", "x=1"], "the task recall has pairs"),
        (["rnn", "--set", "pairs"], "must be pairs= and a whole number"),
        (["rnn", "--set", "pairs=-1"], "must be pairs= and a whole number"),
        (["rnn", "--set", "pairs=99"], "99 facts need"),
        (["rnn", "--set", "n_values=0"], "cannot be drawn"),
        (["rnn", "--parameters", "-1"], "--parameters is -1"),
        ([], "RUNG... is missing"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab", "run", *arguments]) == 2
    assert message in capsys.readouterr().err


# ---- all and report -------------------------------------------------------------------------------------------------
def test_all_writes_the_page_and_the_record(
    steps: list[Counted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lab"
    assert main.run(["lab", "all", "--out", str(out), "--json"]) == 0
    found = lines(capsys)
    assert [row["trial"] for row in found if "trial" in row] == ["memory 0", "cost 0", "memory 1", "cost 1"]
    assert found[-1]["verdicts"] == {"holds": 2, "does not hold here": 0, "not decided": 0, "not measured": 0}
    record = saved(out)
    assert [step["finding"]["because"] for step in record["steps"]] == ["2 values.", "2 values."]
    assert record["about"]["trials"] == 4
    assert record["about"]["cut"] == []
    assert "2 values." in (out / "lab.html").read_text(encoding="utf-8")


def test_the_same_folder_again_measures_nothing_twice(steps: list[Counted], tmp_path: Path) -> None:
    for _ in range(2):
        assert main.run(["lab", "all", "--out", str(tmp_path)]) == 0
    assert [len(step.done) for step in steps] == [2, 2]


def test_a_budget_cuts_and_says_what(steps: list[Counted], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in steps:
        step.seconds = 40.0
    assert main.run(["lab", "all", "--out", str(tmp_path), "--budget", "1"]) == 0
    told = capsys.readouterr()
    assert "about 2 min 40 s of work" in told.err
    assert not [step for step in steps if len(step.done) != 2]  # the trials were quicker than they were said to be
    for step in steps:
        step.seconds, step.n = 4000.0, 3
    assert main.run(["lab", "all", "--out", str(tmp_path), "--budget", "1"]) == 0
    told = capsys.readouterr()
    assert "cut by the budget of 1 min: 1 of memory, 1 of cost" in told.err
    assert f"`handgrad lab all --out {tmp_path}` goes on from here" in told.err
    assert saved(tmp_path)["about"]["cut"] == ["memory: memory 2", "cost: cost 2"]
    assert "memory: memory 2" in (tmp_path / "lab.html").read_text(encoding="utf-8")


def test_quick_steps_come_first_and_the_page_keeps_the_order_of_the_argument(
    steps: list[Counted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps[0].seconds = 9.0
    assert main.run(["lab", "all", "--out", str(tmp_path), "--json"]) == 0
    assert next(row["trial"] for row in lines(capsys)) == "cost 0"
    assert [step["name"] for step in saved(tmp_path)["steps"]] == ["memory", "cost"]


def test_ctrl_c_keeps_what_is_done_and_the_next_run_goes_on(
    steps: list[Counted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(key: str) -> None:
        if key == "memory 1":
            raise KeyboardInterrupt

    steps[0].before = pressed
    assert main.run(["lab", "all", "--out", str(tmp_path)]) == 130
    assert (steps[0].done, steps[1].done) == (["memory 0"], ["cost 0"])
    assert saved(tmp_path)["about"]["interrupted"] is True
    assert "cut by Ctrl-C" in capsys.readouterr().err
    steps[0].before = lambda key: None
    assert main.run(["lab", "all", "--out", str(tmp_path)]) == 0
    assert (steps[0].done, steps[1].done) == (["memory 0", "memory 1"], ["cost 0", "cost 1"])
    assert saved(tmp_path)["about"]["cut"] == []


def test_a_trial_that_cannot_be_done_is_reported(
    steps: list[Counted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(key: str) -> None:
        raise ConfigError("it does not fit")

    steps[0].before = refused
    assert main.run(["lab", "all", "--out", str(tmp_path)]) == 0
    assert "memory: memory 0 could not be done: it does not fit" in capsys.readouterr().err
    assert saved(tmp_path)["steps"][0]["finding"]["verdict"] == "not measured"
    assert "memory: memory 0: it does not fit" in saved(tmp_path)["about"]["could not be done"]


def test_report_judges_again_and_measures_nothing(steps: list[Counted], tmp_path: Path) -> None:
    assert main.run(["lab", "all", "--out", str(tmp_path), "--budget", "5"]) == 0
    before = saved(tmp_path)
    (tmp_path / "lab.html").unlink()
    with mock.patch.object(Counted, "judge", return_value=Finding(HOLDS, "judged anew")):
        assert main.run(["lab", "report", str(tmp_path)]) == 0
    after = saved(tmp_path)
    assert "judged anew" in (tmp_path / "lab.html").read_text(encoding="utf-8")
    assert after["about"] == before["about"]
    assert [len(step.done) for step in steps] == [2, 2]


def test_report_of_a_record_alone_needs_no_results(steps: list[Counted], tmp_path: Path) -> None:
    assert main.run(["lab", "all", "--out", str(tmp_path / "a")]) == 0
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "lab.json").write_bytes((tmp_path / "a" / "lab.json").read_bytes())
    assert main.run(["lab", "report", str(tmp_path / "b")]) == 0
    assert (tmp_path / "b" / "lab.html").read_bytes() == (tmp_path / "a" / "lab.html").read_bytes()


def test_wrong_folders_and_budgets_are_refused(
    steps: list[Counted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "lab.json").write_text("{", encoding="utf-8")
    cases = {
        ("all", "--out", str(tmp_path / "file")): "is a file",
        ("all", "--out", str(tmp_path / "a"), "--budget", "-1"): "--budget is -1",
        ("all", "--out", str(tmp_path / "a"), "--budget", "nan"): "--budget is nan",
        ("all",): "--out is missing",
        ("report", str(tmp_path / "none")): "there is no folder",
        ("report", str(tmp_path / "empty")): "holds neither",
        ("report", str(tmp_path / "broken")): "is not JSON",
    }
    for arguments, message in cases.items():
        assert main.run(["lab", *arguments]) == 2, arguments
        assert message in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_progress_says_what_runs_and_how_long(steps: list[Counted], capsys: pytest.CaptureFixture[str]) -> None:
    clock = mock.patch.object(measuring, "monotonic", side_effect=[0.0, 30.0, 60.0, 61.0])
    with clock, measuring.shown(measuring.Output(), 100.0) as told:
        told("memory (1 of 4)", 25.0)
        told("cost (2 of 4)", 60.0, 10.0)
        told("too soon to say again", 61.0)
    assert capsys.readouterr().err.splitlines() == [
        " 25%  memory (1 of 4), 1 min 30 s left",
        " 60%  cost (2 of 4), 48 s left",
    ]


def test_no_more_time_is_left_than_the_budget_has(capsys: pytest.CaptureFixture[str]) -> None:
    clock = mock.patch.object(measuring, "monotonic", side_effect=[0.0, 30.0, 60.0])
    with clock, measuring.shown(measuring.Output(), 1000.0, 70.0) as told:
        told("a", 100.0)
        told("b", 200.0)
    assert [line.split(", ")[1] for line in capsys.readouterr().err.splitlines()] == ["40 s left", "10 s left"]


def test_the_command_line_loads_without_torch() -> None:
    code = "import sys, handgrad.cli.main; print([m for m in sys.modules if m in ('torch', 'handgrad.lab.run')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lab"]) == 0
    told = capsys.readouterr().out
    assert [name for name in ("list", "run", "all", "report") if name not in told] == []
    for name in ("list", "run", "all", "report"):
        assert main.run(["lab", name, "--help"]) == 0
        assert "Try: handgrad lab" in capsys.readouterr().out


def test_results_are_read_from_where_the_runner_puts_them() -> None:
    assert measuring.RESULTS == lab_run.RESULTS
