"""`handgrad plan` for people and for programs, and what it refuses; the allocator's model; the calibration's file."""

from __future__ import annotations

import json
import resource
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from handgrad.cli import main
from handgrad.cli.planning import Asked, resolved
from handgrad.cli.settings import resolve
from handgrad.plan import calibrate
from handgrad.plan.calibrate import SIZES, Calibration, calibration, machine, names, read
from handgrad.plan.heap import DESCRIPTION, KEPT, SPARE, Heap
from handgrad.plan.trace import Product, Trace

SMALL = ["--layers", "2", "--heads", "2", "--width", "32", "--batch-size", "3"]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calibration:
    """Round rates instead of measured ones, in a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sizes = {str(size): 1e9 for size in SIZES}
    made = Calibration(machine(), dict.fromkeys(names(), 1e10), sizes, dict.fromkeys(sizes, 5e8), 1e-6)
    monkeypatch.setattr(calibrate, "measure", lambda: made)
    return made


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main.run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_for_programs(rates: Calibration, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, *SMALL)
    parts = ("parameter_bytes", "shadow_bytes", "gradient_bytes", "moment_bytes", "saved_bytes", "rest_bytes")
    assert found["peak_bytes"] == sum(int(str(found[part])) for part in parts)
    assert found["n_parameters"] == 256 * 32 + 64 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32
    assert found["forward_flops"] + found["backward_flops"] == found["step_flops"]
    assert found["cache_bytes_per_token"] == 2 * 2 * 32 * 4
    assert found["tokens_per_s"] == pytest.approx(3 * 64 / found["step_s"])
    assert found["process_bytes"] == found["base_bytes"] + found["held_bytes"]
    assert found["fits"] is None


def test_a_plan_for_people(rates: Calibration, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", *SMALL, "--dtype", "bfloat16"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "parameters ",
        "their shadow ",
        "saved for backward ",
        "alive at the peak ",
        "cache, keys ",
        "tokens/s",
    ):
        assert line in shown


def test_the_classic_example_comes_out_of_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--layers", "50", "--heads", "20", "--context", "5000", "--batch-size", "1", "--cache-only"]
    options += ["--cache-dtype", "bfloat16"]
    full, low = (planned(capsys, *options, "--width", str(20 * d_h))["cache"] for d_h in (1000, 200))
    assert (full["keys"], low["keys"]) == (10 * 10**9, 2 * 10**9)


@pytest.mark.parametrize(("search", "given"), [("batch-size", 3), ("context", 5)])
def test_a_flag_that_is_searched_is_said_not_to_count(
    search: str, given: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["plan", *SMALL, "--context", "5", "--no-time", "--fits", "1kB", "--search", search]) == 2
    assert f"--{search} is what --fits searches: the {given} given does not count\n" in capsys.readouterr().err


def test_flags_win_over_a_preset_as_they_do_for_train(capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"layers": 1, "width": 32, "vocabulary": 11, "batch_size": 2, "dropout": 0.25}
    shape, config = resolved(Asked(None, "demo", flags, None, None, None, False, False, False))
    settings = resolve({name: value for name, value in flags.items() if name != "vocabulary"}, ["a"], "demo", None)
    assert shape == settings.model_config(11)
    assert (shape.n_layers, shape.n_heads, shape.d_model, shape.bias) == (1, 4, 32, False)
    assert config == settings.train
    assert main.run(["plan", "--help"]) == 0
    assert "flags win over MODEL or --preset" in " ".join(capsys.readouterr().out.split())


def test_both_spellings_of_the_vocabulary_count_and_one_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (planned(capsys, *SMALL, "--no-time", f"--{name}", "99") for name in ("vocab-size", "vocabulary"))
    assert one["n_parameters"] == other["n_parameters"] != planned(capsys, *SMALL, "--no-time")["n_parameters"]
    for command in ("train", "plan"):
        assert main.run([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--vocab-size" in shown
        assert "--vocabulary" not in shown
    assert main.run(["train", "a.txt", "--out", "no/run", "--vocabulary", "5"]) == 2
    assert "--vocab-size 5 is for token ids only" in capsys.readouterr().err


def test_the_activation_is_planned_as_it_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, *SMALL, "--no-time", "--activation", "relu")["saved_bytes"]
    assert main.run(["plan", "--activation", "rel", "--no-time"]) == 2
    assert "did you mean 'relu'" in capsys.readouterr().err


def test_the_search_says_what_the_next_would_take(capsys: pytest.CaptureFixture[str]) -> None:
    one = planned(capsys, *SMALL[:-2], "--batch-size", "1", "--no-time")
    limit = int(str(one["process_bytes"])) + 30_000_000
    found = planned(capsys, *SMALL, "--no-time", "--fits", f"{limit}B")["fits"]
    assert found["value"] > 1
    assert found["held_bytes"] <= limit < found["next_held_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "10", "--heads", "3"], "--width 10 is not a multiple of --heads 3"),
        (["--batch-size", "0", "--dtype", "int8"], "--batch-size is 0, and must be at least 1"),
        (["--fits", "lots"], "--fits is 'lots', and must be a size such as 8GB"),
        (["--fits", "1kB"], "is too little: --batch-size 1 already takes"),
        (["--fits", "8GB", "--search", "heads"], "--search is 'heads', and must be one of batch-size, context"),
        (["--search", "context"], "--search is for --fits, which is not there"),
        (["--calibrate"], "--no-time leaves out the estimate that --calibrate measures for; leave one of them out"),
        (["--cache-dtype", "int4"], "--cache-dtype is 'int4', and must be one of"),
        (["no/such/run"], "there is no model 'no/such/run'"),
        (["no/such/run", "--preset", "tiny"], "MODEL and --preset were both given"),
        (["--preset", "tinny"], "did you mean 'tiny'?"),
        (["--update", "inside", "--accumulate", "2"], "--update inside cannot go with --accumulate 2"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "--no-time", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) <= 3


def test_rates_are_kept_and_measured_again_where_they_do_not_belong(rates: Calibration) -> None:
    path = calibrate.folder() / "calibration.json"
    assert read(path) is None
    assert asdict(calibration()) == asdict(rates)
    assert read(path) == rates
    good = path.read_text()
    for damaged in ("", "{}", "[]", good[:-9], good.replace("1e-06", "-1"), good.replace("1e-06", "NaN")):
        path.write_text(damaged)
        assert read(path) is None
        assert calibration() == rates
        assert path.read_text() == good
    other = json.loads(good)
    other["machine"]["threads"] += 1
    other["call_s"] = 7.0
    path.write_text(json.dumps(other))
    assert calibration().call_s == rates.call_s


def test_a_folder_that_refuses_costs_nothing_but_the_time(
    rates: Calibration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert calibration() == rates


def test_the_time_of_a_trace_is_the_sum_of_its_parts(rates: Calibration) -> None:
    trace = Trace()
    trace.products[Product(torch.float32, "nn", 1, 100, 100, 50)] = 3
    assert rates.step_s(trace) == pytest.approx(3 * (1e6 / 1e10 + 1e-6))


def test_rates_measured_here_are_rates() -> None:
    assert calibrate.seconds(lambda: sum(range(1000))) > 0
    a = calibrate.factor("t", 3, 5, 7, torch.float64)
    assert a.shape == (3, 5, 7)
    assert a.stride(-2) == 1


def test_a_hole_is_used_again_by_smaller_blocks_and_joined_with_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handgrad.plan.heap.DESCRIPTION", ())
    heap = Heap(mapped_from=1 << 20)
    for key in "abcd":
        heap.take(key, 10_000)
    before = heap.held
    heap.give("b")
    heap.take("e", 10_000 - SPARE)
    assert heap.held == before
    heap.give("e")
    heap.give("c")
    heap.take("f", 20_000 - SPARE)
    assert heap.held == before
    heap.take("g", 1 << 20)
    assert heap.held >= before + (1 << 20)
    heap.give("g")
    assert heap.held == before
    assert heap.peak >= before + (1 << 20)
    for key in "adf":
        heap.give(key)
    assert (heap.end, heap.holes, heap.held) == (0, [], before)


def test_what_describes_a_block_keeps_its_neighbours_apart() -> None:
    """a, then its description, then b, …: once a and b are free, c's description still lies between their holes."""
    heap = Heap(mapped_from=1 << 20)
    for key in "ab":
        heap.take(key, 10_000)
    heap.give("a")
    heap.take("c", 100)  # at the beginning of a's hole, and its description in what a's left behind
    heap.give("b")
    held = heap.held
    heap.take("d", 19_000)
    assert heap.held > held
    assert all(len(starts) <= KEPT for starts in heap.kept.values())


