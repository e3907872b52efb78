"""A trained model from disk. Loading runs no code from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handgrad.core.errors import FileError
from handgrad.core.params import Buffer, Layout
from handgrad.data.tokenizers import fingerprint, load_tokenizer
from handgrad.models.model import Model
from handgrad.models.store import (
    CHECKPOINTS,
    DTYPES,
    PARAMS,
    STATE,
    TOKENIZER,
    expected_shapes,
    latest,
    metadata_of,
    model_config_of,
    read_state,
    read_tensors,
)


def load(path: str | Path) -> Model:
    """The model of a run folder (its newest checkpoint) or of one checkpoint folder, with its tokenizer.

    The parameters have the type they were trained in. Raises FileError for anything that is not such a folder, or is
    damaged, naming what was expected and what was found.

    >>> load("no/such/run")
    Traceback (most recent call last):
    handgrad.core.errors.FileError: there is no model 'no/such/run'; expected a run folder or a checkpoint folder
    """
    folder = checkpoint_folder(path)
    return model_from(folder, read_state(folder))


def checkpoint_folder(path: str | Path) -> Path:
    """The checkpoint folder that a path means. Raises FileError."""
    folder = Path(path)
    if not os.path.exists(folder):
        raise FileError(f"there is no model {str(path)!r}; expected a run folder or a checkpoint folder")
    if not folder.is_dir():
        raise FileError(f"{str(path)!r} is a file; expected a run folder or a checkpoint folder")
    if (folder / CHECKPOINTS).is_dir():
        newest = latest(folder)
        if newest is None:
            raise FileError(f"the run {str(path)!r} has no checkpoint yet: {CHECKPOINTS}/ holds no complete one")
        return newest
    if (folder / STATE).exists() or (folder / PARAMS).exists():
        return folder
    raise FileError(
        f"{str(path)!r} holds no model; expected a run folder (with {CHECKPOINTS}/) or a checkpoint folder "
        f"(with {STATE} and {PARAMS})"
    )


def model_from(folder: Path, state: Mapping[str, Any]) -> Model:
    """The model of exactly this checkpoint folder, whose `read_state` gave `state`. Raises FileError."""
    config = model_config_of(state, folder)
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
    layer = config.layers()
    layout = Layout(layer.slots(), dict(config.ties()))
    tensors = read_tensors(folder / PARAMS, expected_shapes(layout), state["dtype"], metadata_of(state))
    params = layout.zeros(DTYPES[state["dtype"]][0])
    for name, value in tensors.items():
        params[name].copy_(value)
    return Model(config, layer, Buffer(layout, params.flat), tokenizer=tokenizer)
