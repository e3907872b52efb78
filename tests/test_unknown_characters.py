"""Every command that reads a text says what to do about characters that the model does not know, and can do it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import torch

import handgrad as hg
from handgrad.cli import main
from handgrad.cli.verifying import Request, tokens_of
from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.data.tokenizers import Chars, Ids

CHOICE = (
    "counted from 0. Choose what happens: --unknown skip leaves them out, --unknown replace puts a stand-in for them."
)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> hg.Model:
    words = Chars.of("User:Assistant ab?\n")
    config = hg.GPT2Config(vocabulary=words.vocab_size, context=64, n_layers=1, n_heads=2, d_model=12)
    made = replace(hg.build(config, seed=1, dtype=torch.float64), tokenizer=words)
    for module in ("chatting", "verifying"):
        monkeypatch.setattr(f"handgrad.cli.{module}.load", lambda path: made)
    return made


def test_verify(model: hg.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["verify", "M", "--text", "aZb"]) == 2
    error = capsys.readouterr().err
    assert "--text: the text has characters that are not in the tokenizer's alphabet of" in error
    assert f"'Z' at position 1, {CHOICE}" in error
    arguments = ["verify", "M", "--text", "aZb", "--dtype", "float64", "--no-transformers", "--json"]
    for choice, text in (("skip", "ab"), ("replace", "a?b")):
        assert main.run([*arguments, "--unknown", choice]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert last["tokens"] == [model.tokenizer.encode(text).tolist()]
    with pytest.raises(ConfigError, match=r"--unknown: .*guess"):
        Request(unknown="guess")
    odd = replace(model, tokenizer=Ids(9))
    with pytest.raises(DataError, match=r"--text: .*; --unknown skip leaves such ids out"):
        tokens_of(odd, "3 10", None)
    assert tokens_of(odd, "3 10 4", None, "skip")[0].tolist() == [[3, 4]]


def test_chat(model: hg.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def talk(*arguments: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO("aZb\n"))
        return main.run(["chat", "M", "--json", "--greedy", "--max-new-tokens", "2", *arguments])

    assert talk() == 2
    assert CHOICE in capsys.readouterr().err
    for choice, text in (("skip", "ab"), ("replace", "a?b")):
        assert talk("--unknown", choice) == 0
        ids = json.loads(capsys.readouterr().out)["prompt_ids"]
        assert model.tokenizer.decode(ids) == f"User: {text}\nAssistant:"
    assert talk("--unknown", "guess") == 2
    assert "--unknown: " in capsys.readouterr().err


def test_a_template_passes_them_on() -> None:
    from handgrad.data.chat_template import talk_ids
    from handgrad.data.control import Control
    from handgrad.data.sentencepiece_style import SentencePiece

    tokens = ("<s>", "a", "b", " ")
    words = SentencePiece(
        tokens, (0.0, -1.0, -2.0, -3.0), (3, 1, 1, 1), False, Control(template="{{ messages[0].content }}")
    )
    turn = [{"role": "user", "content": "aZb"}]
    with pytest.raises(DataError, match="'Z'"):
        talk_ids(words, turn)
    assert talk_ids(words, turn, "skip") == [1, 2]


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("name", ["--seed", "--max-new-tokens"])
def test_numbers_that_are_too_large_are_told_the_bound(
    capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    most = 2**63 - 1
    assert main.run([command, "no/model", name, str(most + 1)]) == 2
    assert f"{name} is {most + 1}, and must be a whole number of at most {most}" in capsys.readouterr().err
    assert main.run([command, "no/model", name, str(most)]) == 2
    assert "there is no model" in capsys.readouterr().err


def test_a_text_where_a_number_belongs_is_shown_as_text() -> None:
    from handgrad.models.fields import Fields

    with pytest.raises(FileError, match="n is the text '2', and"):
        Fields({"n": "2"}, "config.json").number("n")
