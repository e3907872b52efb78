"""`hg.evaluate` and `handgrad eval`: each token scored once, from the tokens before it, and told in three units."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_model import SMALL, randomised

import handgrad as hg
from handgrad.cli import main
from handgrad.core.errors import ConfigError, DataError, NumericError, ShapeError
from handgrad.train.evaluate import evaluate as evaluate_consecutive

IDS = np.random.default_rng(0).integers(0, SMALL.vocabulary, 31)


def directly(model: hg.Model, ids: np.ndarray, context: int, stride: int) -> float:
    """The sum over positions, one pass for each token: it is predicted from where its window starts."""
    total = 0.0
    for target in range(1, len(ids)):
        k = 0 if target <= context else -(-(target - context) // stride)
        logits = model(torch.from_numpy(ids[k * stride : target])[None])[0, -1]
        total -= float(logits.log_softmax(-1)[ids[target]])
    return total


@pytest.mark.parametrize("stride", range(1, 8))
@pytest.mark.parametrize("length", [2, 7, 8, 9, 15, 31])
def test_the_sum_is_that_of_one_pass_a_token(stride: int, length: int) -> None:
    model = randomised(SMALL)
    right = directly(model, IDS[:length], 7, stride)
    for batch_size in (1, 3, None):
        found = hg.evaluate(model, IDS[:length], stride=stride, batch_size=batch_size)
        assert found.n_tokens == length - 1
        assert found.nats == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("n_given", [1, 2, 6, 7, 8, 9, 15, 30])
@pytest.mark.parametrize("stride", [1, 3, 7])
def test_tokens_that_are_given_are_not_scored(stride: int, n_given: int) -> None:
    model, seen = randomised(SMALL), []
    right = directly(model, IDS, 7, stride) - (directly(model, IDS[:n_given], 7, stride) if n_given > 1 else 0.0)
    found = hg.evaluate(model, IDS, stride=stride, n_given=n_given, batch_size=2, progress=lambda *n: seen.append(n))
    assert found.n_tokens == 31 - n_given
    assert found.nats == pytest.approx(right, rel=1e-9)
    assert seen[-1] == (31 - n_given, 31 - n_given)
    with pytest.raises(DataError, match=r"at least 32 tokens .* there are 31"):
        hg.evaluate(model, IDS, n_given=31)
    with pytest.raises(ConfigError, match="n_given is 0, and must be at least 1"):
        hg.evaluate(model, IDS, n_given=0)


def test_a_stride_of_one_gives_every_token_the_whole_context() -> None:
    model = randomised(SMALL)
    right = -sum(
        float(model(torch.from_numpy(IDS[max(0, t - 5) : t])[None])[0, -1].log_softmax(-1)[IDS[t]])
        for t in range(1, len(IDS))
    )
    assert hg.evaluate(model, IDS, context=5, stride=1).nats == pytest.approx(right, rel=1e-12)


def test_windows_that_do_not_overlap_are_those_of_training() -> None:
    model = randomised(SMALL)
    mean, n = evaluate_consecutive(model, IDS, context=7, batch_size=2)
    found = hg.evaluate(model, IDS)
    assert (found.context, found.stride, found.n_tokens) == (7, 7, n)
    assert found.nats_a_token == pytest.approx(mean, rel=1e-12)


def test_a_long_context_is_read_in_windows_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    model = randomised(hg.GPT2Config(vocabulary=11, context=2000, n_layers=1, n_heads=1, d_model=2))
    monkeypatch.setattr(hg.Model, "loss", lambda self, x, y, **_: seen.append(tuple(x.shape)) or torch.zeros(()))
    ids = np.zeros(5 * 1024 + 1, np.int64)
    assert hg.evaluate(model, ids).context == 1024
    assert seen == [(2, 1024), (2, 1024), (1, 1024)]
    seen.clear()
    hg.evaluate(model, ids[:2001], context=2000)
    hg.evaluate(model, ids[:400], context=100)
    assert seen == [(1, 2000), (3, 100), (1, 99)]


def test_the_units() -> None:
    found = hg.Evaluation(nats=10 * math.log(8), n_tokens=10, n_bytes=20, context=4, stride=4)
    assert found.nats_a_token == pytest.approx(math.log(8))
    assert found.perplexity == pytest.approx(8)
    assert found.bits_a_byte == pytest.approx(1.5)
    assert hg.Evaluation(1e9, 10, None, 4, 4).perplexity == math.inf
    assert hg.Evaluation(1e9, 10, None, 4, 4).bits_a_byte is None


def test_what_cannot_be_evaluated_is_refused() -> None:
    model = randomised(SMALL)
    with pytest.raises(DataError, match=r"at least 2 tokens .* there are 1"):
        hg.evaluate(model, [3])
    with pytest.raises(DataError, match=r"one row of token ids; found shape \(1, 2\) of int64"):
        hg.evaluate(model, [[3, 4]])
    with pytest.raises(ConfigError, match="context is 8, and must be from 1 to 7"):
        hg.evaluate(model, IDS, context=8)
    with pytest.raises(ConfigError, match="stride is 4, and must be from 1 to 3, the context"):
        hg.evaluate(model, IDS, context=3, stride=4)
    with pytest.raises(ConfigError, match="batch_size is 0"):
        hg.evaluate(model, IDS, batch_size=0)
    with pytest.raises(ShapeError, match="outside the vocabulary of 11"):
        hg.evaluate(model, [1, 11])
    model.params["blocks.1.mlp.up.w"][0, 0] = math.nan
    with pytest.raises(NumericError, match=r"the loss of tokens 1 to 28 is nan.*first signal .* blocks\.1\.mlp\.up"):
        hg.evaluate(model, IDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the cat sat on the mat, é☃.\n" * 60, encoding="utf-8")
    shape = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "12", "--steps", "20"]
    for tokenizer in ("chars", "bytes"):
        arguments = ["train", str(folder / "text.txt"), "--out", str(folder / tokenizer), "--tokenizer", tokenizer]
        assert main.run([*arguments, *shape]) == 0
    np.save(folder / "ids.npy", np.arange(40) % 7)
    return folder


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main.run(["eval", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_reads_text_ids_and_the_embedded_text(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (runs / "text.txt").read_text(encoding="utf-8")
    model = hg.load(runs / "chars")
    found = evaluated(capsys, runs / "chars", runs / "text.txt", "--stride", "5", "--dtype", "float64")
    right = hg.evaluate(model.shadowed(torch.float64), model.tokenizer.encode(text), stride=5)
    assert found["nats"] == right.nats
    assert (found["n_tokens"], found["n_bytes"]) == (len(text) - 1, len(text.encode()) - 1)
    assert (found["context"], found["stride"], found["dtype"]) == (12, 5, "float64")
    assert found["bits_a_byte"] == pytest.approx(right.nats / math.log(2) / (len(text.encode()) - 1))
    assert right.n_bytes == found["n_bytes"]
    twice = evaluated(capsys, runs / "bytes", runs / "text.txt", runs / "text.txt")
    assert (twice["n_tokens"], twice["n_bytes"]) == (2 * len(text.encode()) - 1,) * 2
    stored = evaluated(capsys, runs / "chars", runs / "ids.npy", "--limit", "30")
    assert (stored["n_tokens"], stored["nats"]) == (29, hg.evaluate(model, np.arange(30) % 7).nats)
    assert evaluated(capsys, runs / "bytes", "embedded", "--limit", "100")["n_tokens"] == 99


def test_a_limit_reads_the_same_first_tokens(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = hg.load(runs / "bytes"), (runs / "text.txt").read_text(encoding="utf-8")
    for limit in (2, 28, 99):
        found = evaluated(capsys, runs / "bytes", runs / "text.txt", "--limit", limit)
        assert found["nats"] == hg.evaluate(model, model.tokenizer.encode(text)[:limit]).nats
        assert (found["n_tokens"], found["n_bytes"]) == (limit - 1, limit - 1)


@pytest.mark.parametrize("first", ["é", "☃", "t"])
@pytest.mark.parametrize("name", ["chars", "bytes"])
def test_bytes_are_those_behind_the_first_token_whatever_it_is(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, first: str
) -> None:
    """Not characters, and not one byte: é has two and ☃ three."""
    text = first + "he é☃ mat, é☃é☃ cat"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    own = len(first.encode()) if name == "chars" else 1
    found = evaluated(capsys, runs / name, tmp_path / "text.txt")
    assert found["n_bytes"] == len(text.encode()) - own
    assert found["bits_a_byte"] == pytest.approx(found["nats"] / math.log(2) / (len(text.encode()) - own))
    for limit in (2, 5, 9):
        found = evaluated(capsys, runs / name, tmp_path / "text.txt", "--limit", limit)
        n = len(text[:limit].encode()) if name == "chars" else limit
        assert (found["n_tokens"], found["n_bytes"]) == (limit - 1, n - own)
    tokenizer = hg.load(runs / name).tokenizer
    for n_given in (1, 4):
        given = len(text[:n_given].encode()) if name == "chars" else n_given
        found = hg.evaluate(hg.load(runs / name), tokenizer.encode(text), n_given=n_given)
        assert found.n_bytes == len(text.encode()) - given


def test_unknown_characters_are_named_with_the_option(runs: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "text.txt").write_text("the catZ", encoding="utf-8")
    assert main.run(["eval", str(runs / "chars"), str(tmp_path / "text.txt")]) == 2
    assert "'Z' at position 7, counted from 0. Choose what happens: --unknown skip leaves" in capsys.readouterr().err
    assert evaluated(capsys, runs / "chars", tmp_path / "text.txt", "--unknown", "skip")["n_tokens"] == 6


def test_people_are_told_in_words(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["eval", str(runs / "chars"), str(runs / "text.txt"), "--stride", "4"]) == 0
    shown = capsys.readouterr()
    assert [line.split("  ")[0] for line in shown.out.splitlines()] == [
        "nats a token",
        "perplexity",
        "bits a byte",
        "over",
        "windows",
    ]
    assert "of 12, every 4 (at least 9 tokens to predict from)" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stride", "0"], "--stride is 0, and must be at least 1"),
        (["--limit", "1"], "--limit is 1, and must be at least 2"),
        (["--context", "4", "--stride", "5"], "--stride 5 is above --context 4"),
        (["--dtype", "float8"], "--dtype is 'float8', and must be one of"),
        (["--context", "13"], "--context is 13, and must be from 1 to 12"),
        (["--stride", "13"], "--stride is 13, and must be from 1 to 12"),
        (["ids.npy"], "ids.npy holds token ids and other DATA are text"),
        (["no.txt"], "no.txt"),
        (["--unknown", "guess"], "--unknown: "),
    ],
)
def test_wrong_requests_are_refused_in_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main.run(["eval", str(runs / "chars"), str(runs / "text.txt"), *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1
