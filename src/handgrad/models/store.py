"""A checkpoint folder as it lies on disk, and how it is read: nothing in it is trusted, nothing is read in part.

checkpoints/step_000500/
    params.safetensors       one tensor for every name that owns a slot; a tied parameter is stored once
    optimiser.safetensors    `m.<name>` and `v.<name>` for each of these
    state.json               step, losses, configurations, versions, the tokenizer's fingerprint
    tokenizer.json           what the ids mean
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from handgrad.core.errors import ConfigError, FileError, HandgradError, unknown
from handgrad.core.params import Layout
from handgrad.data.files import read_bytes
from handgrad.layers.frequencies import SCALINGS, Scaling, scaling
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.llama import LlamaConfig

CHECKPOINTS = "checkpoints"
PARAMS, OPTIMISER = "params.safetensors", "optimiser.safetensors"
STATE, TOKENIZER = "state.json", "tokenizer.json"
FORMAT_KEY, FORMAT_VERSION = "handgrad_checkpoint", 1
DTYPES = {"float32": (torch.float32, "F32"), "float64": (torch.float64, "F64")}
STORED_DTYPE = "stored_dtype"  # of state.json, optional: the file's numbers are those of `dtype`, rounded to this
ADAPTER = "adapter"  # of state.json, optional: true where params.safetensors holds what lies beside a frozen model
STORED = DTYPES | {"bfloat16": (torch.bfloat16, "BF16")}
ModelConfig = GPT2Config | LlamaConfig
KINDS: dict[str, type[ModelConfig]] = {"gpt2": GPT2Config, "llama": LlamaConfig}

_MAX_STATE_BYTES = 4 << 20
_STEP_FOLDER = re.compile(r"step_(\d{6,18})")
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
_MOST = {
    **dict.fromkeys(("step", "optimiser_step", "val_step", "best_step", "tokens_seen", "seed"), 2**63 - 1),
    "elapsed_s": 10**12,
}
_STATE_TYPES: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "optimiser_step": (int,),
    "loss_nats": (float, int, type(None)),
    "val_loss_nats": (float, int, type(None)),
    "val_step": (int, type(None)),
    "best_val_loss_nats": (float, int, type(None)),
    "best_step": (int, type(None)),
    "elapsed_s": (float, int),
    "tokens_seen": (int,),
    "seed": (int,),
    "dtype": (str,),
    "tokenizer_fingerprint": (str,),
    "tokens_sha256": (str,),
    "model": (dict,),
    "train": (dict,),
    "versions": (dict,),
}


def described(config: Any) -> dict[str, Any]:
    """A model's configuration as a table for TOML or JSON; `config_from` reads it."""
    kind = next(kind for kind, cls in KINDS.items() if type(config) is cls)
    table = {"kind": kind, **asdict(config)}
    for name in table:
        if isinstance(part := getattr(config, name, None), Scaling):
            table[name] = {"kind": next(kind for kind, cls in SCALINGS.items() if type(part) is cls), **asdict(part)}
    return table


