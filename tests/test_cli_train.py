"""`handgrad train` as people use it: options and where they come from, the run it leaves, refusals, interruptions."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from handgrad.cli import main
from handgrad.cli.presets import PRESETS
from handgrad.cli.settings import MODEL_FIELDS, TRAIN_FIELDS, resolve
from handgrad.core.errors import ConfigError, unknown
from handgrad.layers.pointwise import ACTIVATIONS
from handgrad.models.gpt2 import GPT2Config
from handgrad.train.config import TrainConfig

SMALL = ["--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--batch-size", "2"]
TEXT = "the cat sat on the mat, and the dog sat on the log. " * 30


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a small text."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    return Path("text.txt")


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def config_of(folder: str) -> dict[str, dict[str, object]]:
    return tomllib.loads(Path(folder, "config.toml").read_text(encoding="utf-8"))


def test_a_run_from_text_to_report(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "text.txt", "--out", "run", "--steps", "5", "--tokenizer", "chars", *SMALL]) == 0
    shown = capsys.readouterr()
    records = lines(Path("run/metrics.jsonl").read_text())
    assert [r["step"] for r in records] == [0, 1, 2, 3, 4, 5]
    assert {"loss_nats", "lr", "grad_norm", "tokens_per_s", "peak_rss_bytes", "val_loss_nats"} <= set(records[-1])
    assert sorted(p.name for p in Path("run").iterdir()) == [
        "checkpoints", "config.toml", "data", "metrics.jsonl", "report.html"
    ]  # fmt: skip
    assert "1,072 parameters, vocabulary 15, context 8; 1,404 tokens to train on, 156 to validate on" in shown.err
    assert "step 5/5  loss " in shown.err
    assert " left" not in shown.err
    out = shown.out.splitlines()
    assert re.match(r"done: step 5, validation loss 2\.\d{3} nats a token \(as unsure as among \d+", out[0])
    assert out[1] == f"checkpoint  {Path('run/checkpoints/step_000005')}"
    assert re.match(r"report      run.report\.html  \(\d\.\d MB, opens in any browser\)", out[2])
    assert out[3:] == [
        "next        handgrad generate run --temperature 0.8",
        "            handgrad train --out run --resume --steps 10",
    ]


def test_for_programs_the_records_come_as_they_are_written(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "text.txt", "--out", "run", "--steps", "3", *SMALL, "--json"]) == 0
    *records, last = lines(capsys.readouterr().out)
    assert records == lines(Path("run/metrics.jsonl").read_text())
    result = last["result"]
    assert (result["step"], result["interrupted"], result["report"]) == (3, False, "run/report.html")
    assert result["val_loss_nats"] == records[-1]["val_loss_nats"]
    assert result["next"][1] == "handgrad train --out run --resume --steps 6"
    assert Path(result["checkpoint"]).is_dir()


def test_flags_win_over_the_file_and_the_file_over_the_preset(text: Path) -> None:
    Path("mine.toml").write_text(
        '[model]\nd_model = 12\nn_heads = 3\nactivation = "relu"\nd_mlp = 5\n[train]\nsteps = 3\nlr = 0.02\n'
        '[data]\nsources = ["text.txt"]\ntokenizer = "chars"\n'
    )
    assert (
        main.run(["train", "--out", "run", "--preset", "tiny", "--config", "mine.toml", "--lr", "0.03", "--no-bias"])
        == 0
    )
    found = config_of("run")
    expected = {
        "kind": "gpt2", "vocabulary": 15, "context": 32, "n_layers": 2, "n_heads": 3, "d_model": 12, "d_mlp": 5,
        "bias": False, "dropout": 0.0, "activation": "relu", "tied": True,
    }  # fmt: skip
    assert {name: found["model"][name] for name in expected} == expected
    assert {name: found["train"][name] for name in ("steps", "lr", "lr_floor", "warmup")} == {
        "steps": 3, "lr": 0.03, "lr_floor": 0.003, "warmup": 0
    }  # fmt: skip


def test_a_run_repeats_from_its_own_config(text: Path) -> None:
    assert main.run(["train", "text.txt", "--out", "a", "--steps", "3", "--seed", "7", *SMALL]) == 0
    assert main.run(["train", "--out", "b", "--config", "a/config.toml"]) == 0
    assert config_of("a") == config_of("b")
    losses = [[r["loss_nats"] for r in lines(Path(run, "metrics.jsonl").read_text())[1:]] for run in "ab"]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("flags", "preset", "expected"),
    [
        ({}, None, (1e-3, 1e-4, 2000, 100)),
        ({"lr": 0.5}, None, (0.5, 0.05, 2000, 100)),
        ({"lr": 0.5, "lr_floor": 0.0}, None, (0.5, 0.0, 2000, 100)),
        ({"steps": 50}, None, (1e-3, 1e-4, 50, 5)),
        ({"steps": 50}, "demo", (1e-3, 1e-4, 50, 5)),
        ({"steps": 5000}, "shakespeare", (1e-3, 1e-4, 5000, 100)),
        ({"steps": 50, "warmup": 60}, None, (1e-3, 1e-4, 50, 60)),
        ({"lr": 0.0}, "demo", (0.0, 0.0, 2000, 100)),
    ],
)
def test_floor_and_warmup_follow(flags: dict[str, float], preset: str | None, expected: tuple[float, ...]) -> None:
    train = resolve(flags, ["embedded"], preset, None).train
    assert (train.lr, train.lr_floor, train.steps, train.warmup) == expected


def test_presets_are_what_they_are_called() -> None:
    shapes = {}
    for name in PRESETS:
        settings = resolve({}, ["embedded"], name, None)
        c, t = settings.model_config(65), settings.train
        shapes[name] = (c.n_layers, c.n_heads, c.d_model, c.context, c.bias, t.batch_size, t.beta2, t.steps)
    assert shapes == {
        "tiny": (2, 2, 64, 32, True, 12, 0.99, 2000),
        "demo": (4, 4, 128, 64, False, 12, 0.99, 2000),
        "shakespeare": (4, 4, 128, 64, False, 12, 0.99, 2000),
        "gpt2-small": (12, 12, 768, 1024, True, 12, 0.99, 2000),
    }
    train = resolve({}, ["embedded"], "shakespeare", None).train
    assert (train.lr, train.lr_floor, train.warmup) == (1e-3, 1e-4, 100)


def test_help_states_the_defaults_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "--help"]) == 0
    words = re.sub(r"\s+", " ", capsys.readouterr().out)
    model, train = GPT2Config(vocabulary=1), TrainConfig()
    for flag, field in MODEL_FIELDS.items():
        value = getattr(model, field)
        shown = "bias" if value is True else f"{value:g}" if isinstance(value, float) else value
        assert re.search(rf"--{flag}\b[^[]*\[{shown}\]", words), flag
    for flag, field in TRAIN_FIELDS.items():
        if flag not in ("lr_floor", "warmup", "compile", "sample_norms"):
            assert re.search(rf"--{flag.replace('_', '-')} [^[]*\[{getattr(train, field)}\]", words), flag
    assert f"[{train.warmup}, at most a tenth of --steps]" in words
    assert train.lr_floor == train.lr / 10
    assert "[a tenth of --lr]" in words


def test_every_field_has_a_flag_and_every_flag_arrives() -> None:
    assert set(TRAIN_FIELDS.values()) == set(TrainConfig.__dataclass_fields__)
    values = {
        "steps": 7, "batch_size": 3, "accumulate": 2, "lr": 0.5, "lr_floor": 0.25, "warmup": 1, "weight_decay": 0.3,
        "beta1": 0.6, "beta2": 0.7, "clip": 2.5, "seed": 11, "validate_every": 5, "save_every": 6, "dtype": "float64",
        "impl": "explicit", "device": "cpu", "layers": 3, "heads": 5, "width": 15, "context": 9, "dropout": 0.25,
        "bias": False, "activation": "relu", "recompute": "cheap", "update": "after", "compile": False,
        "sample_clip": 0.5, "sample_norms": True, "clip_by": "parameter", "optimiser": "sgd",
    }  # fmt: skip
    assert set(values) == set(TRAIN_FIELDS) | set(MODEL_FIELDS)
    settings = resolve(values, ["embedded"], None, None)
    c, t = settings.model_config(4), settings.train
    assert {n: getattr(c, f) for n, f in MODEL_FIELDS.items()} | {
        n: getattr(t, f) for n, f in TRAIN_FIELDS.items()
    } == values


def test_all_problems_are_told_at_once_before_any_data_is_read(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "no-such.txt", "--out", "run", "--preset", "tinny", "--width", "10", "--heads", "3"]
    arguments += [
        "--lr",
        "-1",
        "--dtype",
        "bfloat16",
        "--activation",
        "gelu",
        "--tokenizer",
        "bpe:5",
        "--layers",
        "-1",
    ]
    assert main.run(arguments) == 2
    assert capsys.readouterr().err.splitlines() == [
        "handgrad: no preset named 'tinny'; did you mean 'tiny'? Known: demo, gpt2-small, shakespeare, tiny",
        f"--activation: {unknown('activation', 'gelu', ACTIVATIONS)}",
        "--layers is -1, and must be a whole number from 0 to 10000",
        "--lr is -1.0, and must be at least 0",
        "tokenizer 'bpe:5': write bpe:N with the number N of tokens, from 256 (the bytes alone) to 1048576, such as "
        "bpe:2048",
    ]
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text.txt"], "--out is missing: the folder that the run is written to, such as --out runs/first"),
        (["--out", "run"], "DATA is missing: name text files or token files, or the word embedded"),
        (["text.txt", "--out", "run", "--width", "10", "--heads", "3"], "--width 10 is not a multiple of --heads 3"),
        (["text.txt", "--out", "run", "--tokenizer", "byte"], "no tokenizer named 'byte'; did you mean 'bytes'?"),
        (["text.txt", "--out", "run", "--tokenizer", "pixels"], "--tokenizer pixels is not there yet"),
        (["text.txt", "--out", "run", "--tokenizer", "no/such.json"], "there is no tokenizer file 'no/such.json'"),
        (["text.txt", "--out", "run", "--vocab-size", "5"], "--vocab-size 5 is for token ids only; bytes has the size"),
        (["a.bin", "--out", "run", "--vocab-size", "0"], "--vocab-size is 0, and must be at least 1"),
        (["text.txt", "--out", "run", "--config", "no.toml"], "there is no configuration file 'no.toml'"),
        (["text.txt", "--out", "run", "--device", "cuda:99"], "--device cuda:99 was asked for, and this machine has"),
        (
            ["text.txt", "--out", "run", "--context", "5000"],
            "there are 1560 tokens to train on, but context 5000 needs",
        ),
        (["no.txt", "--out", "run"], "there is no text file 'no.txt'"),
        (["text.txt", "--out", "run", "--clip", "nan"], "--clip is nan, and must be a finite number"),
    ],
)
def test_bad_requests_are_refused_in_plain_words(
    arguments: list[str], message: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["train", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert not Path("run/config.toml").exists()


def test_a_misspelt_key_of_the_file_is_refused_with_the_nearest(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text("[train]\nstep = 4\n")
    assert main.run(["train", "text.txt", "--out", "run", "--config", "a.toml", "--clip", "-1"]) == 2
    shown = capsys.readouterr().err
    assert "no key in a.toml, [train] named 'step'; did you mean 'steps'?" in shown
    assert "--clip is -1.0, and must be at least 0" in shown


def test_a_vocabulary_in_the_file_may_be_larger_but_not_smaller(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text("[model]\nvocabulary = 30\n")
    arguments = ["train", "text.txt", "--tokenizer", "chars", "--steps", "1", "--config", "a.toml", *SMALL]
    assert main.run([*arguments, "--out", "run"]) == 0
    assert config_of("run")["model"]["vocabulary"] == 30
    Path("a.toml").write_text("[model]\nvocabulary = 9\n")
    assert main.run([*arguments, "--out", "other"]) == 2
    assert "gives the model a vocabulary of 9, and the tokenizer has 15 tokens" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_left_as_it_is(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "text.txt", "--out", "run", "--steps", "1", *SMALL]) == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    Path("text.txt").write_text("another text, which must not replace the tokens of the run " * 9)
    assert main.run(["train", "text.txt", "--out", "run", "--steps", "1", *SMALL]) == 2
    assert "run already holds a run (config.toml is there), and it is left as it is" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_resume_goes_on_and_takes_nothing_but_steps(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ["train", "text.txt", "--warmup", "1", *SMALL]
    assert main.run([*whole, "--out", "once", "--steps", "6"]) == 0
    assert main.run([*whole, "--out", "run", "--steps", "3"]) == 0
    capsys.readouterr()
    assert (
        main.run(["train", "text.txt", "--out", "run", "--resume", "--lr", "3", "--no-bias", "--preset", "tiny"]) == 2
    )
    assert "leave out DATA, --preset, --lr, --bias, or start a new run" in capsys.readouterr().err.replace(
        "--bias, --lr", "--lr, --bias"
    )
    assert main.run(["train", "--out", "run", "--resume", "--steps", "6"]) == 0
    assert "continuing after step 3" in capsys.readouterr().err
    steps = [r["step"] for r in lines(Path("run/metrics.jsonl").read_text())]
    assert steps == [0, 1, 2, 3, 4, 5, 6]
    assert main.run(["train", "--out", "run", "--resume"]) == 0
    assert "the run is finished" in capsys.readouterr().err
    assert main.run(["train", "--out", "run", "--resume", "--steps", "5"]) == 2
    assert "--steps is 5, and 6 steps are done already" in capsys.readouterr().err
    assert main.run(["train", "--out", "nothing", "--resume"]) == 2
    assert "there is no run to resume in 'nothing'" in capsys.readouterr().err
    assert not Path("nothing").exists()


def test_a_run_with_steps_left_is_told_so_with_the_step_of_its_validation(
    text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ["train", "text.txt", "--out", "run", "--steps", "9", "--save-every", "5", "--validate-every", "3", *SMALL]
    assert main.run(whole) == 0
    shutil.rmtree("run/checkpoints/step_000009")  # as a kill after step 5 would have left it
    records = Path("run/metrics.jsonl").read_text().splitlines(keepends=True)
    Path("run/metrics.jsonl").write_text("".join(records[:6]))
    capsys.readouterr()
    assert main.run(["train", "--out", "run", "--resume", "--steps", "5"]) == 0
    shown = capsys.readouterr()
    assert "of the 9 in config.toml" in shown.err
    assert re.match(r"so far: step 5 of 9, validation loss .*, measured at step 3, ", shown.out)
    assert shown.out.splitlines()[-1].strip() == "handgrad train --out run --resume"
    assert ">handgrad train --out run --resume<" in Path("run/report.html").read_text(encoding="utf-8")


def test_fewer_tokens_than_were_asked_for_are_told(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    how = ["--steps", "1", *SMALL]
    assert main.run(["train", "text.txt", "--out", "run", "--tokenizer", "bpe:9000", *how]) == 0
    found = config_of("run")["model"]["vocabulary"]
    assert f"bpe:9000 became {found:,} tokens: in this text no more pairs" in capsys.readouterr().err
    assert main.run(["train", "text.txt", "--out", "other", "--tokenizer", "bpe:257", *how]) == 0
    assert "became" not in capsys.readouterr().err


def test_token_ids_of_other_tools(text: Path) -> None:
    np.save("ids.npy", np.arange(300) % 7)
    assert main.run(["train", "ids.npy", "--out", "run", "--steps", "1", "--vocab-size", "9", *SMALL]) == 0
    assert config_of("run")["model"]["vocabulary"] == 9
    assert (
        main.run(
            ["train", "ids.npy", "--out", "other", "--steps", "1", "--tokenizer", "run/data/tokenizer.json", *SMALL]
        )
        == 0
    )
    assert config_of("other")["model"]["vocabulary"] == 9


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_tells_how_to_resume_and_exits_130(number: signal.Signals, text: Path) -> None:
    command = [sys.executable, "-c", "from handgrad.cli.main import main; main()"]
    arguments = ["train", "text.txt", "--out", "run", "--steps", "1000000", "--json", *SMALL]
    with started([*command, *arguments]) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    result = json.loads(out.splitlines()[-1])["result"]
    assert result["interrupted"] is True
    assert result["next"] == ["handgrad train --out run --resume"]
    assert f"next        {result['next'][0]}" in err
    assert Path(result["checkpoint"]).name == f"step_{result['step']:06d}"
    assert "Traceback" not in err
    assert main.run([*result["next"][0].split()[1:], "--steps", str(result["step"] + 1)]) == 0


def test_a_reader_of_the_records_that_leaves_ends_the_run_with_everything_saved(text: Path) -> None:
    command = [sys.executable, "-c", "from handgrad.cli.main import main; main()"]
    arguments = ["train", "text.txt", "--out", "run", "--steps", "1000000", "--json", *SMALL]
    began = time.monotonic()
    with started([*command, *arguments]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(60) == 130
    assert time.monotonic() - began < 60
    assert "handgrad train --out run --resume" in err
    assert "Traceback" not in err
    assert list(Path("run/checkpoints").iterdir())


def test_a_second_ctrl_c_ends_at_once(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("handgrad.train.loop.train", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert main.run(["train", "text.txt", "--out", "run", *SMALL]) == 130
    assert "go on with: handgrad train --out run --resume" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_report_that_cannot_be_written_does_not_fail_the_run(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> Path:
        raise ConfigError("the disk is full")

    monkeypatch.setattr("handgrad.cli.running.write_run_report", refused)
    assert main.run(["train", "text.txt", "--out", "run", "--steps", "1", *SMALL]) == 0
    shown = capsys.readouterr()
    assert "there is no report: the disk is full" in shown.err
    assert "report " not in shown.out
