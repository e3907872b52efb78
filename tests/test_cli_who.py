"""`handgrad who`: for people, for programs, and when it is asked for what is not there."""

from __future__ import annotations

import json

import pytest
import torch

import handgrad as hg
from handgrad.cli import main, teaching
from handgrad.data.tokenizers import Chars
from handgrad.who.ranked import who

TEXT = "ab\x1b[7mba\nab"
WEIGHT = "blocks.0.attention.query.w"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> hg.Model:
    tokenizer = Chars.of(TEXT)
    shape = {"context": 16, "n_layers": 2, "n_heads": 2, "d_model": 10, "std": 0.5}
    made = hg.build(hg.GPT2Config(tokenizer.vocab_size, **shape), seed=3)
    made.tokenizer = tokenizer
    monkeypatch.setattr(teaching, "load", lambda name: made)
    return made


def ids_of(model: hg.Model) -> torch.Tensor:
    return torch.from_numpy(model.tokenizer.encode(TEXT))[None]


def test_a_weight_for_people(model: hg.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["who", "m", "--text", TEXT, "--weight", WEIGHT, "--head", "1", "--top", "3"]) == 0
    text, found = capsys.readouterr().out, who(model, ids_of(model), WEIGHT, head=1)
    head, *rows = text.split("\n\n")[0].splitlines()
    assert head.split() == ["share", "norm", "position", "before", "token"]
    assert [row.split("'")[1] for row in rows] == [term.token.strip("'") for term in found.top(3)]
    assert f"3 of {len(TEXT)} tokens make " in text
    assert f"of the gradient of {WEIGHT}, head 1" in text
    assert "Delta_x = dL/dx: a positive share adds to the gradient, and descent goes against the gradient" in text
    assert "\x1b" not in text


def test_a_weight_for_programs(model: hg.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["who", "m", "--text", TEXT, "--weight", WEIGHT, "--top", "99", "--json"]) == 0
    *terms, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(terms) == last["terms"] == len(TEXT)
    assert abs(last["share"] - 1) < 1e-5
    assert sum(term["share"] for term in terms) == pytest.approx(last["share"], abs=1e-6)
    model.loss(ids_of(model))
    assert last["gradient_norm"] == pytest.approx(float(model.backward()[WEIGHT].norm()), rel=1e-5)
    assert last["tokens"] == ids_of(model)[0].tolist()
    assert {term["position"] for term in terms} == set(range(len(TEXT)))
    assert r"'\x1b'" in {term["token"] for term in terms}


def test_one_position(model: hg.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["who", "m", "--text", TEXT, "--weight", WEIGHT, "--position", "4"]) == 0
    assert "\n\nthe token of position 4 makes " in capsys.readouterr().out


def test_the_loss_of_one_position_is_taught_by_the_tokens_up_to_it(
    model: hg.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["who", "m", "--text", TEXT, "--weight", WEIGHT, "--loss-at", "3", "--top", "99", "--json"]) == 0
    *terms, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {term["position"] for term in terms if term["share"]} == {1, 2, 3}  # the first has nobody to choose from
    valid = torch.arange(len(TEXT))[None] == 3
    assert last["loss_nats"] == pytest.approx(float(model.loss(ids_of(model), valid=valid)), rel=1e-6)
    assert main.run(["who", "m", "--text", TEXT, "--split", "blocks.1", "--loss-at", "3", "--position", "4"]) == 2
    assert "no error reaches blocks.1 at position 4" in capsys.readouterr().err
    assert main.run(["who", "m", "--text", TEXT, "--split", "blocks.1", "--loss-at", "3", "--position", "3"]) == 0


def test_a_split_for_people_and_programs(model: hg.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["who", "m", "--text", TEXT, "--split", "blocks.1"]) == 0
    text = capsys.readouterr().out
    first, heads, words = text.split("\n\n")
    assert [line.split()[0] for line in first.splitlines()] == ["part", "skip", "mlp", "query", "key", "value"]
    assert [line.split()[0] for line in heads.splitlines()] == ["head", "0", "1"]
    assert "of the error at the input of blocks.1; the 8 parts add up to it" in words
    assert "descent goes against it" in words
    for at in ([], ["--position", "2"]):
        assert main.run(["who", "m", "--text", TEXT, "--split", "blocks.1", "--json", *at]) == 0
        *parts, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(parts) == 8
        assert sum(part["share"] for part in parts) == pytest.approx(1, abs=1e-5)
        assert last["off"] < 1e-5
        assert last["position"] == (2 if at else None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weight", "blocks.0.attention.qery.w"], "parameter named 'blocks.0.attention.qery.w'; did you mean"),
        (["--weight", WEIGHT, "--head", "2"], f"head 2 was asked for, and {WEIGHT} has heads 0 to 1"),
        (["--weight", "norm.gamma", "--head", "0"], "no part of norm.gamma belongs to one head"),
        (["--weight", "blocks.0.attention.key.b"], "which is rounding"),
        (["--weight", WEIGHT, "--position", "11"], "--position is 11, and the text has positions 0 to 10"),
        (["--weight", WEIGHT, "--loss-at", "10"], "--loss-at is 10, and the text is predicted at positions 0 to 9"),
        (["--weight", WEIGHT, "--loss-at", "-2"], "--loss-at is -2, and must be at least 0"),
        (["--weight", WEIGHT, "--top", "0"], "--top is 0, and must be at least 1"),
        (["--split", "blocks.2"], "block blocks.2 was asked for, and this model has blocks.0 to blocks.1"),
        (["--split", "blocks.1", "--head", "0"], "--head needs the --weight that it is a part of"),
        (["--split", "blocks.1", "--position", "10"], "no error reaches blocks.1 at position 10"),
        (["--split", "blocks.1", "--weight", WEIGHT], "give --weight NAME or --split BLOCK, one of the two"),
        ([], "give --weight NAME or --split BLOCK, one of the two"),
        (["--weight", WEIGHT, "--position", "-1", "--unknown", "what"], "--position is -1, and must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(
    model: hg.Model, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["who", "m", "--text", TEXT, *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert not said.out


def test_a_text_that_is_empty_or_unknown_or_too_long(model: hg.Model, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (("", "--text is empty"), ("a", "--text has 1 token, and at least 2"), ("aZ", "--text: ")):
        assert main.run(["who", "m", "--text", text, "--weight", WEIGHT]) == 2
        assert message in capsys.readouterr().err
    assert main.run(["who", "m", "--text", "ab" * 20, "--weight", WEIGHT]) == 0
    assert "--text is cut to its first 16 of 40 tokens" in capsys.readouterr().err


def test_without_a_tokenizer_there_is_nothing_to_read(model: hg.Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.tokenizer = None
    assert main.run(["who", "m", "--text", TEXT, "--weight", WEIGHT]) == 2
    said = capsys.readouterr().err
    assert "this model comes without a tokenizer" in said
    assert "handgrad.who(model, ids, NAME)" in said
