"""What a GGUF file says about texts: how each kind cuts words, where a text begins, what ends it; and its window."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from test_model import batch, randomised, relative

import handgrad as hg
from handgrad.data.gguf_tokens import from_gguf
from handgrad.data.library import byte_alphabet

# Joins of which each is possible only where the text was not cut between the two.
MERGES = ["1 2", "12 3", "123 4", "Ã ©", "' s", "' S", "Ġ a", "a b", "Ċ Ċ", "! Ċ", "x y", "Ġ !", "Ġ Ġ", "'S b"]
WHOLE = "longword"  # a token that no join leads to


def fields(pre: str | None, **more: Any) -> dict[str, Any]:
    joined = ["".join(merge.split(" ")) for merge in MERGES]
    tokens = [*byte_alphabet(), *joined, WHOLE, "<|im_end|>", "<|eot_id|>", "<s>", "<tool>"]
    found = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 4) + [3] * 4,
        "tokenizer.ggml.merges": MERGES,
    }
    return (
        found
        | ({} if pre is None else {"tokenizer.ggml.pre": pre})
        | {f"tokenizer.ggml.{k}": v for k, v in more.items()}
    )


def number(name: str) -> int:
    return fields(None)["tokenizer.ggml.tokens"].index(name)


CUTS = {
    "12345": {
        "gpt-2": "1234 5",  # digits stay together
        "smollm": "1 2 3 4 5",  # each by itself
        "llama-bpe": "123 4 5",  # up to three, from the left
        "qwen2": "1 2 3 4 5",
    },
    "a 12": {"gpt-2": "a Ġ 12", "smollm": "a Ġ 1 2", "llama-bpe": "a Ġ 12", "qwen2": "a Ġ 1 2"},
    "e\u0301": {"gpt-2": "e Ì ģ", "smollm": "e Ì ģ", "llama-bpe": "e Ì ģ", "qwen2": "Ã©"},  # é as one
    "é": {"gpt-2": "Ã©", "smollm": "Ã©", "llama-bpe": "Ã©", "qwen2": "Ã©"},
    WHOLE: {
        "gpt-2": "l o n g w o r d",
        "smollm": "l o n g w o r d",
        "llama-bpe": WHOLE,  # a whole word is looked up first
        "qwen2": "l o n g w o r d",
    },
    "x's": {"gpt-2": "x 's", "smollm": "x 's", "llama-bpe": "x 's", "qwen2": "x 's"},
    "x'Sb": {"gpt-2": "x ' S b", "smollm": "x ' S b", "llama-bpe": "x 'S b", "qwen2": "x 'S b"},  # and nothing joins it
    "x'S": {"gpt-2": "x ' S", "smollm": "x ' S", "llama-bpe": "x 'S", "qwen2": "x 'S"},  # a short form in capitals, too
    "!\nx": {"gpt-2": "! Ċ x", "smollm": "! Ċ x", "llama-bpe": "!Ċ x", "qwen2": "!Ċ x"},  # a line end joins the marks
    "!xy": {"gpt-2": "! xy", "smollm": "! xy", "llama-bpe": "! xy", "qwen2": "! xy"},
    "\n\n\nx": {"gpt-2": "ĊĊ Ċ x", "smollm": "ĊĊ Ċ x", "llama-bpe": "ĊĊ Ċ x", "qwen2": "ĊĊ Ċ x"},
    "  ab": {"gpt-2": "Ġ Ġa b", "smollm": "Ġ Ġa b", "llama-bpe": "Ġ Ġa b", "qwen2": "Ġ Ġa b"},
}
THEIRS = """
import json, sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
print(json.dumps([model.tokenize(t.encode(), add_bos=False, special=False) for t in json.loads(sys.argv[2])]))
"""
SAME = {"gpt2": "gpt-2", "llama3": "llama-bpe", None: "gpt-2"}


@pytest.mark.parametrize("text", CUTS)
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", *SAME])
def test_each_kind_cuts_words_its_own_way(pre: str | None, text: str) -> None:
    expected = CUTS[text][SAME.get(pre, pre)]
    found = from_gguf(fields(pre)).encode(text).tolist()
    assert [fields(pre)["tokenizer.ggml.tokens"][i] for i in found] == expected.split(" ")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_llama_cpp_cuts_words_alike(tmp_path: Path, pre: str) -> None:
    """But for é in two characters: transformers makes one of them for Qwen2, as that model was trained."""
    pytest.importorskip("gguf")
    if find_spec("llama_cpp") is None:
        pytest.skip("needs the package llama-cpp-python")
    from test_gguf import BLOCKS, written

    said = fields(pre, bos_token_id=number("<s>"), eos_token_id=number("<s>"))
    tokens = said["tokenizer.ggml.tokens"]

    def add(file: Any) -> None:
        file.add_tokenizer_model("gpt2")
        file.add_tokenizer_pre(pre)
        file.add_token_list(tokens)
        file.add_token_types(said["tokenizer.ggml.token_type"])
        file.add_token_merges(MERGES)
        file.add_bos_token_id(number("<s>"))
        file.add_eos_token_id(number("<s>"))

    model = randomised(hg.LlamaConfig(**{**BLOCKS, "vocabulary": len(tokens)}))
    path = written(tmp_path / "m.gguf", model, more=[add])
    texts = [text for text in CUTS if (pre, text) != ("qwen2", "e\u0301")]
    command = [sys.executable, "-c", THEIRS, str(path), json.dumps(texts)]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ours = hg.load(path).tokenizer
    assert theirs == [ours.encode(text).tolist() for text in texts]


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({}, {"<|im_end|>", "<|eot_id|>"}),  # by their names
        ({"eos_token_id": number("<tool>")}, {"<|im_end|>", "<|eot_id|>", "<tool>"}),
        ({"eot_token_id": number("<tool>")}, {"<|im_end|>", "<|eot_id|>", "<tool>"}),
        ({"eom_token_id": number("<tool>")}, {"<|im_end|>", "<|eot_id|>", "<tool>"}),
        ({"token_type": [1] * len(fields(None)["tokenizer.ggml.tokens"])}, set()),  # plain text of that name is none
    ],
)
def test_every_token_that_ends_an_answer(more: dict[str, Any], end: set[str]) -> None:
    assert set(from_gguf(fields("smollm", **more)).control.end) == set(map(number, end))


def test_the_end_of_the_text_comes_first() -> None:
    ends = {"eos_token_id": number("<tool>"), "eot_token_id": number("<s>"), "eom_token_id": number("<|im_end|>")}
    names = ("<tool>", "<s>", "<|im_end|>", "<|eot_id|>")
    assert from_gguf(fields("smollm", **ends)).control.end == tuple(map(number, names))


@pytest.mark.parametrize(
    ("more", "begin"),
    [
        ({"bos_token_id": number("<s>")}, ()),  # this kind begins with it only where it is told to
        ({"bos_token_id": number("<s>"), "add_bos_token": True}, (number("<s>"),)),
        ({"bos_token_id": number("<s>"), "add_bos_token": False}, ()),
        ({"add_bos_token": True}, ()),
    ],
)
def test_where_a_text_begins(more: dict[str, Any], begin: tuple[int, ...]) -> None:
    assert from_gguf(fields("smollm", **more)).control.begin == begin


@pytest.mark.parametrize(
    ("more", "begin"),
    [({}, (1,)), ({"add_bos_token": True}, (1,)), ({"add_bos_token": False}, ()), ({"bos_token_id": 2}, (2,))],
)
def test_pieces_with_scores_begin_with_their_start_token_unless_told_otherwise(
    more: dict[str, Any], begin: tuple[int, ...]
) -> None:
    own = {"model": "llama", "tokens": ["<unk>", "<s>", "</s>", "a"], "scores": [0.0] * 4, "token_type": [2, 3, 3, 1]}
    found = from_gguf({f"tokenizer.ggml.{name}": value for name, value in (own | more).items()})
    assert (found.control.begin, found.control.end) == (begin, (2,))


@pytest.mark.parametrize("window", [0, 5])
def test_a_window_of_attention(tmp_path: Path, window: int) -> None:
    pytest.importorskip("gguf")
    from test_gguf import BLOCKS, written

    model = randomised(hg.LlamaConfig(**BLOCKS, window=window))
    more = [lambda file: file.add_sliding_window(window)] if window else []
    found = hg.load(written(tmp_path / "m.gguf", model, more=more))
    assert found.config.window == window
    tokens = batch(1, length=19)
    assert relative(found(tokens).double(), model(tokens)) < 1e-5
    other = randomised(hg.LlamaConfig(**BLOCKS, window=5 - window))
    assert torch.equal(other.params.flat, model.params.flat)
    assert relative(other(tokens), model(tokens)) > 1e-3
