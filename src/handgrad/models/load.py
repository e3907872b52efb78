"""A trained model from disk, of any kind that is known. Loading runs no code from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from handgrad.core.errors import ConfigError, DataError, FileError
from handgrad.core.params import Buffer, Layout
from handgrad.data.formats import from_folder, from_llama2c
from handgrad.data.gguf_tokens import from_gguf
from handgrad.data.tokenizers import fingerprint, load_tokenizer
from handgrad.models.found import Source, find
from handgrad.models.gguf_file import config_of_gguf, load_gguf
from handgrad.models.hf import config_of_folder, load_hf, origin_of
from handgrad.models.llama2c import config_of_bin, load_llama2c
from handgrad.models.model import Model
from handgrad.models.store import (
    ADAPTER,
    DTYPES,
    PARAMS,
    STATE,
    TOKENIZER,
    ModelConfig,
    described,
    expected_shapes,
    metadata_of,
    model_config_of,
    read_state,
    read_tensors,
    stored_dtype,
)


def load(path: str | Path, dtype: torch.dtype | None = None, tokenizer: bool = True) -> Model:
    """The model that `path` names, with its tokenizer where it has one.

    path    a run folder (its newest checkpoint) or one checkpoint folder, a Hugging Face folder, a `.gguf`, a llama2.c
            `.bin`, the name of a bundled or installed model, or a PEFT adapter: its model, with the adapter on it
    dtype   of the parameters. Left out, it is what a checkpoint was trained in, and float32 for other files (float64
            where they hold that)
    tokenizer   False leaves the tokenizer of other libraries' files unread, of whatever kind it is

    Raises FileError for anything else, or what is damaged, naming what was expected and what was found.

    >>> load("no/such/run")
    Traceback (most recent call last):
    handgrad.core.errors.FileError: there is no model 'no/such/run'; expected a run folder or a checkpoint folder, an \
adapter or Hugging Face folder, a .gguf, a llama2.c .bin, or a name that `handgrad models` lists
    """
    if dtype is not None and dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"dtype is {dtype}, and parameters are kept in torch.float32 or torch.float64")
    return load_from(find(path), dtype, tokenizer)


def load_from(source: Source, dtype: torch.dtype | None = None, tokenizer: bool = True) -> Model:
    """The model of a source that `found.find` gave."""
    path = source.path
    if source.kind == "checkpoint":
        model = model_from(path, read_state(path))
        return model if dtype is None else model.moved(dtype)
    words: Any = None
    origin: Any = None
    if source.kind == "adapter":
        from handgrad.adapt.peft import load_adapter  # which loads the model that it belongs to, from here

        return load_adapter(path, None, dtype, tokenizer)
    if source.kind == "gguf":
        model, fields = load_gguf(path, dtype)
        words = of_gguf(path, fields) if tokenizer else None
    elif source.kind == "llama2.c":
        model = load_llama2c(path, dtype)
        words = beside_bin(path, model.config.vocabulary) if tokenizer else None
    else:
        words = from_folder(path) if tokenizer else None
        model, origin = load_hf(path, dtype), origin_of(path, tokenizer, words)
    if words is not None and words.vocab_size > model.config.vocabulary:
        raise FileError(
            f"{path}: its tokenizer has {words.vocab_size} tokens, more than the {model.config.vocabulary} of the model"
        )
    return replace(model, tokenizer=words, origin=origin)


def of_gguf(path: Path, fields: Mapping[str, Any]) -> Any:
    try:
        return from_gguf(fields)
    except DataError as error:
        raise FileError(f"{path}: its tokenizer cannot be used: {error}") from None


def beside_bin(path: Path, vocabulary: int) -> Any:
    """The tokenizer that lies beside a llama2.c file, tok512.bin (of 512 tokens) or tokenizer.bin; None without one.

    Raises FileError where it has another number of tokens than the model.
    """
    for name in (f"tok{vocabulary}.bin", "tokenizer.bin"):
        file = path.with_name(name)
        if not file.exists():
            continue
        found = from_llama2c(file)
        if found.vocab_size != vocabulary:
            raise FileError(
                f"{file} has {found.vocab_size} tokens, and {path.name} beside it {vocabulary}: it is not "
                "this model's tokenizer. Put the right one there, or none, and texts are the ids of tokens"
            )
        return found
    return None


def config_of(path: str | Path) -> ModelConfig:
    """The configuration of the model that `path` names; its numbers are not read. Raises FileError."""
    source = find(path)
    if source.kind == "checkpoint":
        return model_config_of(read_state(source.path), source.path)
    if source.kind == "adapter":
        return load_from(source, tokenizer=False).config
    if source.kind == "gguf":
        return config_of_gguf(source.path)
    return config_of_bin(source.path) if source.kind == "llama2.c" else config_of_folder(source.path)


def checkpoint_folder(path: str | Path) -> Path:
    """The checkpoint folder that a path means. Raises FileError, also for models of other kinds."""
    source = find(path)
    if source.kind != "checkpoint":
        raise FileError(f"{str(path)!r} is a model of another kind ({source.kind}); expected a checkpoint folder")
    return source.path


def model_from(folder: Path, state: Mapping[str, Any], like: Model | None = None) -> Model:
    """The model of exactly this checkpoint folder, whose `read_state` gave `state`. With `like`, that model with the
    parameters in the folder: of an adapter, a checkpoint holds no more. Raises FileError."""
    if like is None and state.get(ADAPTER):
        raise FileError(
            f"{folder} holds what was trained beside a frozen model, not a model: name the folder of the run, once it "
            "has an adapter_config.json, or go on with handgrad finetune --out RUN --resume"
        )
    config = model_config_of(state, folder) if like is None else like.config
    if described(config) != state["model"]:
        raise FileError(f"{folder / STATE} is of another model than the one it should go on from: {state['model']}")
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if fingerprint(tokenizer) != state["tokenizer_fingerprint"]:
        raise FileError(
            f"{folder / TOKENIZER} is not the tokenizer that this model was trained with: fingerprint "
            f"{state['tokenizer_fingerprint'][:12]} expected, {fingerprint(tokenizer)[:12]} found"
        )
    if tokenizer.vocab_size > config.vocabulary:
        raise FileError(
            f"{folder / TOKENIZER} has {tokenizer.vocab_size} tokens, more than the {config.vocabulary} of the model"
        )
    layer = config.layers() if like is None else like.layer
    layout = Layout(layer.slots(), dict(config.ties())) if like is None else like.params.layout
    tensors = read_tensors(folder / PARAMS, expected_shapes(layout), stored_dtype(state), metadata_of(state))
    params = layout.zeros(DTYPES[state["dtype"]][0])
    for name, value in tensors.items():
        params[name].copy_(value)
    if like is not None:
        return replace(like, params=params, tokenizer=tokenizer, pending=None)
    return Model(config, layer, Buffer(layout, params.flat), tokenizer=tokenizer)
