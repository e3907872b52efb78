"""From a run folder to its `report.html`: metrics, a sentence seen forwards and backwards, and a sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from handgrad.cli.options import quoted
from handgrad.cli.output import duration
from handgrad.cli.reference import unigram_nats
from handgrad.core.errors import FileError
from handgrad.data.corpus import Corpus, open_corpus
from handgrad.generate.generate import generate
from handgrad.generate.sample import Sampling
from handgrad.inspect.data import Curve, ParameterRow, ReportData
from handgrad.inspect.report import write_report
from handgrad.models.load import load
from handgrad.models.model import Model, watch
from handgrad.train.config import RunFile, read_toml
from handgrad.train.metrics import record_of

SENTENCE_TOKENS = 48
PROMPT_TOKENS = 24
SAMPLE_TOKENS = 400
SAMPLE_S = 15.0
SAMPLING = Sampling(temperature=0.8)

FORMULAS = {
    "w": "aᵗ Δ",
    "b": "1ᵗ Δ",
    "gamma": "1ᵗ(Δ ∘ x)",
    "beta": "1ᵗ Δ",
    "w_pos": "OHE(position)ᵗ Δ",
    "A": "aᵗ Δ_low",
    "B": "lowᵗ (s Δ)",
}


@dataclass(frozen=True)
class Seen:
    """One sentence through the model and back."""

    tokens: list[str]
    attention: dict[str, np.ndarray]
    error_sizes: list[tuple[str, float]]
    parameters: list[ParameterRow]


def write_run_report(run_folder: str | Path) -> Path:
    """Write report.html into a run folder, from its metrics.jsonl, config.toml and newest checkpoint.

    Raises FileError where the run cannot be read or the page cannot be written.
    """
    folder = Path(run_folder)
    model, file = load(folder), read_toml(folder / "config.toml")
    corpus = corpus_of(folder, file)
    ids = sentence(corpus, model)
    seen = look(model, ids)
    prompt, sample = written(model, ids[:PROMPT_TOKENS], file.train_config.seed)
    records = list(metrics(folder / "metrics.jsonl"))
    done = max((r["step"] for r in records), default=0)
    more = f" --steps {2 * max(done, 1)}" if done >= file.train_config.steps else ""
    data = ReportData(
        title=folder.resolve().name,
        facts=facts(model, file, corpus, records),
        train=curve(records, "loss_nats"),
        validation=curve(records, "val_loss_nats") if any("val_loss_nats" in r for r in records) else None,
        reference_losses=references(corpus, model),
        learning_rate=curve(records, "lr"),
        tokens=seen.tokens,
        attention=seen.attention,
        error_sizes=seen.error_sizes,
        parameters=seen.parameters,
        sample=sample,
        prompt=prompt,
        commands=[
            f"handgrad generate {quoted(folder)} --temperature 0.8",
            f"handgrad train --out {quoted(folder)} --resume{more}",
        ],
    )
    path = folder / "report.html"
    write_report(data, path)
    return path


def corpus_of(folder: Path, file: RunFile) -> Corpus | None:
    """The tokens of the run, or None where they are no longer there: the rest of a report does not need them."""
    try:
        return open_corpus(folder / file.data["tokens"])
    except (FileError, KeyError):
        return None


def metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Whole records of a metrics.jsonl; a line that no run writes is passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    for line in lines:
        if (record := record_of(line)) is not None:
            yield record


def curve(records: list[dict[str, Any]], name: str) -> Curve:
    found = [(r["step"], r[name]) for r in records if isinstance(r.get(name), int | float)]
    return Curve([step for step, _ in found], [float(value) for _, value in found])


def references(corpus: Corpus | None, model: Model) -> dict[str, float]:
    uniform = {"every token equally likely": math.log(model.config.vocabulary)}
    if corpus is None:
        return uniform
    training, validation = corpus.split()
    if len(validation) < 2:
        return uniform
    return uniform | {"token frequencies alone": unigram_nats(training, validation, model.config.vocabulary)}


def facts(model: Model, file: RunFile, corpus: Corpus | None, records: list[dict[str, Any]]) -> dict[str, str]:
    c, train = file.model_config, file.train_config
    losses = [r["val_loss_nats"] for r in records if isinstance(r.get("val_loss_nats"), int | float)]
    per_step = train.batch_size * train.accumulate * c.context
    steps = max((r["step"] for r in records), default=0)
    speeds = [r["tokens_per_s"] for r in records if isinstance(r.get("tokens_per_s"), int | float)]
    speeds = [float(speed) for speed in speeds if 1e-6 < speed < 1e15]
    shown = {
        "Model": f"{c.n_layers} layers, {c.n_heads} heads, width {c.d_model}, context {c.context}",
        "Parameters": f"{model.params.layout.count:,}",
        "Tokens": f"{model.tokenizer.kind}, vocabulary {c.vocabulary:,}"
        + (f", {corpus.n_tokens:,} in all" if corpus else ""),
        "Data": ", ".join(str(name) for name in file.data.get("sources", [])),
        "Steps": f"{steps:,} of {train.steps:,}, {per_step:,} tokens each",
        "Learning rate": f"{train.lr:g} down to {train.lr_floor:g}, warmup {train.warmup:,} steps",
        "Validation loss": f"{losses[-1]:.4f} nats a token (best {min(losses):.4f})" if losses else "",
        "Speed": f"{np.median(speeds):,.0f} tokens/s" if speeds else "",
        "Time in steps": duration(sum(per_step / s for s in speeds if s)) if speeds else "",
        "Numbers": f"{train.dtype} on {train.device}, seed {train.seed}",
        "Versions": ", ".join(f"{name} {version}" for name, version in file.versions.items()),
    }
    return {name: value for name, value in shown.items() if value}


def sentence(corpus: Corpus | None, model: Model) -> torch.Tensor:
    """Ids ~ (T,) that the model never learned from: of the first lines, the one that goes on with most letters."""
    n = min(SENTENCE_TOKENS, model.config.context)
    if corpus is None:
        return torch.zeros(0, dtype=torch.int64)
    training, validation = corpus.split()
    if model.tokenizer is None:
        return torch.from_numpy(np.asarray((validation if len(validation) >= n else training)[:n], dtype=np.int64))
    part = np.asarray((validation if len(validation) >= n else training)[: 20 * n], dtype=np.int64)
    newline = model.tokenizer.encode("\n", "skip")
    starts = np.flatnonzero(part == newline[0]) + 1 if len(newline) else np.zeros(0, np.int64)
    fitting = starts[starts + n <= len(part)]

    def letters(first: int) -> int:
        return sum(character.isalpha() for character in model.tokenizer.decode(part[first : first + n]))

    first = max(fitting.tolist(), key=letters, default=0)
    while first + n < len(part) and model.tokenizer.decode([part[first]]).isspace():
        first += 1  # past the indentation
    return torch.from_numpy(part[first : first + n].copy())


def look(model: Model, ids: torch.Tensor) -> Seen:
    """The attention, the errors on their way down and the gradients of one sentence."""
    if len(ids) < 2:
        return Seen([], {}, [], [])
    with watch(model, "blocks.*.attention.rho", "Delta_*", "blocks.Delta_*") as signals:
        model.loss(ids[None])
        gradient = model.backward()
    assert gradient is not None, "without a receiver, the gradient comes back"
    attention = {
        f"block {path.split('.')[1]}": x[0].double().numpy() for path, x in signals.items() if path.endswith(".rho")
    }
    # The output of the last block and of all blocks together is one signal with two names.
    errors = [
        (path, float(x.double().square().mean().sqrt()))
        for path, x in signals.items()
        if path.rpartition(".")[2].startswith("Delta_") and not (path == "Delta_blocks" and attention)
    ]
    tokens = [model.tokenizer.decode([i]) for i in ids.tolist()]
    return Seen(tokens, attention, errors, parameter_rows(model, gradient))


def parameter_rows(model: Model, gradient: Mapping[str, torch.Tensor]) -> list[ParameterRow]:
    layout = model.params.layout
    owners = set(layout.tied.values())
    return [
        ParameterRow(
            name=name,
            shape=slot.shape,
            formula=formula(name, tied=name in layout.tied or name in owners),
            count=math.prod(slot.shape),
            norm=float(model.params[name].double().norm()),
            gradient_norm=float(gradient[name].double().norm()),
            tied_to=layout.tied.get(name),
        )
        for name, slot in layout.slots.items()
    ]


def formula(name: str, tied: bool) -> str:
    """The gradient of a parameter, by the last part of its name.

    >>> formula("blocks.0.mlp.up.w", tied=False), formula("head.w_emb", tied=False)
    ('aᵗ Δ', 'Δ_logitsᵗ a')
    """
    leaf = name.rpartition(".")[2]
    if leaf != "w_emb":
        return FORMULAS.get(leaf, "")
    looked_up, head = "OHE(t)ᵗ Δ", "Δ_logitsᵗ a"
    return f"{looked_up} + {head}" if tied else head if name.startswith("head.") else looked_up


def sample_of(run_folder: str | Path, seed: int = 0) -> tuple[str, str]:
    """A prompt that the model of a run never learned from, and the prompt with what the model writes after it."""
    folder = Path(run_folder)
    model = load(folder)
    return written(model, sentence(corpus_of(folder, read_toml(folder / "config.toml")), model)[:PROMPT_TOKENS], seed)


def written(model: Model, prompt_ids: torch.Tensor, seed: int = 0) -> tuple[str, str]:
    """A prompt, and the prompt with what the model writes after it, as far as it gets within SAMPLE_S seconds."""
    began, new = monotonic(), []
    for ids in generate(model, prompt_ids, SAMPLE_TOKENS, SAMPLING, seed):
        new.append(int(ids))
        if monotonic() - began > SAMPLE_S:
            break
    # Decoded together: a character of several bytes may be cut by the end of the prompt.
    return model.tokenizer.decode(prompt_ids.tolist()), model.tokenizer.decode([*prompt_ids.tolist(), *new])
