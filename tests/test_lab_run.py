"""Runs of the laboratory: saved as they go, resumed, cut fairly, told as they were."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import pytest

from handgrad.core.errors import FileError, NumericError
from handgrad.lab.run import Hears, assembled, file_of, found, in_rounds, run, save, write
from handgrad.lab.steps import HOLDS, OPEN, Finding, Number, Trial


@dataclass
class Plain:
    name: str
    seconds: tuple[float, ...] = (1.0, 1.0)
    work: object = None
    done: list[str] = field(default_factory=list)
    question: str = "Why?"
    claim: str = "It is so."
    formula: str = "a"
    rungs: tuple[str, ...] = ("rnn",)

    def trials(self):
        return [Trial(f"{self.name} {i}", s, self.worker(i)) for i, s in enumerate(self.seconds)]

    def worker(self, i):
        def work(say):
            say("at it", 0.5)
            self.done.append(f"{self.name} {i}")
            return self.work(i) if self.work else {"value": i}

        return work

    def judge(self, results):
        values = [results[f"{self.name} {i}"]["value"] for i in range(len(self.seconds))]
        return Finding(HOLDS, f"sum {sum(values)}", [Number.over("value", values)])


def test_results_are_saved_and_not_done_again(tmp_path):
    step = Plain("a")
    first = run([step], tmp_path)
    assert step.done == ["a 0", "a 1"]
    assert first.results == {"a": {"a 0": {"value": 0}, "a 1": {"value": 1}}}
    again = run([step], tmp_path)
    assert step.done == ["a 0", "a 1"]
    assert again.results == first.results
    saved = json.loads(file_of(tmp_path / "results", "a 1").read_text())
    assert saved["key"] == "a 1"
    assert saved["result"] == {"value": 1}
    assert {"torch", "python"} <= set(saved["versions"])


def test_a_budget_cuts_the_last_trials_of_every_step(tmp_path):
    steps = [Plain("a", (10, 10, 10)), Plain("b", (10, 10)), Plain("c", (10,))]
    heard = []

    class Ear(Hears):
        def cuts(self, step, trial):
            heard.append(trial.key)

    ran = run(steps, tmp_path, minutes=11 / 60, hears=Ear())
    assert [step.done for step in steps] == [["a 0", "a 1", "a 2"], ["b 0", "b 1"], ["c 0"]]  # quicker than was said
    assert ran.cut == {}
    assert heard == []
    steps = [Plain("d", (10, 999)), Plain("e", (10, 10)), Plain("f", (998,))]
    ran = run(steps, tmp_path, minutes=1, hears=Ear())
    assert [step.done for step in steps] == [["d 0"], ["e 0", "e 1"], []]
    assert ran.cut == {"d": ["d 1"], "f": ["f 0"]}
    assert heard == ["f 0", "d 1"]
    content = assembled(steps, ran, 1)
    d, e, f = (one["finding"] for one in content["steps"])
    assert (d["verdict"], e["verdict"], f["verdict"]) == (OPEN, HOLDS, OPEN)
    assert "budget of minutes was used up: 1 of 2 trials (d 1)" in d["notes"][0]


def test_slow_trials_make_the_rest_count_as_slow(tmp_path):
    step = Plain("a", (1.01, 1.0, 1.0), work=lambda i: time.sleep(1.5) or {"value": i})
    ran = run([step], tmp_path, minutes=2.6 / 60)
    assert step.done == ["a 0"]  # 1.5 s gone, and a second one would take 1.5 s again, not 1.0
    assert ran.cut == {"a": ["a 1", "a 2"]}


def test_rounds():
    a, b = Plain("a", (1, 1, 1)), Plain("b", (1,))
    order = in_rounds([(step, step.trials()) for step in (a, b)])
    assert [trial.key for _, trial in order] == ["a 0", "b 0", "a 1", "a 2"]


def test_ctrl_c_keeps_what_is_done(tmp_path):
    def work(i):
        if i == 1:
            raise KeyboardInterrupt
        return {"value": i}

    step = Plain("a", (1, 1, 1), work)
    ran = run([step], tmp_path)
    assert ran.interrupted
    assert ran.results == {"a": {"a 0": {"value": 0}}}
    assert ran.cut == {"a": ["a 1", "a 2"]}
    assert "the run was stopped" in assembled([step], ran)["steps"][0]["finding"]["notes"][0]
    step.work = None
    assert set(run([step], tmp_path).results["a"]) == {"a 0", "a 1", "a 2"}
    assert step.done == ["a 0", "a 1", "a 1", "a 2"]
    assert run([Plain("b")], tmp_path, stop=lambda: True).cut == {"b": ["b 0", "b 1"]}


def test_what_fails_is_told_and_the_rest_goes_on(tmp_path):
    def work(i):
        if i == 0:
            raise NumericError("not finite")
        return {"value": float("nan")}

    step = Plain("a", (1, 1), work)
    ran = run([step], tmp_path)
    assert ran.failed == {"a": {"a 0": "not finite"}}
    assert ran.results == {"a": {"a 1": {"value": None}}}  # JSON has no nan
    finding = assembled([step], ran)["steps"][0]["finding"]
    assert finding["verdict"] == OPEN
    assert "Could not be done: a 0: not finite" in finding["notes"]


@pytest.mark.parametrize("judge", [lambda r: r["gone"], lambda r: "a" + 1, lambda r: [][0]])
def test_results_that_cannot_be_judged_are_named(tmp_path, judge):
    step = Plain("a")
    step.judge = judge
    with pytest.raises(FileError, match="the results of the step a cannot be judged"):
        assembled([step], run([step], tmp_path))


def test_a_result_of_other_settings_is_measured_again(tmp_path):
    """What a key leaves out, since it was the default, may have become another default."""
    where = tmp_path / "results"
    where.mkdir()
    save(where, "a", {"fit": {"steps": 800}, "x": 1}, 0.0)
    assert found(where, "a", {"fit": {"steps": 800}}) == {"fit": {"steps": 800}, "x": 1}
    assert found(where, "a", {"fit": {"steps": 900}}) is None


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity", "1" + "0" * 400])
def test_a_number_that_is_none_is_refused(tmp_path, number):
    step = Plain("a", (1,))
    run([step], tmp_path)
    path = file_of(tmp_path / "results", "a 0")
    path.write_text(json.dumps({"key": "a 0", "result": {"value": "NUMBER"}}).replace('"NUMBER"', number))
    with pytest.raises(FileError):
        run([step], tmp_path)


def test_the_report_is_json(tmp_path):
    step = Plain("a")
    content = assembled([step], run([step], tmp_path), 20)
    read = json.loads(write(tmp_path, content).read_text())
    assert read == content
    assert read["steps"][0]["finding"]["numbers"][0]["label"] == "value"
    assert read["machine"]["cores"] >= 1


def test_a_damaged_or_foreign_file_is_refused(tmp_path):
    step = Plain("a", (1,))
    run([step], tmp_path)
    path = file_of(tmp_path / "results", "a 0")
    path.write_text("{")
    with pytest.raises(FileError, match="is not JSON"):
        run([step], tmp_path)
    save(tmp_path / "results", "other", {}, 0.0)
    file_of(tmp_path / "results", "other").replace(path)
    with pytest.raises(FileError, match="is not the result of the trial 'a 0'"):
        run([step], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write into the folder"):
        run([step], tmp_path / "file")
