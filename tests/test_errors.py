"""Messages: whatever a file holds, what a terminal is told is printable, short, and names what is wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import handgrad as hg
from handgrad.cli import main
from handgrad.cli.output import Output
from handgrad.core.errors import MOST, ConfigError, DataError, FileError, cut, unknown
from handgrad.data.tokenizers import Bytes

FOREIGN = "a\nb\x1b[31m\r\u202e\x9b"
SHOWN = r"a\nb\x1b[31m\r\u202e\x9b"
CONFIG = {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
CONFIG |= {"intermediate_size": 4, "max_position_embeddings": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu"}


def told(capsys: Any, *arguments: str) -> str:
    """The one problem of a command."""
    assert main.run(list(arguments)) == 2
    err: str = capsys.readouterr().err
    assert err.endswith("\n")
    return err[:-1]


def test_a_message_is_printable_and_short() -> None:
    error = FileError(f"{FOREIGN}: bad")
    assert str(error) == "a\nb" + SHOWN[4:] + ": bad"  # several problems are several lines
    assert str(DataError("x" * 99_999)) == "x" * 1333 + "…" + "x" * 666
    assert len(str(DataError("\x1b" * 99_999))) < 5 * MOST
    assert str(ConfigError("--lr is -1\n--clip is -2")) == "--lr is -1\n--clip is -2"
    assert str(unknown("model_type", FOREIGN, ["llama"])) == f"no model_type named '{SHOWN}'. Known: llama"
    long = str(unknown("activation", "gelu" + "x" * 99_999, ["gelu", "k" * 9999]))
    assert long.startswith("no activation named 'geluxx")
    assert long.count("…") == 2
    assert len(long) < 300
    assert cut("ä" * 81) == "ä" * 53 + "…" + "ä" * 26
    assert len(cut("\n" * 99)) == 80


@pytest.mark.parametrize("name", ["model_type", "hidden_act"])
@pytest.mark.parametrize("value", [FOREIGN, "q" * 100_000])
def test_what_a_folder_holds_does_not_reach_the_terminal(name: str, value: str, tmp_path: Path, capsys: Any) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {name: value}), encoding="utf-8")
    text = told(capsys, "generate", str(tmp_path))
    assert text.isprintable()
    assert len(text) < 500
    assert SHOWN in text or "qqqq…qqqq" in text
    assert "Known: " in text


@pytest.mark.parametrize("value", [FOREIGN, "q" * 100_000])
def test_nor_does_what_a_gguf_file_holds(value: str, tmp_path: Path, capsys: Any) -> None:
    key, kind = b"general.architecture", value.encode()
    file = tmp_path / "model.gguf"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
    file.write_bytes(head + struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(kind)) + kind)
    text = told(capsys, "generate", str(file))
    assert text.isprintable()
    assert len(text) < 500


def test_a_notice_is_printable(capsys: Any) -> None:
    Output().note(f"handgrad: {FOREIGN}")
    assert capsys.readouterr().err == "handgrad: a\nb" + SHOWN[4:] + "\n"


def test_an_error_of_ours_is_short(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("\x1b[31m" + "x" * 99_999)

    monkeypatch.setattr("handgrad.cli.writing.load", broken)
    assert main.run(["generate", "somewhere"]) == 1
    text = capsys.readouterr().err
    assert text.startswith(r"handgrad: internal error, RuntimeError: \x1b[31mxxx")
    assert len(text) < 700


@pytest.mark.parametrize("command", [["generate", "--check-cache", "--max-new-tokens", "0"], ["verify"]])
def test_a_parameter_that_is_not_finite_is_named(command: list[str], monkeypatch: Any, capsys: Any) -> None:
    config = hg.GPT2Config(vocabulary=300, context=8, n_layers=1, n_heads=1, d_model=6)
    model = hg.build(config, seed=0)
    model.params["blocks.0.mlp.up.w"][0, 0] = torch.nan
    monkeypatch.setattr("handgrad.cli.writing.load", lambda path: model)
    monkeypatch.setattr("handgrad.cli.verifying.load", lambda path: model)
    model.tokenizer = Bytes()
    name, *more = command
    text = told(capsys, name, "MODEL", *more)
    assert "not finite: the parameter blocks.0.mlp.up.w is not. The model's file is at fault" in text
