"""What a run is asked to do, and the `config.toml` that keeps it beside the results."""

from __future__ import annotations

import os
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy
import tomli_w
import torch

from handgrad import __version__
from handgrad.core.errors import ConfigError, FileError, unknown
from handgrad.data.files import read_bytes, replacing
from handgrad.models.store import KINDS, ModelConfig, checked_fields, config_from, described, kind_of

MAX_FILE_BYTES = 1 << 20
IMPLEMENTATIONS = ("auto", "explicit", "fused")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
MASTER = DTYPES | {"bfloat16": torch.float32}  # what parameters, gradients and moments are kept in
CHOICES = {
    "dtype": tuple(DTYPES),
    "implementation": IMPLEMENTATIONS,
    "recompute": ("nothing", "cheap", "blocks"),
    "update": ("after", "inside"),
    "optimiser": ("adamw", "sgd"),
    "clip_by": ("whole", "parameter"),
}
_CUDA = re.compile("cuda:(0|[1-9][0-9]?)")
_FLAGS = {"implementation": "--impl"}
_LARGEST = 2**63 - 1  # what TOML can write

_DATA_KEYS = {"sources": list, "tokenizer": str, "tokens": str, "tokens_sha256": str}
_VERSION_KEYS = {"handgrad": str, "torch": str, "numpy": str, "python": str}


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Everything is counted in optimiser steps; a step may be several micro-batches.

    steps            optimiser steps of the whole run
    batch_size       windows of one micro-batch
    accumulate       micro-batches of one step; the step's batch is batch_size · accumulate windows
    lr, lr_floor     learning rate at its peak and at the end, a step
    warmup           steps until the peak
    weight_decay     on matrices only; gains and biases are never decayed
    beta1, beta2     how slowly the two moments of AdamW forget
    optimiser        "adamw", or "sgd": momentum beta1 and one moment instead of two; weight decay is that of AdamW
    clip             largest norm of the gradient; 0 is off
    clip_by          "whole": of the whole gradient; "parameter": of each parameter's by itself, another rule, which
                     needs no second pass with the update inside the backward pass
    seed             of the first weights, of the windows drawn and of dropout
    validate_every   steps between two validations
    save_every       steps between two checkpoints
    dtype            "float32", "float64", or "bfloat16": passes in bfloat16; parameters, gradients, moments, statistics
                     and the loss stay float32
    implementation   "auto", "explicit" (the formulas as written) or "fused" (torch's operators where there are some)
    recompute        what backward computes again instead of keeping it: "nothing", "cheap" (norms' and activations'
                     outputs) or "blocks" (all but the inputs of blocks: a third more time, the least memory)
    update           "after" the backward pass, or "inside" it: each parameter as soon as its gradient is complete, so
                     that the whole gradient never exists. With clip above 0 that takes two passes
    sample_clip      largest norm of each sample's gradient, scaled down before they add up; 0 is off. This alone gives
                     no privacy
    sample_norms     measure every sample's gradient norm and the noise of the gradient
    compile          let torch.compile make one function of each block; needs a C++ compiler
    device           "cpu", "cuda" or "cuda:N"

    Raises ConfigError once, with everything that is wrong, in the spelling of the command line.

    >>> TrainConfig(steps=10).batch_size
    12
    >>> TrainConfig(batch_size=0, lr=-1.0)
    Traceback (most recent call last):
    handgrad.core.errors.ConfigError: --batch-size is 0, and must be at least 1; --lr is -1.0, and must be at least 0
    """

    steps: int = 2000
    batch_size: int = 12
    accumulate: int = 1
    lr: float = 1e-3
    lr_floor: float = 1e-4
    warmup: int = 100
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0
    clip_by: str = "whole"
    optimiser: str = "adamw"
    seed: int = 0
    validate_every: int = 250
    save_every: int = 500
    dtype: str = "float32"
    implementation: str = "auto"
    recompute: str = "nothing"
    update: str = "after"
    sample_clip: float = 0.0
    sample_norms: bool = False
    compile: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        wrong = [
            *(self._whole(name, 1) for name in ("steps", "batch_size", "accumulate", "validate_every", "save_every")),
            *(self._whole(name, 0) for name in ("warmup", "seed")),
            *(self._number(name) for name in ("lr", "lr_floor", "weight_decay", "clip", "sample_clip")),
            *(self._number(name, below=1) for name in ("beta1", "beta2")),
            *(self._text(name) for name in (*CHOICES, "device")),
        ]
        if not self._number("lr") and not self._number("lr_floor") and self.lr_floor > self.lr:
            wrong.append(f"--lr-floor {self.lr_floor} is above --lr {self.lr}, and must be at most that")
        for name in ("compile", "sample_norms"):
            if type(getattr(self, name)) is not bool:
                wrong.append(f"{flag(name)} is {getattr(self, name)!r}, and must be true or false")
        if self.update == "inside" and type(self.accumulate) is int and self.accumulate > 1:
            wrong.append(
                f"--update inside cannot go with --accumulate {self.accumulate}: adding up micro-batches needs the "
                "whole gradient, so it would save nothing. Leave one of them out"
            )
        if not all(problem is None for problem in wrong):
            raise ConfigError("; ".join(problem for problem in wrong if problem))

    def _whole(self, name: str, least: int) -> str | None:
        value = getattr(self, name)
        if type(value) is not int:
            return f"{flag(name)} is {value!r}, and must be a whole number"
        if value < least:
            return f"{flag(name)} is {value}, and must be at least {least}"
        return f"{flag(name)} is {value}, and must be at most {_LARGEST}" if value > _LARGEST else None

    def _number(self, name: str, below: float | None = None) -> str | None:
        value = getattr(self, name)
        if type(value) not in (int, float) or not isfinite(value):
            return f"{flag(name)} is {value!r}, and must be a finite number"
        if below is not None and not 0 <= value < below:
            return f"{flag(name)} is {value}, and must be at least 0 and below {below}"
        return f"{flag(name)} is {value}, and must be at least 0" if value < 0 else None

    def _text(self, name: str) -> str | None:
        value = getattr(self, name)
        if name == "device":
            known = isinstance(value, str) and (value in ("cpu", "cuda") or _CUDA.fullmatch(value))
            shown = value if len(str(value)) <= 60 else str(value)[:57] + "..."
            return None if known else f"--device is {shown!r}, and must be cpu, cuda or cuda:N, N at most 99"
        choices = CHOICES[name]
        return None if value in choices else f"{flag(name)} is {value!r}, and must be one of {', '.join(choices)}"


@dataclass(frozen=True)
class Finetune:
    """The table [finetune] of a run that goes on from a model: which, and what is trained of it.

    model, base_sha256    the model, and the SHA-256 of its numbers: a run goes on with no others
    window                tokens of one window of the data; 0 is the model's context
    full                  all parameters are trained; else low-rank updates, with the sizes and targets that follow
    """

    model: str = ""
    base_sha256: str = ""
    window: int = 0
    full: bool = False
    rank: int = 8
    alpha: float = 16.0
    targets: str = ""
    rslora: bool = False
    dropout: float = 0.0


def flag(name: str) -> str:
    """A field's spelling on the command line.

    >>> flag("batch_size"), flag("implementation")
    ('--batch-size', '--impl')
    """
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def available_device(config: TrainConfig) -> torch.device:
    """The device that was asked for. Raises ConfigError, in one line, where this machine has none such."""
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        found = "no CUDA device" if count == 0 else f"{count} CUDA device{'s' if count > 1 else ''}, counted from 0"
        raise ConfigError(f"--device {config.device} was asked for, and this machine has {found}; use --device cpu")
    return device


@dataclass(frozen=True)
class RunFile:
    """The tables of a `config.toml`: names and types are checked; keys that are left out are absent.

    A file written by hand may give a part only: `TrainConfig(**file.train | {"steps": 5})`. The two properties build
    what a complete file describes, and raise ConfigError for values that cannot be.
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    finetune: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def model_config(self) -> ModelConfig:
        return config_from(self.model, "[model]")

    @cached_property
    def train_config(self) -> TrainConfig:
        return TrainConfig(**self.train)

    def with_steps(self, steps: int) -> RunFile:
        return replace(self, train={**self.train, "steps": steps})


def versions() -> dict[str, str]:
    """What a result was made with."""
    return {
        "handgrad": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def write_toml(
    path: str | Path, model_config: ModelConfig, train_config: TrainConfig, extra: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write config.toml, whole or not at all. `extra` holds further tables: `data`, and `versions` (default: now's).

    Raises FileError where the folder refuses.
    """
    tables = {"model": described(model_config), "train": asdict(train_config), "versions": versions(), **extra}
    try:
        content = tomli_w.dumps(tables).encode()
    except UnicodeEncodeError:
        raise FileError(f"cannot write {path}: a name in it is not UTF-8 text; rename the file or folder") from None
    with replacing(Path(path)) as file:
        file.write(content)


def read_toml(path: str | Path) -> RunFile:
    """Read a config.toml. Unknown tables and keys are refused with the nearest name, and so are wrong types.

    Raises FileError (missing, damaged, too large), UnknownName, ConfigError.
    """
    if not os.path.isfile(path):
        raise FileError(f"there is no configuration file {str(path)!r}; check the name and the folder")
    content = read_bytes(Path(path), MAX_FILE_BYTES)
    try:
        tables = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{path} is not TOML: {reason}") from None
    for name, table in tables.items():
        if name not in RunFile.__dataclass_fields__:
            raise unknown(f"table in {path}", name, RunFile.__dataclass_fields__)
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} is {table!r}, and must be a table, [{name}]")
    kind, model = kind_of(tables.get("model", {}), f"{path}, [model]")
    given = checked_fields(kind, model, f"{path}, [model]")
    if kind is not KINDS["gpt2"]:
        given["kind"] = tables["model"]["kind"]
    return RunFile(
        given,
        checked_fields(TrainConfig, tables.get("train", {}), f"{path}, [train]"),
        _checked(tables.get("data", {}), _DATA_KEYS, f"{path}, [data]"),
        _checked(tables.get("versions", {}), _VERSION_KEYS, f"{path}, [versions]"),
        checked_fields(Finetune, tables.get("finetune", {}), f"{path}, [finetune]"),
    )


def _checked(table: Mapping[str, Any], known: Mapping[str, type], where: str) -> dict[str, Any]:
    for name, value in table.items():
        if name not in known:
            raise unknown(f"key in {where}", name, known)
        items = value if isinstance(value, list) else []
        if not isinstance(value, known[name]) or not all(isinstance(item, str) for item in items):
            wanted = "a list of text" if known[name] is list else "text"
            raise ConfigError(f"{where}: {name} is {value!r}, and must be {wanted}")
    return dict(table)