def test_descriptions_that_are_given_up_are_kept_and_used_first() -> None:
    heap = Heap(mapped_from=1 << 20)
    for i in range(KEPT + 3):
        heap.take(i, 10_000)
    places = [heap.beside[i] for i in range(KEPT + 3)]
    for i in range(KEPT + 3):
        heap.give(i)
    assert [len(starts) for starts in heap.kept.values()] == [KEPT] * len(DESCRIPTION)
    heap.take("next", 10_000)
    assert heap.beside["next"] == places[KEPT - 1]


LLAMA = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 10_000}, "more than 60,000 operators for one window, too many to plan; use fewer --la"),
        ({"max_position_embeddings": 2**31}, "the context is 2,147,483,648 tokens, and windows of at most 262,144"),
        ({"max_position_embeddings": 2**18, "num_hidden_layers": 99}, "more than 60,000 operators for one window"),
        ({"head_dim": 2**20}, "the context is 64 tokens, and windows of at most 32 in heads 1048576 wide are planned"),
        (
            {"hidden_size": 2**20, "intermediate_size": 2**24, "num_hidden_layers": 100, "vocab_size": 2**31},
            "parameters, and at most 10,000,000,000,000 are planned; use a smaller --width or fewer --layers",
        ),
    ],
)
def test_hostile_shapes_are_refused_soon_and_take_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, int], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | fields))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    assert main.run(["plan", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert time.process_time() - start < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB


def test_micro_batches_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", *SMALL, "--accumulate", str(10**9)]) == 2
    shown = capsys.readouterr().err
    assert "1,000,000,000 passes of" in shown
    assert int(shown.split("use --accumulate ")[1].split()[0]) > 100
