"""What `handgrad finetune` and `handgrad merge` do once their options are known."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from handgrad.adapt import LoRA, adapted, merge
from handgrad.adapt.lora import ATTENTION, updates
from handgrad.adapt.peft import write_files
from handgrad.cli.converting import require_dtype
from handgrad.cli.options import problems, quoted
from handgrad.cli.output import Output
from handgrad.cli.progress import preparing
from handgrad.cli.running import Ended, conclude, refuse_taken, watched
from handgrad.cli.settings import attempt, check_name, with_followers
from handgrad.cli.waiting import waiting
from handgrad.core.errors import ConfigError, FileError
from handgrad.data.corpus import Corpus
from handgrad.data.tokenizers import tokenizer_bytes
from handgrad.data.tokens import prepare
from handgrad.models.export import DTYPES, export, require_new
from handgrad.models.load import load
from handgrad.models.model import Model
from handgrad.train import checkpoint, loop
from handgrad.train.config import Finetune, TrainConfig, available_device, read_toml
from handgrad.train.lock import held
from handgrad.train.prepare import DRAWS_ANEW

DEFAULTS = {
    "steps": 200,
    "batch_size": 4,
    "lr": 3e-4,
    "warmup": 20,
    "weight_decay": 0.0,
    "validate_every": 50,
    "save_every": 100,
    "recompute": "cheap",
}
FULL_LR = 3e-5
WINDOW = 512  # tokens, where none is asked for and the model could take more
ADAPTER_FLAGS = ("rank", "alpha", "targets", "rslora", "dropout")
CHUNK = 1 << 22  # elements


def begin(name: str, sources: Sequence[str], out: Path, flags: Mapping[str, Any], output: Output) -> None:
    """A run from its first step. Raises HandgradError, before anything is written, for what cannot be."""
    tune, config = resolve(name, sources, flags)
    refuse_taken(out)
    with waiting(f"loading {name}", output.live):
        base = load(name).moved(torch.float64 if config.dtype == "float64" else torch.float32)
    tune = replace(tune, window=window_of(base, tune.window), base_sha256=sha256(base))
    first, light = begun(base, tune, config.seed)
    shape, words = base.config, base.tokenizer
    given = [first]  # handed over, not held: in half precision, training keeps no float32 copy of what is frozen
    del base, first
    with held(out):
        refuse_taken(out)
        corpus = tokens(words, shape.vocabulary, sources, out, output)
        with watched(out, output) as shown:
            result = loop.train(
                out,
                shape,
                config,
                corpus,
                observer=shown,
                keep_going=lambda: not shown.told_to_stop,
                model=given.pop(),
                finetune=tune,
            )
        finished(out, Ended(result, shown.steps), light, tune, output)


def go_on(out: Path, steps: int | None, output: Output) -> None:
    """A run from its newest checkpoint, on the model that it began with: the same numbers, or none."""
    loop.check_run(out)
    file = read_toml(out / "config.toml")
    if not file.finetune:
        raise ConfigError(
            f"{out} is a run of handgrad train; resume it with handgrad train --out {quoted(out)} --resume"
        )
    tune = Finetune(**file.finetune)
    with waiting(f"loading {tune.model}", output.live):
        base = load(tune.model).moved(torch.float64 if file.train_config.dtype == "float64" else torch.float32)
    if (found := sha256(base)) != tune.base_sha256:
        raise FileError(
            f"the model {tune.model} is not the one that this run began with: its numbers have SHA-256 {found[:12]}, "
            f"{tune.base_sha256[:12]} expected. Put it back as it was, or start a new run"
        )
    first, light = begun(base, tune, file.train_config.seed)
    del base
    with held(out):
        with watched(out, output) as shown:
            result = loop.resume(
                out, steps=steps, observer=shown, keep_going=lambda: not shown.told_to_stop, model=first
            )
        finished(out, Ended(result, shown.steps), light, tune, output)


def resolve(name: str, sources: Sequence[str], flags: Mapping[str, Any]) -> tuple[Finetune, TrainConfig]:
    """Raises ConfigError once, with all that is wrong.

    >>> tune, config = resolve("docs-1m", ["embedded"], {"rank": 4, "steps": 30})
    >>> tune.rank, tune.targets, config.steps, config.warmup, config.lr
    (4, 'attention.query,attention.key,attention.value', 30, 3, 0.0003)
    """
    wrong: list[str] = []
    train = {name: value for name, value in flags.items() if name in TrainConfig.__dataclass_fields__}
    full = bool(flags.get("full"))
    config = attempt(wrong, lambda: TrainConfig(**with_followers({**DEFAULTS, **lr_of(full)}, train)), None)
    if config is not None:
        attempt(wrong, lambda: available_device(config), None)
    if full and (given := [name for name in ADAPTER_FLAGS if name in flags]):
        wrong.append(
            f"--full trains all parameters and takes no {', '.join('--' + one for one in given)}; leave one out"
        )
    if not sources:
        alone = f", and {name} was taken for MODEL, which comes first" if Path(name).is_file() else ""
        wrong.append(f"DATA is missing{alone}: name text files or token files, or the word embedded")
    for source in sources:
        attempt(wrong, lambda: check_name(source, "DATA"), None)  # noqa: B023
    if (window := flags.get("window", 0)) < 0 or flags.get("window") == 0:
        wrong.append(f"--context is {window}, and must be at least 1")
    asked = {field: flags[field] for field in ADAPTER_FLAGS if field in flags}
    place = Path(name)
    model = str(place.resolve()) if place.exists() else name
    tune = Finetune(model, "", window, full, **{"targets": ",".join(ATTENTION)} | asked)
    if not full:
        attempt(wrong, lambda: lora_of(tune), None)
    if config is not None and config.compile and tune.dropout:
        wrong.append(DRAWS_ANEW)
    if wrong:
        raise ConfigError(problems(wrong))
    assert config is not None
    return tune, config


def lr_of(full: bool) -> dict[str, float]:
    lr = FULL_LR if full else DEFAULTS["lr"]
    return {"lr": lr, "lr_floor": lr / 10}


def lora_of(tune: Finetune) -> LoRA:
    targets = tuple(part.strip() for part in tune.targets.split(",") if part.strip())
    return LoRA(tune.rank, tune.alpha, targets, tune.rslora, tune.dropout)


def window_of(model: Model, asked: int) -> int:
    most = model.config.context
    if asked > most:
        raise ConfigError(f"--context is {asked}, and the model's context is {most}: it takes no longer windows")
    return asked or min(most, WINDOW)


def begun(base: Model, tune: Finetune, seed: int) -> tuple[Model, Model | None]:
    """What is trained, and the adapter alone, without the numbers of its model: what its files are written from."""
    if tune.full:
        return base, None
    first = adapted(base, lora_of(tune), seed)
    return first, replace(first, frozen=())


def sha256(model: Model) -> str:
    """Of all numbers of a model, in the order of its parameters."""
    digest = hashlib.sha256()
    for buffer in (*model.frozen, model.params):
        for piece in buffer.flat.split(CHUNK):
            digest.update(piece.numpy().data)
    return digest.hexdigest()


def tokens(words: Any, vocabulary: int, sources: Sequence[str], out: Path, output: Output) -> Corpus:
    """The data in the model's own tokens, into `out`/data."""
    with preparing(output) as progress, tempfile.TemporaryDirectory() as folder:
        kind: Any = "ids"
        if words is not None and not all(source.endswith((".npy", ".bin")) for source in sources):
            kind = Path(folder) / "tokenizer.json"
            kind.write_bytes(tokenizer_bytes(words))
        size = vocabulary if kind == "ids" else None
        return prepare(sources, kind, out / "data", vocab_size=size, progress=progress)


