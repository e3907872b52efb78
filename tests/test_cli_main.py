"""How any command begins and ends: light imports, exit statuses, plain words, both kinds of reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import handgrad
from handgrad.cli import demo, generate, main, train
from handgrad.cli.options import problems, quoted
from handgrad.cli.output import Output, as_json, duration
from handgrad.cli.stops import UntilStop, beginning
from handgrad.cli.words import usage_problem

HEAVY = ("torch", "numpy", "plotly", "jinja2", "rich", "safetensors")


def in_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_help_and_usage_errors_load_nothing_heavy() -> None:
    lines = [["--help"], ["--version"], ["train", "--help"], ["demo", "--help"], [], ["train", "--stpes"], ["trian"]]
    done = in_python(
        "import sys; from handgrad.cli.main import run\n"
        f"statuses = [run(arguments) for arguments in {lines!r}]\n"
        f"print('loaded', [name for name in {HEAVY!r} if name in sys.modules], statuses)"
    )
    assert done.stdout.splitlines()[-1] == "loaded [] [0, 0, 0, 0, 0, 2, 2]", done.stderr


def test_the_version_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"handgrad {handgrad.__version__}\n"
    assert main.run(["--json", "--version"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": handgrad.__version__}


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    shown = capsys.readouterr().out
    assert main.run(["--help"]) == 0
    assert capsys.readouterr().out == shown
    assert all(f"\n  {name} " in shown for name in ("demo", "train", "generate"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no such command 'trian'. Did you mean 'train'? See handgrad --help"),
        (["train", "--stpes", "4"], "there is no option --stpes; did you mean --steps? See handgrad train --help"),
        (["generate", "--xyz"], "there is no option --xyz"),
        (["train", "--out"], "--out needs a value"),
        (["train", "a", "--lr", "abc"], "--lr is 'abc', and must be a number. See handgrad train --help"),
        (["train", "a", "--lr", "1", "--lr=x"], "--lr is 'x', and must be a number"),
        (["train", "a", "--steps", "1.5"], "--steps is '1.5', and must be a whole number"),
        (["generate"], "MODEL is missing. See handgrad generate --help"),
    ],
)
def test_usage_errors_are_one_plain_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"handgrad: {message}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_an_error_is_one_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--json", "generate", "no/such"], ["generate", "no/such", "--json"]):
        assert main.run(arguments) == 2
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        assert found == {"error": found["error"], "exit": 2}
        assert found["error"].startswith("there is no model 'no/such'")
        assert shown.err == f"handgrad: {found['error']}\n"


def raising(error: BaseException):
    def command(*args: object, **kwargs: object) -> None:
        raise error

    return command


def ends_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("handgrad.cli.writing.write", raising(error))
    return main.run(["generate", "a"])


def test_our_fault_is_status_1_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HANDGRAD_TRACEBACK", raising=False)
    assert ends_with(KeyError("x\ny"), monkeypatch) == 1
    shown = capsys.readouterr().err
    assert shown == (
        "handgrad: internal error, KeyError: 'x\\ny'. Please report it; HANDGRAD_TRACEBACK=1 shows where it happened\n"
    )
    monkeypatch.setenv("HANDGRAD_TRACEBACK", "1")
    assert ends_with(RuntimeError("first\nsecond"), monkeypatch) == 1
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert shown.splitlines()[-1].startswith("handgrad: internal error, RuntimeError: first. Please")


def test_an_input_at_fault_is_status_2_also_with_the_traceback_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from handgrad.core.errors import FileError

    monkeypatch.setenv("HANDGRAD_TRACEBACK", "1")
    assert ends_with(FileError("this file is not there"), monkeypatch) == 2
    assert capsys.readouterr().err == "handgrad: this file is not there\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_too_little_memory_is_said(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(error, monkeypatch) == 2
    assert "there is not enough memory for this; a smaller --batch-size" in capsys.readouterr().err


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "handgrad: interrupted\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys, handgrad.cli.writing as w\n"
        "from handgrad.cli.main import run\n"
        "def write(request, path, output):\n"
        "    while True: output.text('a line')\n"
        "w.write = write\n"
        "sys.exit(run(['generate', 'a']))"
    )
    # With a buffer, what could not be written is tried again when the interpreter ends.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, env=buffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_a_console_that_lacks_characters_gets_others() -> None:
    code = (
        "import sys, handgrad.cli.writing as w\n"
        "from handgrad.cli.main import run\n"
        "def write(request, path, output):\n"
        "    output.text('a \\u203b b'); output.note('\\u2603'); output.record({'text': '\\u203b'})\n"
        "w.write = write\n"
        "sys.exit(run(sys.argv[1:] + ['generate', 'a']) or run(['--json', 'generate', 'a']))"
    )
    done = in_python(code, PYTHONIOENCODING="cp1252")
    assert (done.returncode, done.stdout) == (0, 'a ? b\n{"text": "\\u203b"}\n')
    assert done.stderr == "?\na ? b\n?\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json"], "--json needs a command whose results it gives, such as handgrad eval. See handgrad --help"),
        (["--help", "--json"], "--help is text for people and --json is for programs; leave one of them out"),
        (["plan", "--json", "-h"], "--help is text for people and --json is for programs; leave one of them out"),
    ],
)
def test_json_without_results_is_refused_in_json(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"error": message, "exit": 2}
    assert shown.err == f"handgrad: {message}\n"


def test_json_is_one_line_of_ascii_and_knows_no_nan() -> None:
    line = as_json({"a": float("nan"), "b": [1.5, float("-inf")], "c": Path("x") / "y", "d": (True, None), "é": "☃\n"})
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {"a": None, "b": [1.5, None], "c": "x/y", "d": [True, None], "é": "☃\n"}


def test_text_never_mixes_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    for for_programs in (True, False):
        output = Output(for_programs)
        output.text("result")
        output.note("notice")
        output.record({"x": 1})
        shown = capsys.readouterr()
        assert shown.out == ('{"x": 1}\n' if for_programs else "result\n")
        assert shown.err == ("result\nnotice\n" if for_programs else "notice\n")


def test_durations_and_quotes_and_lists() -> None:
    assert [duration(s) for s in (0, 59.4, 59.6, 3599, 3600)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 00 min",
    ]
    assert quoted("it's") == """'it'"'"'s'"""
    assert problems(["--a is 1; b; --c is 2", "x"]) == "--a is 1; b\n--c is 2\nx"


def test_commands_have_short_names_of_their_own() -> None:
    assert {f.__module__ for f in (demo.demo, train.train, generate.generate)} == {
        "handgrad.cli.demo",
        "handgrad.cli.train",
        "handgrad.cli.generate",
    }


def test_usage_errors_of_other_versions_of_the_parser_are_understood() -> None:
    class Old(Exception):
        message = "'abc' is not a valid float."

        class param:
            opts = ("-l", "--lr")

    assert usage_problem(Old(), ["--lr", "abc"]) == "--lr is 'abc', and must be a number. See handgrad --help"
    Old.message = "odd."
    assert usage_problem(Old(), ["--lr", "abc"]) == "--lr: odd. See handgrad --help"


def pieces(text: str, stops: tuple[str, ...], size: int) -> tuple[str, bool]:
    until = UntilStop(stops)
    shown = "".join(until.push(text[at : at + size]) for at in range(0, len(text), size))
    return shown + until.flush(), until.found


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one END two", ("END",), ("one ", True)),
        ("aaab", ("aab",), ("a", True)),
        ("ababac", ("abac",), ("ab", True)),
        ("no stop EN", ("END",), ("no stop EN", False)),
        ("first b then a", ("a", "b"), ("first ", True)),
        ("xyz", (), ("xyz", False)),
        ("stop", ("stop",), ("", True)),
        ("a\n\nb", ("\n\n", "q"), ("a", True)),
    ],
)
def test_a_stop_ends_the_text_however_it_is_cut(
    size: int, text: str, stops: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    assert pieces(text, stops, size) == expected


def test_text_is_held_back_only_as_long_as_it_may_become_a_stop() -> None:
    until = UntilStop(("END",))
    assert [until.push(piece) for piece in "xENxE"] == ["x", "", "", "ENx", ""]
    assert until.flush() == "E"
    assert beginning("xEN", "END") == 2
