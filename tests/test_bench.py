"""The bench: its table says reached, missed and not measured as the rows say, and an absent peer is named."""

import csv
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import common, gpt2_step, process, run, table, update_in_backward  # noqa: E402
from benchmarks.lines import BF16, FLOAT32, GPT2, LINES, Line, column  # noqa: E402
from benchmarks.results import Results  # noqa: E402

MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")


def written(folder: Path, file: str, rows: list[dict[str, object]]) -> Results:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(folder / f"{file}.csv", "w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)
    return Results(folder)


def steps(rates: dict[str, float], when: str = "2026-01-01", **more: object) -> list[dict[str, object]]:
    return [{"work": GPT2, "who": who, "tokens_per_s": rate, "run": when, **more} for who, rate in rates.items()]


SPEED = Line("speed", column("gpt2_step", GPT2, "tokens_per_s"), "us", ("them",), "{:.0f}", "them", at_least=1.4)
PEAK = Line("peak", column("gpt2_step", GPT2, "peak_bytes", 1e-9), "us", shown="{:.1f} GB", at_most=2.2)


@pytest.mark.parametrize(("rate", "reached"), [(140.0, "yes"), (139.9, "no")])
def test_a_ratio_is_held_to_its_aim(tmp_path: Path, rate: float, reached: str) -> None:
    said = table.verdict(SPEED, written(tmp_path, "gpt2_step", steps({"us": rate, "them": 100.0})))
    assert said.reached == reached
    assert said.peers == "them 100"
    assert said.ratio == f"{rate / 100:.2f}"


@pytest.mark.parametrize(("peak", "reached"), [(2.2e9, "yes"), (2.3e9, "no")])
def test_a_figure_is_held_to_its_aim(tmp_path: Path, peak: float, reached: str) -> None:
    said = table.verdict(PEAK, written(tmp_path, "gpt2_step", steps({"us": 1.0}, peak_bytes=peak)))
    assert (said.reached, said.ratio, said.aim) == (reached, "", "at most 2.2 GB")


def test_what_refused_and_what_is_absent_is_said_and_never_reached(tmp_path: Path) -> None:
    ours = {**steps({"us": 0.0})[0], "tokens_per_s": "", "unavailable": "no bfloat16"}
    said = table.verdict(SPEED, written(tmp_path, "gpt2_step", [ours, *steps({"them": 100.0})]))
    assert (said.ours, said.reached) == ("not measured: no bfloat16", "not measured")
    said = table.verdict(SPEED, written(tmp_path, "gpt2_step", steps({"us": 900.0})))
    assert (said.peers, said.reached) == ("them (not measured: no row in gpt2_step.csv)", "not measured")


def test_the_latest_run_counts_whole(tmp_path: Path) -> None:
    old, new = steps({"us": 200.0, "them": 100.0}, "2026-01-01"), steps({"us": 90.0}, "2026-01-02")
    said = table.verdict(SPEED, written(tmp_path, "gpt2_step", old + new))
    assert (said.ours, said.reached) == ("90", "not measured")  # the peer of the older run is not borrowed


def test_rows_of_a_new_kind_join_a_file_and_old_ones_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common.write("a", [{"work": "w", "who": "us", "x": 1}], tmp_path)
    common.write("a", [{"work": "w", "who": "us", "y": 2}], tmp_path)
    first, second = common.read(tmp_path / "a.csv")
    assert (first["x"], first["y"], second["x"], second["y"]) == ("1", "", "", "2")
    assert second["run"] >= first["run"] > ""
    assert capsys.readouterr().out.count("1 rows added") == 2


def test_the_files_are_written_with_lost_lines_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"top\n{table.BEGIN}\nold\n{table.END}\nend\n")
    about = {"machine": "m", "python": "3", "torch": "2"}
    rates = {"handgrad float32": 100.0, FLOAT32[0]: 100.0, "handgrad bfloat16": 500.0, BF16[0]: 300.0}
    written(folder, "gpt2_step", steps(rates, **about))
    table.main(folder, tmp_path)
    readme, page = (tmp_path / "README.md").read_text(), (tmp_path / "docs" / "bench.md").read_text()
    assert readme.startswith("top\n")
    assert readme.endswith(f"{table.END}\nend\n")
    assert "old" not in readme
    for text in (readme, page):
        assert "| 100 tokens/s | 1.00 | at least 1.4 x transformers eager float32 | no |" in text
        assert "| 500 tokens/s | 1.67 | at least 1.5 x transformers autocast bfloat16 | yes |" in text
    assert "1 of" in capsys.readouterr().out