def finished(out: Path, ended: Ended, light: Model | None, tune: Finetune, output: Output) -> None:
    """The adapter's files, from the newest checkpoint; then how the run ended."""
    if light is not None:
        kept = checkpoint.load(ended.result.checkpoint, light).model
        write_files(kept, out, tune.model)
        output.record({"adapter": out, "base": tune.model, "parameters": light.params.layout.count})
        output.text(f"adapter     {out}  ({light.params.layout.count:,} parameters, beside {tune.model})")
    conclude(ended, out, output)


def merge_adapter(name: str, out: Path | None, dtype: str, output: Output) -> None:
    """Load, add, and write a Hugging Face folder. Raises HandgradError."""
    require_dtype(dtype, DTYPES)
    out = Path(f"{name.rstrip('/')}-merged") if out is None else out
    require_new(out)
    with waiting(f"loading {name}", output.live):
        model = load(name)
    if not model.frozen:
        raise ConfigError(
            f"{name} is a model without an adapter, so there is nothing to merge; name the adapter's folder"
        )
    stacks = updates(model)
    n_layers, n_updates = len(stacks), sum(map(len, stacks.values()))
    with waiting(f"writing {out}", output.live):
        done = export(merge(model), out, model.params.flat.dtype if dtype == "auto" else DTYPES[dtype])
    if dtype in ("bfloat16", "float16"):
        output.note(f"the sum was rounded to {dtype}: of a small update, most may be lost. float32 keeps all of it")
    if done.why_no_tokenizer:
        output.note(f"the tokenizer is not among the files: {done.why_no_tokenizer}")
    output.record({"adapter": name, "out": out, "parameters": done.n_parameters, "bytes": done.n_bytes})
    output.text(
        f"{out}: {done.n_parameters:,} parameters with {n_updates} updates of {n_layers} layers, {done.n_bytes:,} bytes"
    )
    output.text(f"Next: handgrad generate {quoted(out)} --prompt TEXT")
