"""A llama2.c `.bin` as a model: seven whole numbers, then every matrix in float32, one kind after the other.

The numbers are width, inner width, layers, heads, kv heads, tokens (negative: logits have a matrix of their own) and
context. After the last norm stand two tables of angles, which nobody reads any more.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

import numpy as np
import torch

from handgrad.core.errors import FileError, HandgradError
from handgrad.models.llama import LlamaConfig
from handgrad.models.model import Model
from handgrad.models.names import Piece
from handgrad.models.stored import Stored, filled, layout_of, owned, start_of

HEADER = struct.Struct("<7i")
LATER = b"24ka"  # what versions 1 and 2 begin with
CODE = (b"PK\x03\x04", b"\x80")  # an archive or a pickle, as torch.save writes them
MOST = 2**24
ORDER = (  # part of a block, theirs is turned
    ("norm_1.gamma", False),
    ("attention.query.w", True),
    ("attention.key.w", True),
    ("attention.value.w", True),
    ("attention.out.w", True),
    ("norm_2.gamma", False),
    ("mlp.gate.w", True),
    ("mlp.down.w", True),
    ("mlp.up.w", True),
)


def config_of_bin(path: Path) -> LlamaConfig:
    """The model that the seven numbers describe, if the file is exactly as long as they say. Raises FileError."""
    start = start_of(path, HEADER.size)
    if start[:4] == LATER:
        raise FileError(f"{path} is a llama2.c file of version 1 or later; version 0 is read (export.py --version 0)")
    if start.startswith(CODE):
        raise FileError(f"{path} is a pickle or an archive of torch, which can run code, and is not read")
    size = path.stat().st_size
    if len(start) < HEADER.size:
        raise FileError(f"{path} is no llama2.c file: a header of {HEADER.size} bytes expected, {size} found")
    d, inner, n_layers, heads, kv_heads, tokens, context = numbers = HEADER.unpack(start)
    if not all(0 < n <= MOST for n in (d, inner, heads, kv_heads, abs(tokens), context)) or not 0 <= n_layers <= 10_000:
        raise FileError(f"{path} is no llama2.c file: it begins with {numbers}, and sizes must be above 0")
    try:
        config = LlamaConfig(
            vocabulary=abs(tokens),
            context=context,
            n_layers=n_layers,
            n_heads=heads,
            n_kv_heads=0 if kv_heads == heads else kv_heads,
            d_model=d,
            d_mlp=inner,
            tied=tokens > 0,
        )
    except HandgradError as error:
        raise FileError(f"{path} describes no model: {error}") from None
    if size != (expected := n_bytes(config)):
        raise FileError(
            f"{path} is cut short, damaged or no llama2.c file: {expected:,} bytes expected, {size:,} found"
        )
    return config


def n_bytes(c: LlamaConfig) -> int:
    kv = c.head * (c.n_kv_heads or c.n_heads)
    block = 2 * c.d_model + 2 * c.d_model * c.d_model + 2 * c.d_model * kv + 3 * c.d_model * c.d_inner
    whole = c.vocabulary * c.d_model * (1 if c.tied else 2) + c.d_model + c.context * c.head
    return HEADER.size + 4 * (whole + c.n_layers * block)


def load_llama2c(path: Path, dtype: torch.dtype | None = None) -> Model:
    """The model, without its tokenizer, which is a file of its own. Raises FileError."""
    config = config_of_bin(path)
    layout = layout_of(config, 2 + len(ORDER) * config.n_layers, path)
    shapes = owned(layout)
    heads = {"attention.query.w": config.n_heads, "attention.key.w": config.n_kv_heads or config.n_heads}
    pieces, found, at = {}, {}, HEADER.size

    def add(name: str, turned: bool = False) -> None:
        nonlocal at
        shape = shapes[name][::-1] if turned else shapes[name]
        pieces[name] = Piece(name, shape, turned, heads=heads.get(name.split(".", 2)[-1], 0))
        found[name] = stored(path, at, shape)
        at += 4 * prod(shape)

    add("embedding.token.w_emb")
    for part, turned in ORDER:
        for i in range(config.n_layers):
            add(f"blocks.{i}.{part}", turned)
    add("norm.gamma")
    at += 4 * config.context * config.head
    if not config.tied:
        add("head.w_emb")
    return filled(config, layout, pieces, found, path, dtype=dtype)


def stored(path: Path, at: int, shape: tuple[int, ...]) -> Stored:
    return Stored(shape, "F32", lambda: torch.from_numpy(np.memmap(path, "<f4", "r", at, shape).copy()))
