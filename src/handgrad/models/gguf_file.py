"""A GGUF file as a model: the Llama family, any type of number that the `gguf` package can turn into floats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from handgrad.core.errors import FileError, HandgradError, unknown
from handgrad.layers.frequencies import LinearScaling, Llama3, Plain, Scaling
from handgrad.models.fields import Fields
from handgrad.models.gguf_header import KINDS, Header, Info, read_header
from handgrad.models.llama import LlamaConfig
from handgrad.models.model import Model
from handgrad.models.names import gguf_pieces
from handgrad.models.stored import Stored, filled, layout_of, owned

INTERLEAVED = {"llama": True, "mistral": True, "qwen2": False}  # architecture -> the order within q and k heads
PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
AT_ONCE = 1 << 22  # numbers
FACTORS = "rope_freqs.weight"
NOT_PARAMETERS = (FACTORS, "rope_factors_long.weight", "rope_factors_short.weight")
# What llama3's scaling is published with; a file gives only its effect, one number for each pair of features.
LOW, HIGH, ORIGINALS = 1.0, 4.0, (8192, 4096, 16384, 32768)


def config_of_gguf(path: Path) -> LlamaConfig:
    header = read_header(path)
    return config_of(path, header, {name: stored(path, info) for name, info in header.tensors.items()})


def load_gguf(path: Path, dtype: torch.dtype | None = None) -> tuple[Model, dict[str, Any]]:
    """The model, float32 unless `dtype` says otherwise, and the file's fields, which hold its tokenizer."""
    header = read_header(path)
    found = {name: stored(path, info) for name, info in header.tensors.items()}
    config = config_of(path, header, found)
    layout = layout_of(config, len(found), path)
    pieces = gguf_pieces(config, owned(layout), INTERLEAVED[header.fields["general.architecture"]])
    found.pop(FACTORS, None)
    return filled(config, layout, pieces, found, path, [kind for kind, _, _ in KINDS.values()], dtype), header.fields


def config_of(path: Path, header: Header, found: dict[str, Stored]) -> LlamaConfig:
    general = Fields(header.fields, str(path))
    kind = general.text("general.architecture")
    if kind not in INTERLEAVED:
        raise FileError(f"{path}: {unknown('architecture', kind, INTERLEAVED)}")
    if general.whole("split.count", 1) > 1:
        raise FileError(f"{path} is one of {general.whole('split.count')} parts of a model; join them into one first")
    prefix = kind + "."
    own = {name.removeprefix(prefix): v for name, v in header.fields.items() if name.startswith(prefix)}
    f = Fields(own, f"{path}, {kind}")
    d_model, n_heads = f.whole("embedding_length"), f.whole("attention.head_count")
    n_kv_heads = f.whole("attention.head_count_kv", n_heads)
    width = f.whole("attention.key_length", d_model // n_heads if n_heads > 0 else 0)
    for name in ("attention.value_length", "rope.dimension_count"):
        if f.whole(name, width) != width:
            raise f.refuse(name, own[name], f"and handgrad computes only with the width of a head, {width}")
    if f.whole("expert_count", 0):
        raise f.refuse("expert_count", own["expert_count"], "and mixtures of experts are not among our models")
    embedding = found.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise FileError(f"{path} does not fit its configuration: token_embd.weight expected, and missing")
    try:
        return LlamaConfig(
            vocabulary=embedding.shape[0],
            context=f.whole("context_length"),
            n_layers=f.whole("block_count"),
            n_heads=n_heads,
            n_kv_heads=0 if n_kv_heads == n_heads else n_kv_heads,
            d_model=d_model,
            d_mlp=f.whole("feed_forward_length"),
            d_head=0 if width * n_heads == d_model else width,
            window=f.whole("attention.sliding_window", 0),
            bias=kind == "qwen2",
            tied="output.weight" not in found,
            epsilon=f.number("attention.layer_norm_rms_epsilon"),
            rope=rope_of(f, width, found.get(FACTORS)),
        )
    except FileError:
        raise
    except HandgradError as error:
        raise FileError(f"{path} describes no model: {error}") from None


def rope_of(f: Fields, width: int, factors: Stored | None) -> Scaling:
    """The frequencies as llama.cpp reads them: a scaling without a type is linear, of type none there is none, and a
    factor of 0 says nothing."""
    base, kind = f.number("rope.freq_base", 10_000.0), f.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise f.refuse("rope.scaling.type", kind, "and handgrad reads none and linear here")
    name = "rope.scaling.factor" if "rope.scaling.factor" in f.table else "rope.scale_linear"
    factor = (f.number(name, 1.0) or 1.0) if kind == "linear" else 1.0
    if factors is None:
        return Plain(base) if factor == 1.0 else LinearScaling(factor, base)
    if factor != 1.0:
        raise f.refuse(name, factor, f"and {FACTORS} slows rotary positions besides; both at once are not read")
    return llama3_of(f, base, width, factors)


def llama3_of(f: Fields, base: float, width: int, factors: Stored) -> Scaling:
    """The llama3 scaling that slows the pairs by these factors; where none does, FileError."""
    if factors.shape == (width // 2,):
        slower = factors.read().double()
        for original in ORIGINALS:
            factor = float(str(np.float32(slower.max())))
            if not factor >= 1.0:
                break
            rope = Llama3(factor, LOW, HIGH, original, base)
            ours = torch.tensor(Plain(base).frequencies(width)) / torch.tensor(rope.frequencies(width))
            if torch.allclose(ours.double(), slower, rtol=1e-4):
                return rope
    raise FileError(f"{f.where}: {FACTORS} slows rotary positions in a way that is not llama3's, which is not read")


def stored(path: Path, info: Info) -> Stored:
    return Stored(info.shape, info.kind, reader(path, info))


def reader(path: Path, info: Info) -> Callable[[], Tensor]:
    def read() -> Tensor:
        """All numbers as floats; blocks are turned into floats some rows at a time."""
        raw = np.memmap(path, np.uint8, "r", info.start, (info.n_bytes,))
        if info.kind in PLAIN:
            return torch.from_numpy(raw.view(PLAIN[info.kind]).reshape(info.shape).copy())
        if info.kind == "BF16":
            return torch.from_numpy(raw.view("<i2").copy()).view(torch.bfloat16).reshape(info.shape)
        quants, kind = dequantiser(path, info.kind)
        rows = raw.reshape(-1, info.n_bytes * info.shape[-1] // max(torch.Size(info.shape).numel(), 1))
        out = torch.empty(len(rows), info.shape[-1])
        step = max(AT_ONCE // info.shape[-1], 1)
        for i in range(0, len(rows), step):
            out[i : i + step] = torch.from_numpy(quants.dequantize(np.ascontiguousarray(rows[i : i + step]), kind))
        return out.reshape(info.shape)

    return read


def dequantiser(path: Path, kind: str) -> tuple[Any, Any]:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise FileError(
            f"{path} holds {kind} numbers, and turning them into floats takes the package gguf: "
            'pip install "handgrad[gguf]"'
        ) from None
    return quants, GGMLQuantizationType[kind]
