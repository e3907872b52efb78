"""`handgrad generate` as people use it: text and JSON, stops, unknown characters, the cache and its check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from handgrad.cli import main
from handgrad.core.errors import HandgradError
from handgrad.data.control import Control
from handgrad.data.sentencepiece_style import SentencePiece
from handgrad.generate.cache import KVCache
from handgrad.generate.generate import complete
from handgrad.generate.sample import Sampling
from handgrad.models.load import load

TEXT = "the cat sat on the mat, and the dog sat on the log.\n" * 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two small trained runs, `chars` and `bytes`."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT + "é☃é☃é☃" * 40, encoding="utf-8")
    shape = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "12"]
    for tokenizer in ("chars", "bytes"):
        arguments = ["--out", str(folder / tokenizer), "--tokenizer", tokenizer, "--steps", "40", "--lr", "0.02"]
        assert main.run(["train", str(folder / "text.txt"), *arguments, *shape]) == 0
    return folder


def one(runs: Path, capsys: pytest.CaptureFixture[str], *arguments: str, model: str = "chars") -> dict[str, object]:
    assert main.run(["generate", str(runs / model), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_text_is_the_prompt_and_what_the_model_writes_after_it(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = one(runs, capsys, "--prompt", "the ", "--max-new-tokens", "30", "--seed", "3")
    assert set(found) == {"prompt", "prompt_ids", "ids", "text", "stopped", "tokens_per_s"}
    model = load(runs / "chars")
    prompt_ids = model.tokenizer.encode("the ").tolist()
    ids = complete(model, prompt_ids, 30, Sampling(), seed=3).tolist()
    assert (found["prompt"], found["prompt_ids"], found["ids"]) == ("the ", prompt_ids, ids)
    assert found["text"] == model.tokenizer.decode(ids)
    assert found["tokens_per_s"] > 0
    assert found["stopped"] is False
    assert main.run(["generate", str(runs / "chars"), "--prompt", "the ", "--max-new-tokens", "30", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"the {found['text']}\n"
    assert shown.err == ""


def test_every_option_reaches_the_sampling(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr("handgrad.cli.writing.generate", lambda *arguments, **_: (seen.append(arguments), iter(()))[1])
    options = ["--temperature", "0.5", "--top-k", "7", "--top-p", "0.9", "--seed", "5", "--max-new-tokens", "8"]
    options += ["--min-p", "0.25", "--repetition-penalty", "1.5"]
    assert main.run(["generate", str(runs / "chars"), *options, "--greedy", "--no-cache"]) == 0
    assert main.run(["generate", str(runs / "chars")]) == 0
    assert [arguments[2:] for arguments in seen] == [
        (8, Sampling(0.5, 7, 0.9, True, 0.25, 1.5), 5, False),
        (200, Sampling(), 0, True),
    ]


def test_zero_temperature_is_greedy_and_a_seed_decides(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def text(*arguments: str) -> object:
        return one(runs, capsys, "--prompt", "the ", "--max-new-tokens", "40", *arguments)["text"]

    assert text("--temperature", "0", "--seed", "1") == text("--greedy", "--seed", "2") == text("--top-k", "1")
    assert text("--seed", "1") == text("--seed", "1") != text("--seed", "2")
    assert text("--seed", "1", "--no-cache") == text("--seed", "1")


def test_a_stop_ends_the_text_and_is_not_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free = one(runs, capsys, "--prompt", "the ", "--greedy", "--max-new-tokens", "60")["text"]
    stop = free[20:23]
    found = one(runs, capsys, "--prompt", "the ", "--greedy", "--max-new-tokens", "60", "--stop", "☃☃", "--stop", stop)
    assert found["stopped"] is True
    assert found["text"] == free[: free.index(stop)]
    assert load(runs / "chars").tokenizer.decode(found["ids"]) == found["text"]
    nearly = one(runs, capsys, "--prompt", "the ", "--greedy", "--max-new-tokens", "60", "--stop", free[-5:] + "☃")
    assert (nearly["text"], nearly["stopped"]) == (free, False)
    arguments = ["generate", str(runs / "chars"), "--prompt", "the ", "--greedy", "--stop", stop]
    assert main.run(arguments) == 0
    assert capsys.readouterr().out == f"the {found['text']}\n"


def test_ids_end_where_the_text_ends_before_a_stop_of_several_bytes(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [*"a☃éb".encode()]
    monkeypatch.setattr("handgrad.cli.writing.generate", lambda *arguments, **_: (torch.tensor([i]) for i in ids))
    for stop, text in (("é", "a☃"), ("☃", "a"), ("a", ""), ("éb", "a☃")):
        found = one(runs, capsys, "--prompt", "x", "--stop", stop, model="bytes")
        assert (found["text"], found["stopped"], bytes(found["ids"]).decode()) == (text, True, text)
    ids = [*b"ab", 0xE2]  # ends in half a character
    found = one(runs, capsys, "--prompt", "x", "--stop", "\ufffd", model="bytes")
    assert (found["text"], found["stopped"], found["ids"]) == ("ab", True, [*b"ab"])


def test_no_prompt_no_tokens(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = one(runs, capsys, "--max-new-tokens", "5", "--greedy")
    from_newline = one(runs, capsys, "--prompt", "\n", "--max-new-tokens", "5", "--greedy")
    assert (found["prompt"], found["prompt_ids"], found["ids"]) == ("", [], from_newline["ids"])
    assert one(runs, capsys, "--prompt", "the", "--max-new-tokens", "0")["ids"] == []
    assert main.run(["generate", str(runs / "chars"), "--prompt", "the", "--max-new-tokens", "0"]) == 0
    assert capsys.readouterr().out == "the\n"


def test_prompts_of_a_file_come_one_after_the_other(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_bytes(b"the cat\r\n\r\nthe dog\r\n")
    arguments = ["generate", str(runs / "chars"), "--prompts", str(tmp_path / "prompts.txt"), "--max-new-tokens", "6"]
    assert main.run([*arguments, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["prompt"] for record in found] == ["the cat", "", "the dog"]
    assert main.run(arguments) == 0
    assert capsys.readouterr().out == "\n".join(f"{r['prompt']}{r['text']}\n" for r in found)
    assert found[2]["text"] == one(runs, capsys, "--prompt", "the dog", "--max-new-tokens", "6")["text"]


def test_unknown_characters_are_named_with_the_choices(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", str(runs / "chars"), "--prompt", "aZb", "--max-new-tokens", "3"]
    assert main.run(arguments) == 2
    shown = capsys.readouterr()
    assert "'Z' at position 1, 'b' at position 2, counted from 0. Choose what happens: --unknown skip " in shown.err
    assert shown.err.count("skip") == shown.err.count("replace") == 1
    assert shown.out == ""
    found = one(runs, capsys, "--prompt", "aZt", "--unknown", "skip", "--max-new-tokens", "3")
    assert found["prompt_ids"] == load(runs / "chars").tokenizer.encode("at").tolist()
    assert main.run([*arguments, "--unknown", "replace"]) == 0


def test_an_unknown_character_of_a_file_is_named_with_its_line_before_anything_is_written(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("the\nZ\n")
    assert main.run(["generate", str(runs / "chars"), "--prompts", str(tmp_path / "prompts.txt")]) == 2
    shown = capsys.readouterr()
    assert f"line 2 of {tmp_path / 'prompts.txt'}: the text has" in shown.err
    assert shown.out == ""


def test_half_a_character_is_never_shown(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [*"☃é".encode(), 0xE2, 0x98]
    monkeypatch.setattr("handgrad.cli.writing.generate", lambda *arguments, **_: (torch.tensor([i]) for i in ids))
    pieces: list[str] = []
    monkeypatch.setattr("handgrad.cli.output.Output.text", lambda self, text="", end="\n": pieces.append(text + end))
    assert main.run(["generate", str(runs / "bytes"), "--prompt", "é"]) == 0
    assert pieces == ["é", "☃", "é", "\ufffd", "\n"]
    found = one(runs, capsys, "--prompt", "é", model="bytes")
    assert (found["text"], found["ids"]) == ("☃é\ufffd", ids)


def test_ids_are_shown_as_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ids.txt").write_text(" ".join(str(i % 5) for i in range(300)))
    shape = ["--layers", "1", "--heads", "1", "--width", "4", "--context", "8", "--steps", "1", "--tokenizer", "ids"]
    assert main.run(["train", str(tmp_path / "ids.txt"), "--out", str(tmp_path / "run"), *shape]) == 0
    capsys.readouterr()
    found = one(tmp_path, capsys, "--prompt", "3 4", "--max-new-tokens", "3", model="run")
    assert found["prompt_ids"] == [3, 4]
    assert found["text"] == "".join(f" {i}" for i in found["ids"])
    assert main.run(["generate", str(tmp_path / "run"), "--prompt", "3 9"]) == 2
    assert "id 9 at position 1 is outside the vocabulary" in (told := capsys.readouterr().err)
    assert told.endswith("; --unknown skip leaves such ids out\n")


def test_the_cache_is_checked_on_request(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt", "the ", "--max-new-tokens", "5", "--check-cache"]
    found = one(runs, capsys, *arguments)["cache"]
    assert found["verdict"] in ("identical", "rounding")
    assert len(found["rows"]) == 9
    assert main.run(["generate", str(runs / "chars"), *arguments]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2
    assert out[1].startswith(("rounding: ", "identical: "))
    assert main.run(["generate", str(runs / "chars"), "--max-new-tokens", "50", "--check-cache"]) == 0
    assert "compared over the first 12 of 50 tokens" in capsys.readouterr().err


def test_a_wrong_cache_is_our_fault(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extend = KVCache.extend

    def halved(self: KVCache, path: str, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = extend(self, path, k, v)
        return k, v / 2

    monkeypatch.setattr(KVCache, "extend", halved)
    assert main.run(["generate", str(runs / "chars"), "--max-new-tokens", "5", "--check-cache", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cache"]["verdict"] == "bug"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--temperature", "-1", "--top-k", "-2", "--top-p", "nan", "--seed", "-3", "--max-new-tokens", "-4"],
            [
                "--max-new-tokens is -4, and must be a whole number of at least 0",
                "--seed is -3, and must be a whole number of at least 0",
                "--temperature is -1.0, and must be a finite number of at least 0",
                "--top-k is -2, and must be a whole number of at least 0 (0 is off)",
                "--top-p is nan, and must be above 0 and at most 1 (1 is off)",
            ],
        ),
        (["--stop", ""], ["--stop is empty, and would end every text before it begins; leave it out"]),
        (["--prompt", "a", "--prompts", "b"], ["--prompt and --prompts were both given; give one of them"]),
        (
            ["--unknown", "skp"],
            ["--unknown: no choice for unknown characters named 'skp'; did you mean 'skip'? Known: "],
        ),
        (["--prompts", "no.txt"], ["there is no text file 'no.txt'; check the name and the folder."]),
    ],
)
def test_options_are_checked_before_the_model_is_loaded(
    arguments: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loaded(path: str) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("handgrad.cli.writing.load", loaded)
    assert main.run(["generate", "somewhere", *arguments]) == 2
    found = capsys.readouterr().err.removeprefix("handgrad: ").splitlines()
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


def test_a_damaged_model_is_told_plainly(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["generate", str(tmp_path)]) == 2
    assert "holds no model; expected a run folder" in capsys.readouterr().err
    model = load(runs / "chars")
    model.params["norm.gamma"][0] = torch.nan
    with pytest.raises(HandgradError, match="the first signal that is not finite is norm"):
        complete(model, [1], 1)


def test_prompts_in_batches_give_what_each_gives_alone(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("the cat sat on\nthe\n\nthe cat\nand the")
    arguments = ["generate", str(runs / "chars"), "--prompts", str(tmp_path / "prompts.txt"), "--json"]
    arguments += ["--max-new-tokens", "30", "--dtype", "float64", "--stop", "og", "--repetition-penalty", "1.2"]
    found = []
    for size in ("1", "2", "3", "5", "99"):
        assert main.run([*arguments, "--batch-size", size]) == 0
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        found.append([{name: record[name] for name in ("prompt", "ids", "text", "stopped")} for record in records])
    assert all(records == found[0] for records in found)
    assert len(found[0]) == 5
    assert any(record["stopped"] for record in found[0])
    assert main.run([*arguments[:-2], "--batch-size", "0", "--min-p", "7"]) == 2
    shown = capsys.readouterr().err
    assert "--batch-size is 0, and must be a whole number of at least 1" in shown
    assert "--min-p is 7.0, and must be from 0 to 1 (0 is off)" in shown


def test_a_vocabulary_trained_on_the_text_travels_with_the_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "12", "--steps", "3"]
    arguments += ["--out", str(tmp_path / "r"), "--tokenizer", "bpe:280"]
    assert main.run(["train", str(runs / "text.txt"), *arguments]) == 0
    capsys.readouterr()
    model = load(tmp_path / "r")
    text = "the cat \u2603 <|endoftext|>"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert 256 < model.tokenizer.vocab_size <= 280
    assert main.run(["generate", str(tmp_path / "r"), "--json", "--prompt", text, "--max-new-tokens", "9"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompt_ids"] == model.tokenizer.encode(text).tolist()
    assert text + found["text"] == model.tokenizer.decode([*found["prompt_ids"], *found["ids"]])
    assert 'tokenizer = "bpe:280"' in (tmp_path / "r" / "config.toml").read_text()


def test_the_end_of_a_trained_model_ends_a_text(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(runs / "bytes")
    ids = complete(model, [120], 9, Sampling(greedy=True)).tolist()
    tokens, types = tuple(f"<0x{b:02X}>" for b in range(256)), (6,) * 256
    model.tokenizer = SentencePiece(tokens, (0.0,) * 256, types, False, Control((120,), (ids[4],)))
    monkeypatch.setattr("handgrad.cli.writing.load", lambda path: model)
    assert main.run(["generate", "M", "--json", "--greedy"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["prompt_ids"], found["ids"], found["stopped"]) == ([120], ids[: ids.index(ids[4])], True)
