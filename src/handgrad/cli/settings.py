"""From flags, a configuration file and a preset to what a run is: flags win over the file, the file over the preset.

Two defaults follow what was asked for: the floor of the learning rate is a tenth of `--lr`, and the warmup is at most
a tenth of `--steps`, unless the same source or a stronger one says otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

from handgrad.cli.options import problems
from handgrad.cli.presets import PRESETS, Preset
from handgrad.core.errors import ConfigError, HandgradError, unknown
from handgrad.data.bpe import size_of
from handgrad.data.ids import holds_ids
from handgrad.data.library import library
from handgrad.data.tokenizers import load_tokenizer
from handgrad.data.windows import n_windows
from handgrad.layers.pointwise import ACTIVATIONS
from handgrad.models.store import ModelConfig, kind_of
from handgrad.train.config import RunFile, TrainConfig, available_device, read_toml
from handgrad.train.prepare import compile_problem
from handgrad.train.size import size_problem

# flag without its dashes -> field of the dataclass
MODEL_FIELDS = {
    "layers": "n_layers",
    "heads": "n_heads",
    "width": "d_model",
    "context": "context",
    "dropout": "dropout",
    "bias": "bias",
    "activation": "activation",
}
TRAIN_FIELDS = {name: name for name in TrainConfig.__dataclass_fields__ if name != "implementation"} | {
    "impl": "implementation"
}
TOKENIZERS = ("auto", "bytes", "chars", "ids")
LATER = ("pixels", "proteins", "series")

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What a run is, checked, before any data is read. The vocabulary is known once there is a tokenizer."""

    model: Mapping[str, Any]
    train: TrainConfig
    sources: tuple[str, ...]
    tokenizer: str | None
    vocab_size: int | None

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The model for a tokenizer of so many tokens. A file may ask for more columns, not for fewer."""
        asked = self.model.get("vocabulary", vocab_size)
        if asked < vocab_size:
            raise ConfigError(
                f"the configuration file gives the model a vocabulary of {asked}, and the tokenizer has {vocab_size} "
                "tokens; leave vocabulary out of the file"
            )
        kind, fields = kind_of(self.model, "[model]")
        return kind(**{**fields, "vocabulary": asked})

    def check_tokens(self, vocab_size: int, n_tokens: int) -> None:
        """ConfigError or DataError where tokens like these cannot be trained on, before they are written."""
        model = self.model_config(vocab_size)
        if problem := size_problem(model, self.train):
            raise ConfigError(problem)
        n_windows(n_tokens, model.context)


def resolve(flags: Mapping[str, Any], sources: Sequence[str], preset: str | None, config: str | None) -> Settings:
    """`flags` holds what was typed: a flag's name without its dashes -> its value.

    Raises ConfigError once, with all that is wrong, in the spelling of the command line.

    >>> resolve({"width": 10, "heads": 3, "lr": -1.0}, ["embedded"], None, None)
    Traceback (most recent call last):
    handgrad.core.errors.ConfigError: --width 10 is not a multiple of --heads 3: equal heads cannot be cut
    --lr is -1.0, and must be at least 0
    """
    wrong: list[str] = []
    chosen = attempt(wrong, lambda: preset_named(preset), Preset("", {}))
    file = attempt(wrong, lambda: read_toml(config), RunFile()) if config else RunFile()
    model = merged(chosen.model, file.model, picked(flags, MODEL_FIELDS))
    train = with_followers(chosen.train, file.train, picked(flags, TRAIN_FIELDS))
    shape = check_model(model, wrong)
    train_config = attempt(wrong, lambda: TrainConfig(**train), None)
    if train_config is not None:
        attempt(wrong, lambda: available_device(train_config), None)
    if shape is not None and train_config is not None:
        wrong += [p for p in (size_problem(shape, train_config), compile_problem(shape, train_config)) if p]
    tokenizer = flags["tokenizer"] if flags.get("tokenizer") is not None else file.data.get("tokenizer")
    sources = tuple(sources) or tuple(file.data.get("sources", ()))
    if not sources:
        wrong.append("DATA is missing: name text files or token files, or the word embedded")
    for source in sources:
        attempt(wrong, lambda: check_name(source, "DATA"), None)  # noqa: B023
    attempt(wrong, lambda: check_tokenizer(tokenizer, flags.get("vocab_size"), sources), None)
    if wrong:
        raise ConfigError(problems(wrong))
    assert train_config is not None
    return Settings(model, train_config, sources, tokenizer, flags.get("vocab_size"))


def attempt(wrong: list[str], make: Callable[[], T], otherwise: T) -> T:
    """What `make` gives; where that cannot be, the reason joins `wrong`."""
    try:
        return make()
    except HandgradError as error:
        wrong.append(str(error))
        return otherwise


def preset_named(name: str | None) -> Preset:
    if name is None:
        return Preset("", {})
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def picked(flags: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    return {field: flags[name] for name, field in fields.items() if flags.get(name) is not None}


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for layer in layers for name, value in layer.items()}


def with_followers(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The merged fields, with a floor and a warmup that follow a rate or a number of steps from a stronger source.

    >>> with_followers({"lr": 1e-3, "lr_floor": 1e-4, "warmup": 100}, {"lr": 0.5, "steps": 30})
    {'lr': 0.5, 'lr_floor': 0.05, 'warmup': 3, 'steps': 30}
    """

    def strength(name: str) -> int:
        return max((i for i, layer in enumerate(layers) if name in layer), default=-1)

    train = merged(*layers)
    if strength("lr") > strength("lr_floor") and isfinite(train["lr"]) and train["lr"] >= 0:
        train["lr_floor"] = train["lr"] / 10
    if strength("steps") > strength("warmup"):
        train["warmup"] = min(train.get("warmup", TrainConfig.warmup), max(train["steps"], 0) // 10)
    return train


def check_model(model: Mapping[str, Any], wrong: list[str]) -> ModelConfig | None:
    kind, fields = kind_of({"vocabulary": 1, **model}, "[model]")
    if fields.get("activation", kind.activation) not in ACTIVATIONS:
        wrong.append(f"--activation: {unknown('activation', fields.pop('activation'), ACTIVATIONS)}")
    try:
        return kind(**fields)
    except ConfigError as error:
        wrong.append(as_flags(str(error)))
        return None


def check_name(name: str, what: str) -> None:
    """ConfigError for a name whose bytes are not UTF-8: the files of a run could not say it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{what} {name!r} is not UTF-8 text, and the files of a run could not name it; rename the file or folder"
        ) from None


def as_flags(text: str) -> str:
    """Fields of the model, spelled as on the command line.

    >>> as_flags("d_model 10 is not a multiple of n_heads 3")
    '--width 10 is not a multiple of --heads 3'
    """
    flags = {field: "--" + flag for flag, field in MODEL_FIELDS.items()}
    return re.sub(rf"\b({'|'.join(flags)})(?= is | \d)", lambda match: flags[match[1]], text)


def check_tokenizer(tokenizer: str | None, vocab_size: int | None, sources: Sequence[str]) -> None:
    if tokenizer == "":
        raise ConfigError("--tokenizer is empty; give bytes, chars, bpe:N, ids or a tokenizer.json, or leave it out")
    word = (tokenizer or "auto").partition(":")[0]
    if word in LATER:
        raise ConfigError(
            f"--tokenizer {tokenizer} is not there yet; bytes, chars, bpe:N, ids and a tokenizer.json are"
        )
    if word == "bpe":
        size_of(str(tokenizer))
        library()
    elif tokenizer and tokenizer not in TOKENIZERS:
        if not (tokenizer.endswith(".json") or os.sep in tokenizer or os.path.isfile(tokenizer)):
            raise unknown("tokenizer", tokenizer, [*TOKENIZERS, "bpe:N", "FILE.json"])
        load_tokenizer(tokenizer)
    if vocab_size is not None:
        if vocab_size < 1:
            raise ConfigError(f"--vocab-size is {vocab_size}, and must be at least 1")
        for_text = (
            tokenizer in ("bytes", "chars") or word == "bpe" or (word == "auto" and not all(map(holds_ids, sources)))
        )
        if for_text:
            raise ConfigError(
                f"--vocab-size {vocab_size} is for token ids only; {tokenizer or 'bytes'} has the size it has"
            )
