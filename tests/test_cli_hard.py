"""The command line in hard places: closed or full streams, Ctrl-C at any moment, impossible names, huge requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import handgrad
from handgrad.cli import main, showing
from handgrad.cli.running import Ended, summary
from handgrad.core.errors import ConfigError
from handgrad.train.loop import Result

SMALL = ["--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--batch-size", "2"]
TEXT = "the cat sat on the mat, and the dog sat on the log. " * 30
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a small text."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    return Path("text.txt")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of the shell, where `handgrad` is this one."""
    line = line.replace("handgrad", f"{sys.executable} -m handgrad", 1)
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("handgrad --version >&-", 2, "handgrad: cannot write to standard output: Bad file descriptor\n"),
        ("handgrad --json --version >&-", 2, "handgrad: cannot write to standard output: Bad file descriptor\n"),
        ("handgrad --help >&-", 2, "handgrad: cannot write to standard output: Bad file descriptor\n"),
        pytest.param(
            "handgrad --version >/dev/full", 2, "handgrad: cannot write to standard output: No space left on device\n",
            marks=FULL,
        ),
        pytest.param(
            "handgrad --help >/dev/full", 2, "handgrad: cannot write to standard output: No space left on device\n",
            marks=FULL,
        ),
        ("handgrad --version 2>&-", 0, ""),
        ("handgrad trian 2>&-", 2, ""),
        pytest.param("handgrad trian 2>/dev/full", 2, "", marks=FULL),
        ("handgrad trian >&-", 2, "handgrad: no such command 'trian'. Did you mean 'train'? See handgrad --help\n"),
        ("handgrad trian <&- >&- 2>&-", 2, ""),
    ],
)  # fmt: skip
def test_streams_that_are_closed_or_full(line: str, status: int, said: str) -> None:
    done = shell(line)
    assert (done.returncode, done.stderr) == (status, said)
    assert done.stdout == (f"handgrad {handgrad.__version__}\n" if status == 0 else "")


@FULL
def test_records_that_cannot_be_written_end_a_run_with_everything_saved(text: Path) -> None:
    done = shell(f"handgrad train text.txt --out run --steps 100000 --json {' '.join(SMALL)} >/dev/full")
    assert "Traceback" not in done.stderr
    assert done.returncode == 130, done.stderr
    assert "next        handgrad train --out run --resume" in done.stderr
    assert list(Path("run/checkpoints").iterdir())


