"""`handgrad equations`, `handgrad mistakes`, `handgrad explain`: for people, for programs, and when all is not well."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from handgrad.check.equation import Equation
from handgrad.check.mistakes import MISTAKES
from handgrad.check.plant import Mistake, planted
from handgrad.check.registry import EQUATIONS, equation
from handgrad.check.tables import Planted, as_csv, from_csv, plant, write
from handgrad.cli import main, proving
from handgrad.core.errors import FileError
from handgrad.rules import linear

ONE = next(m for m in MISTAKES if m.function is linear.backward)
UNSEEN = Mistake("harmless", linear.forward, "product(a, w)", "product((a), w)", "linear", "forward")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def registry_of(monkeypatch: pytest.MonkeyPatch, *rows: Equation) -> None:
    monkeypatch.setattr(proving, "EQUATIONS", rows)


def test_the_whole_registry_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["equations", "--json"]) == 0
    *rows, last = lines(capsys)
    assert [row["id"] for row in rows] == [e.id for e in EQUATIONS]
    assert {row["status"] for row in rows} == {"complete"}
    assert set(rows[0]) == {
        "id", "section", "forward", "backward", "code", "page", "check", "optional", "status",
    }  # fmt: skip
    assert last == {"equations": len(EQUATIONS), "complete": len(EQUATIONS), "checked": False}


def test_one_equation_for_people_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["equations", "linear", "--check"]) == 0
    e = equation("linear")
    assert capsys.readouterr().out == (
        f"\nfully connected\n  linear: ok\n    forward   {e.forward}\n    backward  {e.backward}\n"
        f"    code      {e.code}\n    page      docs/{e.page}\n    check     {e.check}\n"
        "\n1 of 1 equations (100%) with code, page and a check that holds\n"
    )


def test_an_installed_package_says_that_it_has_no_docs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proving, "DOCS", tmp_path / "none")
    assert main.run(["equations", "linear"]) == 0
    text = "1 of 1 equations (100%) with code (the docs did not come along) and check\n"
    assert capsys.readouterr().out.endswith(text)


def test_what_is_missing_or_broken_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = equation("linear")
    registry_of(monkeypatch, right, replace(right, id="gone", code="handgrad.rules.gone:backward"))
    assert main.run(["equations", "--json"]) == 1
    assert [row.get("status") for row in lines(capsys)] == ["complete", "no code handgrad.rules.gone:backward", None]
    assert main.run(["equations"]) == 1
    assert "1 of 2 equations (50%) with code, page and check\n" in capsys.readouterr().out

    registry_of(monkeypatch, right, equation("layer-norm"))
    with planted(ONE):
        assert main.run(["equations", "--check", "--json"]) == 1
    first, second, last = lines(capsys)
    assert str(first["status"]).startswith("broken: ")
    assert (second["status"], last) == ("ok", {"equations": 2, "complete": 1, "checked": True})


def test_a_check_that_cannot_run_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = equation("linear")
    registry_of(monkeypatch, replace(right, id="bad", check="handgrad.check.registry:equation"), right)
    assert main.run(["equations", "--check", "--json"]) == 1
    found = [str(row.get("status")) for row in lines(capsys)]
    assert found[0].startswith("broken: TypeError: equation() missing 1 required positional argument")
    assert found[1] == "ok"


def test_an_unknown_equation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["equations", "softmx"]) == 2
    assert capsys.readouterr().err.startswith("handgrad: no equation named 'softmx'; did you mean 'softmax'?")


def test_mistakes_are_planted_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proving, "MISTAKES", (ONE,))
    table = tmp_path / "mistakes.csv"
    assert main.run(["mistakes", "--out", str(table)]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "rule    what was planted             first seen at  expected     ok\n"
        "linear  w not transposed going down  Delta below    Delta below  yes\n"
        "\n1 mistakes planted in 1 files, 1 seen where they were expected\n"
    )
    assert shown.err == f"written: {table}\n"
    (row,) = from_csv(table.read_text(encoding="utf-8"))
    assert (row["planted"], row["line"], row["wrong"], row["ok"]) == (ONE.what, ONE.line, ONE.wrong, "yes")
    assert main.run(["mistakes", "--json"]) == 0
    first, last = lines(capsys)
    assert (first["seen"], first["ok"], last) == ("Delta below", True, {"mistakes": 1, "ok": 1})


def test_a_mistake_that_is_missed_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proving, "MISTAKES", (ONE, UNSEEN))
    assert main.run(["mistakes"]) == 1
    shown = capsys.readouterr().out
    assert "linear  harmless                     nowhere        forward      NO\n" in shown
    assert "2 mistakes planted in 1 files, 1 seen where they were expected" in shown
    assert not plant(UNSEEN).ok
    assert not plant(replace(ONE, where="w")).ok


def test_a_table_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileError, match=r"cannot write '.*no/a.csv': No such file or directory; choose a folder"):
        write(tmp_path / "no" / "a.csv", "")
    text = as_csv([Planted("a", 'quoted "b", and\nlines', "x", "", "on", "w", "")])
    write(tmp_path / "a.csv", text)
    write(tmp_path / "a.csv", text)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    (row,) = from_csv((tmp_path / "a.csv").read_text(encoding="utf-8"))
    assert (row["planted"], row["wrong"], row["ok"]) == ('quoted "b", and\nlines', "", "NO")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    (folder / "a.txt").write_text("the cat sat on the mat.\n" * 30, encoding="utf-8")
    shape = ["--layers", "2", "--heads", "2", "--width", "8", "--context", "8", "--steps", "2"]
    assert main.run(["train", str(folder / "a.txt"), "--out", str(folder / "run"), "--tokenizer", "chars", *shape]) == 0
    return folder / "run"


def test_a_model_is_explained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main.run(["explain", str(run)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == ["layer", "kind", "rule", "form", "why", "equations"]
    assert "2 x  blocks.*.attention.query  Linear " in shown
    assert "norm_1ᵗ Δ_query" in shown
    assert "OHE(t)ᵗ Δ_token + Δ_headᵗ norm" in shown
    assert main.run(["explain", str(run), "--json"]) == 0
    *rows, last, trained = lines(capsys)
    assert trained["trained_with"]["update"] == "after"
    layers = [row for row in rows if "path" in row]
    gradients = [row for row in rows if "formula" in row]
    assert len(layers) + len(gradients) == len(rows)
    assert last == {"total": sum(int(str(row["count"])) for row in gradients)}
    assert {"path", "layer", "rule", "implementation", "why", "equations", "in_training"} == set(layers[0])
    assert {row["implementation"] for row in layers} <= {"explicit", "fused"}
    assert len([row for row in gradients if str(row["name"]).startswith("blocks.1.")]) == 16


def test_how_a_model_was_trained_stands_beside_how_it_runs_now(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "in training  now" not in explained_text(run, capsys)  # both are alike
    how = ["--impl", "explicit", "--recompute", "cheap", "--update", "inside", "--dtype", "bfloat16"]
    shape = ["--layers", "2", "--heads", "2", "--width", "8", "--context", "8", "--steps", "2", *how]
    assert main.run(["train", str(run.parent / "a.txt"), "--out", str(tmp_path / "run"), *shape]) == 0
    text = explained_text(tmp_path / "run", capsys)
    assert text.splitlines()[0].split() == ["layer", "kind", "rule", "in", "training", "now", "why", "equations"]
    (attention,) = (row.split() for row in text.splitlines() if "blocks.*.attention " in row)
    assert attention[5:7] == ["explicit", "fused"]
    table = [row.split() for row in text[text.index("setting") :].splitlines()[1:]]
    assert table == [
        ["--dtype", "bfloat16", "float32"],
        ["--impl", "explicit", "auto"],
        ["--recompute", "cheap", "nothing"],
        ["--update", "inside", "none"],
        ["--compile", "no", "no"],
    ]


def explained_text(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main.run(["explain", str(run)]) == 0
    return capsys.readouterr().out


def test_a_model_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", "no/such"]) == 2
    assert capsys.readouterr().err.startswith("handgrad: there is no model 'no/such'")
