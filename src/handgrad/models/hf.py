"""A Hugging Face folder as a model: config.json, and safetensors in one file or in shards. Pickles are never read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handgrad.core.errors import FileError
from handgrad.data.files import read_json
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.hf_config import config_of, ids_of
from handgrad.models.model import Model
from handgrad.models.names import HEAD, gpt2_pieces, llama_pieces
from handgrad.models.store import ModelConfig
from handgrad.models.stored import Stored, filled, layout_of, owned, short, some
from handgrad.models.tensors import tensors_of

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
MOST_CONFIG, MOST_INDEX = 4 << 20, 64 << 20  # bytes
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt", "*.h5", "*.msgpack")
SHARD = re.compile(r"[\w.-]{1,200}\.safetensors", re.ASCII)  # systems refuse names of more than 255
# What older folders hold beside the parameters: causal masks, and the frequencies of rotary positions.
IGNORED = re.compile(
    r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
)


@dataclass(frozen=True)
class Origin:
    """The folder that a model was read from, what its config.json says of special tokens, whether its tokenizer was
    asked for, and what it was."""

    folder: Path
    ids: Mapping[str, Any]
    asked: bool
    tokenizer: Any


def is_hf(folder: Path) -> bool:
    """Whether a folder is meant as one of these, whole or not."""
    names = (CONFIG, WEIGHTS, INDEX, ADAPTER)
    return any((folder / name).exists() for name in names) or any(folder.glob("pytorch_model*.bin"))


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a PEFT adapter, and no model."""
    return (folder / ADAPTER).exists() and not any((folder / name).exists() for name in (CONFIG, WEIGHTS, INDEX))


def config_of_folder(folder: Path) -> ModelConfig:
    return config_of(table_in(folder), str(folder / CONFIG))


def origin_of(folder: Path, asked: bool, tokenizer: Any) -> Origin:
    return Origin(folder, ids_of(table_in(folder)), asked, tokenizer)


def table_in(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists():
        raise FileError(f"{folder} is not a whole Hugging Face folder: {CONFIG} is missing")
    table = read_json(path, MOST_CONFIG)
    if not isinstance(table, dict):
        raise FileError(f"{path} is {short(table)}, and must be a table")
    return table


def load_hf(folder: Path, dtype: torch.dtype | None = None) -> Model:
    """The model of such a folder, without its tokenizer; float32 unless the file or `dtype` says otherwise."""
    stored, config = stored_in(folder), config_of_folder(folder)
    layout = layout_of(config, len(stored), folder)
    gpt2 = isinstance(config, GPT2Config)
    prefix, first = ("transformer.", "wte.weight") if gpt2 else ("model.", "embed_tokens.weight")
    prefix = prefix if prefix + first in stored or first not in stored else ""
    pieces = (gpt2_pieces if gpt2 else llama_pieces)(config, owned(layout), prefix)
    needed = {name: s for name, s in stored.items() if not IGNORED.fullmatch(name)}
    model_has = {piece.theirs for piece in pieces.values()}
    if config.tied and HEAD in needed and HEAD not in model_has:
        require_same(folder, needed, HEAD, prefix + first)
        del needed[HEAD]
    return filled(config, layout, pieces, needed, folder, dtype=dtype)


def require_same(folder: Path, stored: dict[str, Stored], a: str, b: str) -> None:
    """A tied model may be stored with its matrix twice, but not with two of them."""
    if b in stored and (stored[a].shape != stored[b].shape or not torch.equal(stored[a].read(), stored[b].read())):
        raise FileError(f"{folder}: {CONFIG} ties {a} to {b}, and the file holds two that differ")


def stored_in(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder, by headers alone. Raises FileError."""
    if (folder / WEIGHTS).exists():
        return tensors_of(folder / WEIGHTS)
    if (folder / INDEX).exists():
        return sharded(folder)
    if (folder / ADAPTER).exists():
        raise FileError(f"{folder} holds an adapter, not a model: name the folder of the model that it belongs to")
    pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
    if pickles:
        raise FileError(
            f"{folder} has its weights in {some(pickles)} only: such a file can run code, and is not read. Expected "
            f"{WEIGHTS}, which save_pretrained of transformers writes"
        )
    raise FileError(f"{folder} is not a whole Hugging Face folder: neither {WEIGHTS} nor {INDEX} is there")


def sharded(folder: Path) -> dict[str, Stored]:
    """The tensors of all shards, which have to be those that the index names, each where it says."""
    path = folder / INDEX
    index = read_json(path, MOST_INDEX)
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not where:
        raise FileError(f"{path} is damaged: weight_map, the table of tensors and their files, is missing")
    shards = sorted({str(name) for name in where.values()})
    for name in where.values():
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise FileError(
                f"{path} names {short(name)}, and a shard must be a .safetensors file of the same folder, its "
                "name at most 200 characters and that ending"
            )
    if missing := [name for name in shards if not (folder / name).is_file()]:
        raise FileError(f"{folder} is not whole: {len(missing)} of {len(shards)} shards are missing: {some(missing)}")
    found: dict[str, Stored] = {}
    for shard in shards:
        tensors = tensors_of(folder / shard)
        listed = {name for name, file in where.items() if file == shard}
        if odd := sorted(tensors.keys() ^ listed):
            has, lacks = ("the index", "file") if odd[0] in listed else ("the file", "index")
            raise FileError(
                f"{folder / shard} and {INDEX} are not of one set: {some(odd)} in {has}, and not in the {lacks}"
            )
        found |= tensors
    return found
