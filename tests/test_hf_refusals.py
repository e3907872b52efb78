"""Hugging Face folders that are not whole, or not what they say: one line each, nothing loaded, no code run."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import handgrad as hg
from handgrad.cli.main import run
from handgrad.core.errors import FileError
from handgrad.data.bpe import train_bpe
from handgrad.models.export import export

CONFIG = hg.LlamaConfig(vocabulary=11, context=13, n_layers=2, n_heads=2, n_kv_heads=1, d_model=8, d_mlp=12, tied=True)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 538090408\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(hg.build(CONFIG), tmp_path / "model")
    return tmp_path / "model"


def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def edit(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rewrite(folder: Path, change) -> None:
    tensors = load_file(weights(folder))
    save_file({n: t.contiguous() for n, t in change(tensors).items()}, weights(folder))


def refused(folder: Path, message: str) -> str:
    with pytest.raises(FileError, match=message) as found:
        hg.load(folder)
    text = str(found.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


def header(table: object, data: bytes = b"") -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2**40) + b"{}",
        header(b"{"),
        header(b"[" * 100_000),
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345678"),
        header({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [2**60, 2**60 + 4]}}, b"1234"),
    ],
)
def test_headers_that_are_damaged_or_hostile(folder: Path, content: bytes) -> None:
    weights(folder).write_bytes(content)
    refused(folder, r"model.safetensors is damaged or cut short: expected a whole safetensors file, [\d,]+ bytes found")


def test_cut_and_padded(folder: Path) -> None:
    whole = weights(folder).read_bytes()
    for content in (whole[:7], whole[:100], whole[: len(whole) // 2], whole[:-1], whole + b"\0"):
        weights(folder).write_bytes(content)
        refused(folder, f"damaged or cut short: expected a whole safetensors file, {len(content):,} bytes found")


def test_pointers_of_git_lfs(folder: Path) -> None:
    weights(folder).write_bytes(POINTER)
    refused(folder, "model.safetensors is a Git LFS pointer, not the file of 538090408 bytes that it stands for")


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "model.safetensors.index.json", "generation_config.json", "chat_template.jinja"],
)
def test_pointers_in_place_of_small_files(folder: Path, name: str) -> None:
    if "index" in name:
        shards(folder)
    elif name != "tokenizer.json":
        (folder / "tokenizer.json").write_text(train_bpe(["the cat sat on the mat. "] * 9, 260).text)
    (folder / name).write_bytes(POINTER)
    refused(folder, f"{name} is a Git LFS pointer, not the file of 538090408 bytes that it stands for; git lfs pull")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "m.gguf", "m.bin"]
)
def test_pipes_are_not_opened(folder: Path, name: str) -> None:
    """Opening one would wait for a writer, for good."""
    if name == "chat_template.jinja":
        (folder / "tokenizer.json").write_text(train_bpe(["the cat sat on the mat. "] * 9, 260).text)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    before = signal.signal(signal.SIGALRM, stopped)
    signal.alarm(10)
    try:
        refused(folder / name if name.startswith("m.") else folder, f"{name}'? is (not|a pipe)|{name}: it is a pipe")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def stopped(*_: object) -> None:
    raise AssertionError("waits for a pipe")


def test_names_and_shapes(folder: Path) -> None:
    rewrite(folder, lambda t: {n: x for n, x in t.items() if "layers.1" not in n})
    refused(folder, r"model.layers.1.\S+, model.layers.1.\S+, model.layers.1.\S+ and 6 more expected, and missing")


def test_tensors_that_no_part_uses(folder: Path) -> None:
    rewrite(
        folder, lambda t: t | {"model.layers.0.self_attn.q_norm.weight": torch.ones(4), "score.weight": torch.ones(2)}
    )
    refused(folder, r"model.layers.0.self_attn.q_norm.weight, score.weight found, and no part of such a model")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 12}, r"embed_tokens.weight should be \(12, 8\), found \(11, 8\)"),
        ({"intermediate_size": 13}, r"gate_proj.weight should be \(13, 8\), found \(12, 8\) \(6 tensors differ\)"),
        ({"num_key_value_heads": 2}, r"k_proj.weight should be \(8, 8\), found \(4, 8\)"),
        ({"num_hidden_layers": 3}, r"model.layers.2.\S+, .* and 6 more expected, and missing"),
        ({"num_hidden_layers": 1}, r"model.layers.1.\S+, .* and 6 more found, and no part"),
        ({"num_hidden_layers": 9999}, "9999 blocks, and 20 tensors"),
        ({"num_hidden_layers": 10**9}, "n_layers is 1000000000"),
        ({"hidden_size": 2**20}, r"should be \(11, 1048576\), found \(11, 8\)"),
        ({"vocab_size": 2**31}, r"should be \(2147483648, 8\), found \(11, 8\)"),
        ({"model_type": "qwen2"}, r"q_proj.bias, .* and 3 more expected, and missing"),
        ({"model_type": "gpt2", "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1}, r"expected, and missing"),
        ({"tie_word_embeddings": False}, "lm_head.weight expected, and missing"),
    ],
)
def test_a_configuration_that_the_file_contradicts(folder: Path, fields: dict, message: str) -> None:
    edit(folder, **fields)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(folder, message)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_numbers_of_an_unknown_type(folder: Path) -> None:
    rewrite(folder, lambda t: t | {"model.norm.weight": t["model.norm.weight"].to(torch.int32)})
    refused(folder, r"model.norm.weight is stored as I32, which is not read; known: F64, F32, F16, BF16")


def test_config_files(folder: Path) -> None:
    path = folder / "config.json"
    for content, message in (
        (b"{", "config.json is not JSON"),
        (b"[1]", r"config.json is \[1\], and must be a table"),
        (b"[" * 100_000, "config.json is not JSON"),
        (b"{" + b" " * (5 << 20) + b"}", "config.json has more than 4194304 bytes"),
        (b"\xff\xfe", "config.json is not JSON"),
        (POINTER, "config.json is a Git LFS pointer"),
    ):
        path.write_bytes(content)
        refused(folder, message)
    path.unlink()
    refused(folder, "is not a whole Hugging Face folder: config.json is missing")


class Marker:
    """An object whose unpickling would leave a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_pickles_are_never_opened(folder: Path) -> None:
    import pickle

    marker = folder.parent / "marker"
    weights(folder).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Marker(marker)))
    refused(
        folder, r"has its weights in pytorch_model.bin only: such a file can run code, and is not read. Expected model"
    )
    with zipfile.ZipFile(folder / "archive.bin", "w") as file:
        file.writestr("data.pkl", pickle.dumps(Marker(marker)))
    for name in ("pytorch_model.bin", "archive.bin"):
        with pytest.raises(FileError, match="a pickle or an archive of torch, which can run code, and is never read"):
            hg.load(folder / name)
        (folder / name).rename(folder / "model.gguf")
        with pytest.raises(FileError, match="not with GGUF"):
            hg.load(folder / "model.gguf")
        (folder / "model.gguf").rename(weights(folder))
        refused(folder, "model.safetensors is damaged")
        weights(folder).rename(folder / name)
    assert not marker.exists()