def test_every_line_can_be_missed_and_names_rows_that_are_measured() -> None:
    for line in LINES:
        worse = (line.at_least - 0.01) if line.at_least is not None else (line.at_most or 0.0) + 0.01
        assert line.reached(worse) == ("no" if line.aim() else "-"), line.work
        assert not line.against or line.against in line.peers, line.work
    step = [line for line in LINES if line.work.startswith(GPT2)]
    assert step
    assert all({line.ours, *line.peers} <= set(gpt2_step.WORKS) for line in step)


def test_a_line_names_what_handgrad_is_run_with_and_no_two_lines_are_alike() -> None:
    for line in LINES:
        if line.work.startswith((GPT2, "its peak", "step time")) and line.ours in gpt2_step.WORKS:
            assert line.flags == as_flags(gpt2_step.WORKS[line.ours].keywords), line.work
        if line.ours in update_in_backward.WORKS:
            assert line.flags == as_flags(update_in_backward.INSIDE), line.work
        assert ("--compile" in line.label()) == ("compiled" in line.ours), line.work
    labels = [(line.label(), line.aim()) for line in LINES]
    assert len(set(labels)) == len(labels)
    assert f"| {LINES[0].work}; handgrad --recompute cheap |" in table.markdown(table.verdicts(Results(Path("none"))))


def as_flags(settings: dict[str, object]) -> str:
    return " ".join(f"--{name} {value}" for name, value in settings.items() if name != "dtype")


def test_different_work_is_seen() -> None:
    rows = [{"who": who, "first_loss": 11.0, "first_norm": 6.0} for who in gpt2_step.WORKS]
    assert gpt2_step.differences(rows) == []
    rows[0]["first_norm"] = 6.01
    rows[1]["first_loss"] = 11.1
    assert [text.split(":")[0] for text in gpt2_step.differences(rows)] == ["handgrad float32", "handgrad bfloat16"]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_without_its_peers(name: str) -> None:
    blocked = ("transformers", "peft", "opacus", "gguf", "llama_cpp")
    code = f"import sys\nfor n in {blocked}: sys.modules[n] = None\nimport benchmarks.{name}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_absent_peer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    process.answer(lambda: gpt2_step.one("transformers eager float32"))
    why = process.refusal([json.loads(capsys.readouterr().out)])
    assert why == "transformers is not installed"
    assert gpt2_step.row("transformers eager float32", [{"unavailable": why}])["unavailable"] == why


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(process.Unavailable, match=r"needs a C\+\+ compiler, and 'no-such-compiler'"):
        gpt2_step.one("compiled twin bfloat16")


def test_a_setting_that_is_not_there_is_named() -> None:
    works = importlib.import_module("benchmarks.works")
    with pytest.raises(process.Unavailable, match="no field no_such_thing"):
        works.configured(no_such_thing=True)


def test_a_broken_measurement_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANDGRAD_BENCH_PREFIX", raising=False)
    with pytest.raises(RuntimeError, match=r"benchmarks\.gpt2_step --one nobody ended with 2"):
        process.ask("benchmarks.gpt2_step", "--one", "nobody")


def test_run_takes_the_works_in_order_and_names_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.chosen([]) == list(run.WORKS)
    with pytest.raises(SystemExit):
        run.main(["--only", "nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err


def test_the_same_weights_give_the_twin_and_transformers_the_same_step() -> None:
    pytest.importorskip("transformers")
    works, twin = importlib.import_module("benchmarks.works"), importlib.import_module("benchmarks.twin")
    shape = gpt2_step.GPT2Config(vocabulary=11, context=7, n_layers=2, n_heads=3, d_model=12)
    ours, theirs, other = works.HandStep(shape), works.TransformersStep(shape), twin.TwinStep(shape)
    flat = ours.model.params.flat
    flat.add_(0.1 * gpt2_step.shifted(7, 1, len(flat))[0][0])  # no gain is 1, no offset is 0
    theirs.take(ours.model)
    other.take(ours.model.params)
    x, y = works.shifted(11, 3, 7)
    loss, norm = ours(x, y)
    for found in (theirs(x, y), other(x, y)):
        assert found == (pytest.approx(loss, rel=1e-5), pytest.approx(norm, rel=1e-4))