@pytest.mark.parametrize("library", ["typer", "torch"])
def test_ctrl_c_while_a_library_is_loaded(library: str) -> None:
    # The library presses Ctrl-C itself, and what loads it swallows every exception.
    code = (
        "import os, signal, sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {library!r}:\n"
        "            try: os.kill(os.getpid(), signal.SIGINT)\n"
        "            except BaseException: pass\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "sys.argv = ['handgrad', 'generate', 'no-such-run']\n"
        "from handgrad.cli.entry import main\n"
        "assert 'typer' not in sys.modules\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "handgrad: interrupted\n")


def test_ctrl_c_while_the_demo_measures_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "handgrad", "demo", "--out", str(tmp_path / "demo")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "measuring this machine" not in process.stderr.readline():
                assert process.poll() is None
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            err = process.stderr.read()
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert err == "handgrad: interrupted\n"
    assert not (tmp_path / "demo" / "config.toml").exists()


@pytest.mark.parametrize("at", [1, 3, 6])
def test_ctrl_c_in_any_step_of_the_measuring(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "TRIAL_STEPS", 6)
    stepped = showing.Rates.stepped

    def pressing(self: showing.Rates, record: dict[str, float]) -> None:
        stepped(self, record)
        if record["step"] == at:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(showing.Rates, "stepped", pressing)
    assert main.run(["demo", "--out", str(tmp_path / "demo")]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "handgrad: interrupted"


BAD = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "text.txt", "--out", ""], "--out is empty; name the folder of the run, such as --out runs/first"),
        (["demo", "--out", ""], "--out is empty; name the folder of the run, such as --out runs/first"),
        (["train", "--resume", "--out", ""], "--out is empty; name the folder of the run, such as --out runs/first"),
        (
            ["train", "text.txt", "--out", "run", "--tokenizer", ""],
            "--tokenizer is empty; give bytes, chars, bpe:N, ids or a tokenizer.json, or leave it out",
        ),
        (
            ["train", "text.txt", "--out", f"runs/{BAD}"],
            "--out 'runs/caf\\udce9' is not UTF-8 text, and the files of a run could not name it; "
            "rename the file or folder",
        ),
        (
            ["train", BAD, "--out", "run"],
            "DATA 'caf\\udce9' is not UTF-8 text, and the files of a run could not name it; rename the file or folder",
        ),
        (
            ["demo", "--out", "a/" + "x" * 300],
            "--out has a name of 300 bytes in it, xxxxxxxxxxxxxxxxxxxx..., and most systems take at most 255; "
            "choose a shorter one",
        ),
        (
            ["train", "text.txt", "--out", "run", "--layers", "10000", "--width", "65536", "--heads", "1"],
            "there is not enough memory: 515,396,079,779,840 parameters with their gradient and AdamW's two moments "
            "take 8,246,337,276,477,440 bytes, and this machine has 8,000,000,000. "
            "Use a smaller --width, --layers or --context",
        ),
        (
            ["train", "text.txt", "--out", "deep/run", *SMALL, "--context", "1560"],
            "there are 1560 tokens to train on, but context 1560 needs at least 1561 (the inputs and one target more). "
            "Use more data or a smaller context.",
        ),
        (
            ["train", "text.txt", "--out", "run", "--device", "cuda:99999999999999999999"],
            "--device is 'cuda:99999999999999999999', and must be cpu, cuda or cuda:N, N at most 99",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(
    arguments: list[str],
    message: str,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("handgrad.train.size.memory_bytes", lambda: 8_000_000_000)
    if BAD in arguments:
        Path(BAD).write_text(TEXT, encoding="utf-8")
    before = sorted(os.listdir())
    assert main.run(arguments) == 2
    assert capsys.readouterr().err == f"handgrad: {message}\n"
    assert sorted(os.listdir()) == before


def test_99_999_999_layers_are_refused_at_once(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert main.run(["train", "text.txt", "--out", "run", *SMALL, "--layers", "99999999"]) == 2
    assert time.monotonic() - began < 20
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "--layers is 99999999, and must be a whole number from 0 to 10000" in shown
    assert os.listdir() == ["text.txt"]


def test_a_vocabulary_too_large_for_the_memory_is_refused_before_it_is_written(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("handgrad.train.size.memory_bytes", lambda: 40_000)
    monkeypatch.setattr("handgrad.data.tokens._write_tokens", lambda *_: pytest.fail("the tokens were written"))
    assert main.run(["train", "text.txt", "--out", "run", *SMALL]) == 2  # 256 rows, known with the tokenizer only
    assert capsys.readouterr().err.startswith("handgrad: there is not enough memory: 2,880 parameters with their ")
    assert os.listdir() == ["text.txt"]


def test_a_loss_too_large_for_an_exponential_is_said(tmp_path: Path) -> None:
    def shown(loss: float) -> str:
        fields = dict.fromkeys(Result.__dataclass_fields__)
        result = Result(**{**fields, "step": 3, "val_loss_nats": loss, "checkpoint": tmp_path, "interrupted": False,
                           "elapsed_s": 1.0, "tokens_seen": 9, "tokens_per_s": 0.0})  # fmt: skip
        return summary(Ended(result, 3))

    assert shown(2.0).startswith(", validation loss 2.000 nats a token (as unsure as among 7.39 equally likely tokens)")
    assert "loss 709.900 nats a token (as unsure as among more than 1e300 equally likely tokens)" in shown(709.9)
    assert "loss 1e+308 nats a token (as unsure as among more than 1e300 equally likely tokens)" in shown(1e308)


def test_a_report_passes_over_records_that_no_run_writes(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "text.txt", "--out", "run", "--steps", "2", *SMALL]) == 0
    whole = Path("run/metrics.jsonl").read_text()
    hostile = [
        {"step": 1, "loss_nats": 10**400},
        {"step": 10**400, "loss_nats": 1.0},
        {"step": -1, "loss_nats": 1.0},
        {"step": 1, "tokens_per_s": 1e-320},
    ]
    nested = '{"step": 1, "x": ' + "[" * 50_000
    lines = "".join(json.dumps(record) + "\n" for record in hostile)
    Path("run/metrics.jsonl").write_text(lines + nested + '\n{"step": 1, "loss_nats": 1e999}\n' + whole)
    Path("run/report.html").unlink()
    from handgrad.cli.reporting import write_run_report

    write_run_report("run")
    assert "2 of 2, 16 tokens each" in Path("run/report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main.run(["train", "--out", "run", "--resume", "--steps", "3"]) == 0
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [1, 0, 1, 2, 3]  # the slow step 1 is odd, and still a record


def test_too_few_tokens_are_no_reason_to_lose_a_folder(text: Path) -> None:
    Path("run").mkdir()
    Path("run/mine.txt").write_text("mine")
    assert main.run(["train", "text.txt", "--out", "run", *SMALL, "--context", "5000"]) == 2
    assert os.listdir("run") == ["mine.txt"]


def test_a_check_of_the_tokens_comes_before_anything_is_written(tmp_path: Path) -> None:
    from handgrad.data import prepare

    (tmp_path / "text.txt").write_text(TEXT)

    def no(vocab_size: int, n_tokens: int) -> None:
        raise ConfigError(f"{vocab_size} and {n_tokens}")

    with pytest.raises(ConfigError, match="256 and 1560"):
        prepare([tmp_path / "text.txt"], "bytes", tmp_path / "data", accept=no)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "x" * 300], "there is no model 'x"),
        (["explain", "x" * 300], "there is no model 'x"),
        (["train", "x" * 300, "--out", "run"], "File name too long"),
        (["train", "text.txt", "--out", "run", "--tokenizer", "x" * 300 + ".json"], "File name too long"),
        (["train", "text.txt", "--out", "run", "--config", "x" * 300], "there is no configuration file 'x"),
    ],
)
def test_names_that_are_too_long_are_refused(
    arguments: list[str], message: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert os.listdir() == ["text.txt"]
