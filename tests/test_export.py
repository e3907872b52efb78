"""Hugging Face folders that we write: transformers loads them with nothing missing and computes the same."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_hf import gpt2, scattered
from test_llama import BASE, CASES, SHAPE, Angles, peer
from test_model import batch, randomised, relative

import handgrad as hg
from handgrad.cli.main import run
from handgrad.core.errors import ConfigError, FileError
from handgrad.data.control import Control
from handgrad.data.sentencepiece_style import SentencePiece
from handgrad.data.tokenizers import Bytes, Chars, Ids
from handgrad.layers.frequencies import NTKAware, Plain
from handgrad.models.export import export
from handgrad.train.checkpoint import Progress, save
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State

transformers = pytest.importorskip("transformers")

SMALL = {"vocabulary": 11, "context": 29, "n_layers": 2, "n_heads": 2, "d_model": 8}
OURS = {
    "gpt2": hg.GPT2Config(**SMALL),
    "gpt2, untied, relu": hg.GPT2Config(**SMALL, tied=False, activation="relu", d_mlp=13),
    "gpt2, erf": hg.GPT2Config(**SMALL, activation="gelu_erf", dropout=0.1),
    "gpt2, another epsilon": hg.GPT2Config(**SMALL, epsilon=3e-2),
    "llama, another epsilon": hg.LlamaConfig(**{**SHAPE, "epsilon": 2e-2}, rope=Plain(BASE)),
    "qwen2, another epsilon": hg.LlamaConfig(**{**SHAPE, "epsilon": 2e-2}, bias=True, rope=Plain(BASE)),
    "gpt2, no offsets": hg.GPT2Config(**SMALL, bias=False),
    "ntk": hg.LlamaConfig(**SHAPE, rope=NTKAware(3.0, BASE)),
    "offsets and a window": hg.LlamaConfig(**SHAPE, n_kv_heads=2, bias=True, window=5, rope=Plain(BASE)),
    "heads that do not fill the width": hg.LlamaConfig(**{**SHAPE, "d_model": 18}, rope=Plain(BASE)),
    **CASES,
}


def theirs(folder: Path, c: hg.LlamaConfig | hg.GPT2Config) -> torch.nn.Module:
    """The folder as transformers loads it, in float64 throughout."""
    other, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, output_loading_info=True, local_files_only=True
    )
    assert not any(info.values()), info
    if isinstance(c, hg.LlamaConfig):
        other.model.rotary_emb = Angles(c, other.model.rotary_emb.inv_freq)
        for layer in other.model.layers:
            layer.input_layernorm = wide(layer.input_layernorm, c)
            layer.post_attention_layernorm = wide(layer.post_attention_layernorm, c)
        other.model.norm = wide(other.model.norm, c)
    return other.eval()


def wide(norm: torch.nn.Module, c: hg.LlamaConfig) -> torch.nn.Module:
    assert norm.variance_epsilon == c.epsilon
    found = torch.nn.RMSNorm(c.d_model, c.epsilon, dtype=torch.float64)
    found.weight = norm.weight
    return found


@pytest.mark.parametrize("name", OURS)
def test_transformers_loads_it_and_computes_the_same(tmp_path: Path, name: str) -> None:
    model, tokens = randomised(OURS[name]), batch(1, length=19)
    export(model, tmp_path / "out")
    assert relative(theirs(tmp_path / "out", OURS[name])(tokens).logits, model(tokens)) < 1e-10
    back = hg.load(tmp_path / "out")
    assert relative(back(tokens), model(tokens)) < 1e-12
    export(back, tmp_path / "again")
    for file in ("config.json", "model.safetensors"):
        first, second = (json_or_bytes(tmp_path / folder / file) for folder in ("out", "again"))
        if file == "config.json":
            for table in (first, second):  # what only a training reads
                for rate in ("resid_pdrop", "embd_pdrop"):
                    table.pop(rate, None)
        assert first == second


@pytest.mark.parametrize("d_head", [0, 6])
@pytest.mark.parametrize("more", [{}, {"window": 5}, {"bias": True}])
def test_numbers_that_they_would_take_from_elsewhere_are_written(tmp_path: Path, more: dict, d_head: int) -> None:
    config = hg.LlamaConfig(**{**SHAPE, "d_head": d_head, "d_model": 24, "n_heads": 3, "epsilon": 2e-2}, **more)
    export(randomised(config), tmp_path / "out")
    table = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (table["head_dim"], table["rms_norm_eps"]) == (d_head or 8, 2e-2)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").head_dim == (d_head or 8)
    assert hg.load(tmp_path / "out").config.head == (d_head or 8)


@pytest.mark.parametrize("config", [OURS["gpt2"], CASES["plain"]])
def test_no_token_of_somebody_elses_vocabulary_ends_a_text(
    tmp_path: Path, config: hg.GPT2Config | hg.LlamaConfig
) -> None:
    export(randomised(config, dtype=torch.float32), tmp_path / "out")
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    for found in (other.config, other.generation_config):
        assert (found.bos_token_id, found.eos_token_id) == (None, None)


def json_or_bytes(path: Path):
    return json.loads(path.read_text()) if path.suffix == ".json" else path.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_in_and_out_gives_the_same_bytes_under_the_same_names(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    other = gpt2(tmp_path) if kind == "gpt2" else scattered(peer(CASES["offsets (Qwen2)"]))
    other.to(dtype).save_pretrained(tmp_path / "in")
    assert run(["export", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 0
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out"))
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert x.dtype == second[name].dtype == dtype
        assert torch.equal(x.view(torch.uint8), second[name].view(torch.uint8)), name


def test_what_lies_there_stays(tmp_path: Path) -> None:
    model = randomised(OURS["gpt2"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "empty").mkdir()
    os.symlink(tmp_path / "empty", tmp_path / "link")
    export(model, tmp_path / "empty")
    for name in ("full", "full/mine", "empty", "link"):
        with pytest.raises(FileError, match=f"{name} exists and is not an empty folder; nothing is written over it"):
            export(model, tmp_path / name)
    assert os.listdir(tmp_path / "full") == ["mine"]
    with pytest.raises(FileError, match="cannot write"):
        export(model, tmp_path / "full" / "mine" / "below")
    assert sorted(os.listdir(tmp_path)) == ["empty", "full", "link"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("handgrad.models.export.synced", full)
    with pytest.raises(FileError, match=r"cannot write .*out: No space left on device"):
        export(randomised(OURS["gpt2"]), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_numbers_that_a_short_type_cannot_hold(tmp_path: Path) -> None:
    model = randomised(OURS["gpt2"])
    model.params["norm.gamma"][0] = 1e6
    with pytest.raises(ConfigError, match=r"transformer.ln_f.weight reaches 1e\+06, more than torch.float16 can hold"):
        export(model, tmp_path / "out", torch.float16)
    assert os.listdir(tmp_path) == []


ABC = Chars.of("abc")


def checkpoint(folder: Path, config: hg.LlamaConfig | hg.GPT2Config, words: Any = ABC) -> hg.Model:
    model = replace(randomised(config, dtype=torch.float32), tokenizer=words)
    save(folder, model, State.zeros(model.params.flat), Progress(3), TrainConfig(), words)
    return model


def test_a_run_goes_out_and_comes_in_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = checkpoint(tmp_path / "run", OURS["gpt2"], Ids(11))
    assert run(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert record["parameters"] == model.params.layout.count
    assert record["kind"] == "checkpoint"
    assert record["tokenizer"] is False
    assert "not the tokenizer (ids): its texts are numbers, the ids themselves" in captured.err
    assert run(["generate", str(tmp_path / "out")]) == 2
    hint = (
        "put its tokenizer.json (of llama2.c: its tokenizer.bin) beside it, or let the numbers of tokens be its text: "
    )
    assert hint + "handgrad import MODEL --out FOLDER" in capsys.readouterr().err
    assert run(["import", str(tmp_path / "out"), "--out", str(tmp_path / "in")]) == 0
    captured = capsys.readouterr()
    assert "without a tokenizer" in captured.err
    assert "Next: handgrad generate" in captured.out
    back = hg.load(tmp_path / "in")
    assert back.config == model.config
    assert torch.equal(back.params.flat, model.params.flat)
    assert back.tokenizer.vocab_size == 11
    assert run(["generate", str(tmp_path / "in"), "--prompt", "1 2", "--max-new-tokens", "3"]) == 0


@pytest.mark.parametrize("words", [Chars.of("cat é☃\n"), Bytes()])
def test_a_run_writes_the_same_text_wherever_it_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Chars | Bytes
) -> None:
    pytest.importorskip("tokenizers")
    model = checkpoint(tmp_path / "run", hg.GPT2Config(**{**SMALL, "vocabulary": words.vocab_size}), words)
    assert run(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert ("leaves out the characters" in capsys.readouterr().err) == isinstance(words, Chars)
    texts = []
    for name in ("run", "out"):
        prompt = ["--prompt", "a ☃", "--greedy", "--max-new-tokens", "12"]
        assert run(["generate", str(tmp_path / name), *prompt]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    ids = torch.tensor([theirs("a ☃")["input_ids"]])
    assert ids[0].tolist() == model.tokenizer.encode("a ☃").tolist()
    new = other.generate(ids, do_sample=False, max_new_tokens=12, attention_mask=torch.ones_like(ids))
    assert theirs.decode(new[0].tolist()) == texts[0].removesuffix("\n")


def test_a_tokenizer_travels(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from handgrad.data.bpe import train_bpe

    words = train_bpe(["the cat sat on the mat. "] * 50, 270)
    model = randomised(hg.GPT2Config(**{**SMALL, "vocabulary": words.vocab_size}), dtype=torch.float32)
    save(tmp_path / "run", model, State.zeros(model.params.flat), Progress(3), TrainConfig(), words)
    assert run(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    text = "the cat sat, éß!"
    ids = words.encode(text).tolist()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(text)["input_ids"] == ids
    assert hg.load(tmp_path / "out").tokenizer.encode(text).tolist() == ids
    assert hg.load(tmp_path / "out", tokenizer=False).tokenizer is None
    assert run(["import", str(tmp_path / "out"), "--out", str(tmp_path / "in")]) == 0
    assert hg.load(tmp_path / "in").tokenizer.encode(text).tolist() == ids


def special(folder: Path) -> dict:
    table = json.loads((folder / "config.json").read_text())
    return {name: table[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in table}


@pytest.mark.parametrize("name", ["gpt2", "ntk"])
def test_ids_of_special_tokens_are_the_models_own(tmp_path: Path, name: str) -> None:
    """Left out, transformers would take GPT-2's 50256, or Llama's 1 and 2, which are other tokens here."""
    model = randomised(OURS[name], dtype=torch.float32)
    export(model, tmp_path / "none")
    assert special(tmp_path / "none") == {"bos_token_id": None, "eos_token_id": None}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "none")
    for config in (loaded.config, loaded.generation_config):
        assert (config.bos_token_id, config.eos_token_id) == (None, None)
    export(replace(model, tokenizer=letters(Control(begin=(1,), end=(2, 0)))), tmp_path / "some")
    assert special(tmp_path / "some") == {"bos_token_id": 1, "eos_token_id": [2, 0]}


def letters(control: Control) -> SentencePiece:
    """A tokenizer that transformers has none like: a control token that looks like text, and no bytes."""
    return SentencePiece(("a", "b", "c"), (0.0, -1.0, -2.0), (1, 3, 3), False, control)


@pytest.mark.parametrize(
    "ids",
    [
        {},
        {"bos_token_id": None, "eos_token_id": None},
        {"bos_token_id": 7, "eos_token_id": [3, 5], "pad_token_id": 0},
    ],
)
def test_a_round_trip_keeps_the_ids_that_came_in(tmp_path: Path, ids: dict) -> None:
    export(randomised(OURS["gpt2"]), tmp_path / "in")
    path = tmp_path / "in" / "config.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({n: v for n, v in table.items() if not n.endswith("token_id")} | ids))
    for i, options in enumerate(([], ["--no-tokenizer"])):
        assert run(["export", str(tmp_path / "in"), "--out", str(tmp_path / f"out{i}"), *options]) == 0
        assert special(tmp_path / f"out{i}") == ids
    hg.export(hg.load(tmp_path / "in"), tmp_path / "python")
    assert special(tmp_path / "python") == ids


def test_python_writes_the_files_that_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    from handgrad.data.bpe import train_bpe

    words = train_bpe(["the cat sat on the mat. "] * 50, 270)
    model = randomised(hg.GPT2Config(**{**SMALL, "vocabulary": words.vocab_size}), dtype=torch.float32)
    export(replace(model, tokenizer=words), tmp_path / "in")
    (tmp_path / "in" / "special_tokens_map.json").write_text('{"x": 1}')
    for options, load in (([], {}), (["--no-tokenizer"], {"tokenizer": False})):
        by_command, by_python = tmp_path / f"c{len(options)}", tmp_path / f"p{len(options)}"
        assert run(["export", str(tmp_path / "in"), "--out", str(by_command), "--json", *options]) == 0
        assert json.loads(capsys.readouterr().out)["tokenizer"] is (not options)
        done = hg.export(hg.load(tmp_path / "in", **load), by_python)
        assert done.has_tokenizer is (not options)
        assert contents(by_command) == contents(by_python)
        assert ("special_tokens_map.json" in contents(by_python)) is (not options)
    hg.export(replace(hg.load(tmp_path / "in"), tokenizer=letters(Control(end=(2,)))), tmp_path / "other")
    assert sorted(contents(tmp_path / "other")) == ["config.json", "model.safetensors"]
    assert special(tmp_path / "other") == {"bos_token_id": None, "eos_token_id": [2]}
    save(tmp_path / "run", model, State.zeros(model.params.flat), Progress(3), TrainConfig(), words)
    assert run(["export", str(tmp_path / "run"), "--out", str(tmp_path / "c")]) == 0
    hg.export(hg.load(tmp_path / "run"), tmp_path / "p")
    assert contents(tmp_path / "c") == contents(tmp_path / "p")
    assert "tokenizer.json" in contents(tmp_path / "p")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_record_says_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = letters(Control())
    model = randomised(OURS["gpt2"], dtype=torch.float32)
    save(tmp_path / "run", model, State.zeros(model.params.flat), Progress(3), TrainConfig(), words)
    assert run(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tokenizer"] is False
    assert "not the tokenizer (sentencepiece)" in captured.err
    assert sorted(contents(tmp_path / "out")) == ["config.json", "model.safetensors"]


def test_refusals_come_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(tmp_path / "run", OURS["gpt2"])
    for arguments, message in (
        (["export", "x", "--out", str(tmp_path / "o"), "--dtype", "int8"], "--dtype is 'int8', and must be auto or"),
        (["import", "x", "--out", str(tmp_path / "o"), "--dtype", "float16"], "--dtype is 'float16', and must be"),
        (["export", str(tmp_path / "run"), "--out", str(tmp_path / "run")], "exists and is not an empty folder"),
        (["export", str(tmp_path / "gone"), "--out", str(tmp_path / "o")], "there is no model"),
        (["export", str(tmp_path / "run")], "--out"),
    ):
        assert run(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["run"]