def shards(folder: Path) -> dict:
    """Cut the folder's weights in two, with an index."""
    tensors = load_file(weights(folder))
    weights(folder).unlink()
    names = sorted(tensors)
    where = {name: f"model-0000{1 + (i >= 7)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: tensors[n] for n in names if where[n] == file}, folder / file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_shards(folder: Path) -> None:
    right = hg.load(folder)
    shards(folder)
    assert torch.equal(hg.load(folder).params.flat, right.params.flat)
    first, second = sorted(folder.glob("*.safetensors"))
    content = second.read_bytes()
    second.write_bytes(POINTER)
    refused(folder, "model-00002-of-00002.safetensors is a Git LFS pointer")
    second.write_bytes(content[:-1])
    refused(folder, "model-00002-of-00002.safetensors is damaged or cut short")
    second.unlink()
    refused(folder, "is not whole: 1 of 2 shards are missing: model-00002-of-00002.safetensors")
    second.write_bytes(first.read_bytes())
    refused(folder, "model-00002-of-00002.safetensors and model.safetensors.index.json are not of one set")


@pytest.mark.parametrize(
    "name",
    [
        "a" * 5000 + ".safetensors",
        "../outside.safetensors",
        "/outside.safetensors",
        "a/b.safetensors",
        "..",
        "x.bin",
        "a\\b.safetensors",
        3,
        "",
    ],
)
def test_shards_that_lie_elsewhere(folder: Path, name: object) -> None:
    index = shards(folder)
    save_file({"model.norm.weight": torch.ones(8)}, folder.parent / "outside.safetensors")
    index["weight_map"]["model.norm.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "a shard must be a .safetensors file of the same folder")


@pytest.mark.parametrize("content", ["{}", "[]", '{"weight_map": []}', '{"weight_map": {}}'])
def test_indices_without_a_map(folder: Path, content: str) -> None:
    shards(folder)
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, "is damaged: weight_map")


def test_folders_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, r"adapter_config\.json is damaged: r is missing")  # tests/test_adapt_peft.py has more
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "adapter_config.json").unlink()
    refused(tmp_path, "neither model.safetensors nor model.safetensors.index.json is there")


def test_the_command_line_says_it_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights(folder).write_bytes(POINTER)
    for command in (["generate", str(folder)], ["explain", str(folder)], ["export", str(folder), "--out", "x"]):
        assert run(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("handgrad: ")
        assert captured.err.count("\n") == 1