def config_from(table: Mapping[str, Any], where: str) -> ModelConfig:
    """The configuration that a table describes; `where` begins the message of a ConfigError or UnknownName.

    >>> config_from({"kind": "gpt2", "vocabulary": 65, "n_layers": 2}, "here").n_layers
    2
    """
    cls, given = kind_of(table, where)
    given = checked_fields(cls, given, where)
    if "vocabulary" not in given:
        raise ConfigError(f"{where}: vocabulary is missing, the number of tokens that the model knows")
    try:
        return cls(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def kind_of(table: Mapping[str, Any], where: str) -> tuple[type[ModelConfig], dict[str, Any]]:
    """The class that a table's `kind` names, and the rest of the table."""
    given = dict(table)
    kind = given.pop("kind", "gpt2")
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown(f"kind of model in {where}", str(kind), KINDS)
    return KINDS[kind], given


def scaling_from(table: Any, where: str) -> Scaling:
    """The rotary scaling that a table describes.

    >>> scaling_from({"kind": "linear", "factor": 4}, "here")
    LinearScaling(factor=4.0, base=10000.0)
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {_shown(table)}, and must be a table with the kind of rotary scaling")
    given = dict(table)
    kind = given.pop("kind", "plain")
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise unknown(f"rotary scaling in {where}", str(kind), SCALINGS)
    try:
        return scaling(kind, checked_fields(SCALINGS[kind], given, where))
    except ConfigError as error:
        raise error if str(error).startswith(where) else ConfigError(f"{where}: {error}") from None


def checked_fields(cls: type, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The table, if each key is a field of the dataclass `cls` and each value has its type; a whole number may stand
    for a float. Raises UnknownName with the nearest name, or ConfigError."""
    types = {f.name: str(f.type) for f in fields(cls)}
    checked = {}
    for name, value in table.items():
        if name not in types:
            raise unknown(f"key in {where}", name, types)
        wanted, found = types[name], type(value).__name__
        if wanted == "Scaling":
            checked[name] = value if isinstance(value, Scaling) else scaling_from(value, f"{where}, {name}")
            continue
        if found == "int" and wanted == "float" and abs(value) < 2**53:
            value, found = float(value), "float"
        if found != wanted:
            raise ConfigError(f"{where}: {name} is {_shown(value)}, and must be {_WORDS[wanted]}")
        checked[name] = value
    return checked


def latest(run_folder: str | Path) -> Path | None:
    """The newest checkpoint of a run, or None. A folder that was not finished has no name that counts."""
    newest = max(steps_of(run_folder).items(), default=None)
    return newest[1] if newest else None


def steps_of(run_folder: str | Path) -> dict[int, Path]:
    """Step -> folder of every checkpoint of a run."""
    folder = Path(run_folder) / CHECKPOINTS
    try:
        found = [(_STEP_FOLDER.fullmatch(path.name), path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise FileError(f"cannot read {folder}: {error.strerror or error}") from None
    return {int(match[1]): path for match, path in found if match and path.is_dir()}


def read_state(folder: Path) -> dict[str, Any]:
    """The checked content of state.json. Raises FileError."""
    path = folder / STATE
    try:
        if not path.is_file():
            raise FileError(
                f"{folder} is not a checkpoint: {STATE} is missing; expected {STATE}, {PARAMS}, {TOKENIZER}"
            )
        content = read_bytes(path, _MAX_STATE_BYTES)
        state = json.loads(content.decode("utf-8"), parse_constant=_refused)
    except HandgradError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{path} is damaged, it is not JSON: {reason}") from None
    if not isinstance(state, dict) or FORMAT_KEY not in state:
        raise FileError(f"{path} is not the state of a handgrad checkpoint; expected the field '{FORMAT_KEY}'")
    if state[FORMAT_KEY] != FORMAT_VERSION:
        raise FileError(
            f"{path} has format {_shown(state[FORMAT_KEY])}, and this version of handgrad reads {FORMAT_VERSION}; "
            "update handgrad"
        )
    for name, types in _STATE_TYPES.items():
        if name not in state:
            raise FileError(f"{path} is damaged: the field '{name}' is missing")
        if type(state[name]) not in types:
            raise FileError(f"{path} is damaged: {name} is {_shown(state[name])}, which has the wrong type")
    for name, most in _MOST.items():
        if state[name] is not None and state[name] < 0:
            raise FileError(f"{path} is damaged: {name} is {_shown(state[name])}, and cannot be below 0")
        if state[name] is not None and not state[name] <= most:
            raise FileError(f"{path} is damaged: {name} is {_shown(state[name])}, and cannot be above {most}")
    for name in ("loss_nats", "val_loss_nats", "best_val_loss_nats"):
        if state[name] is not None and not abs(state[name]) <= sys.float_info.max:
            raise FileError(f"{path} is damaged: {name} is {_shown(state[name])}, and no loss is that large")
    if state["dtype"] not in DTYPES:
        raise FileError(f"{path} is damaged: dtype is {_shown(state['dtype'])}; known: {', '.join(DTYPES)}")
    if not isinstance(stored := stored_dtype(state), str) or stored not in STORED:
        raise FileError(f"{path} is damaged: {STORED_DTYPE} is {_shown(stored)}; known: {', '.join(STORED)}")
    return state


def stored_dtype(state: Mapping[str, Any]) -> Any:
    """The type of the numbers in params.safetensors: that of the model, unless the checkpoint was made smaller."""
    return state.get(STORED_DTYPE, state["dtype"])


def model_config_of(state: Mapping[str, Any], folder: Path) -> ModelConfig:
    """The configuration in a checkpoint's state; one that the parameter file cannot hold is refused before it costs."""
    path = folder / STATE
    try:
        config = config_from(state["model"], "model")
    except HandgradError as error:
        raise FileError(f"{path} is damaged: {error}") from None
    n_tensors = len(_shapes(folder / PARAMS))
    if config.n_layers > n_tensors:
        raise FileError(
            f"{path} and {PARAMS} are not of one set: {config.n_layers} layers are expected, {n_tensors} tensors found"
        )
    return config


def expected_shapes(layout: Layout) -> dict[str, tuple[int, ...]]:
    """What params.safetensors has to hold: name -> shape of every slot, tied ones once."""
    return {name: shape for name, (_, shape) in layout.places.items()}


def metadata_of(state: Mapping[str, Any]) -> dict[str, str]:
    """What both tensor files say of themselves; it ties them to their state.json."""
    return {
        FORMAT_KEY: str(FORMAT_VERSION),
        "step": str(state["step"]),
        "config": json.dumps(state["model"], sort_keys=True),
    }


def read_tensors(
    path: Path, expected: Mapping[str, tuple[int, ...]], dtype: str, metadata: Mapping[str, str]
) -> dict[str, Tensor]:
    """The tensors of a safetensors file, if it holds exactly `expected`, all of `dtype`, and belongs to `metadata`.

    Names, shapes and types are compared before anything is read. Raises FileError naming expected and found.
    """
    found = _shapes(path)
    if missing := [name for name in expected if name not in found]:
        raise FileError(f"{path} does not fit the model: {_listed(missing)} expected, and missing")
    if extra := [name for name in found if name not in expected]:
        raise FileError(f"{path} does not fit the model: {_listed(extra)} found, and not expected")
    for name, shape in expected.items():
        if found[name] != (shape, STORED[dtype][1]):
            was, kind = found[name]
            raise FileError(
                f"{path} does not fit the model: {name} should be {shape} of {STORED[dtype][1]}, found {was} of {kind}"
            )
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
            for key, value in metadata.items():
                if said.get(key) != value:
                    raise FileError(
                        f"{path} and {STATE} are not of one set: {key} should be {_shown(value)}, "
                        f"found {_shown(said.get(key))}"
                    )
            return {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _damaged(path, error) from None


def _shapes(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> (shape, type) by the header alone."""
    try:
        if not path.is_file():
            raise FileError(f"{path.parent} is not a whole checkpoint: {path.name} is missing")
        with safe_open(path, framework="pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in parts.items()}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> FileError:
    if isinstance(error, FileError):
        return error
    size = f"{path.stat().st_size} bytes found" if path.is_file() else "it is gone"
    return FileError(f"{path} is damaged or cut short: expected a whole safetensors file, {size} ({error})")


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a number that JSON knows")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
