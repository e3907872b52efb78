"""Training from beginning to end, and on from where it stopped.

The run folder:

    config.toml      what was asked for, what it was made with, where the tokens are
    metrics.jsonl    one record a step
    checkpoints/     the newest two, each a complete set

Everything random is drawn from (seed, step, micro-batch) alone, so a run that was stopped and resumed is, bit for bit,
the run that was not (with the same `steps`, on the same machine, versions and number of threads).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch

from handgrad.core.errors import ConfigError, NumericError
from handgrad.data.corpus import Corpus
from handgrad.data.windows import training_windows
from handgrad.models.diagnose import Batch
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.model import Model, build
from handgrad.train import checkpoint
from handgrad.train.config import MASTER, Finetune, TrainConfig, available_device, write_toml
from handgrad.train.evaluate import evaluate
from handgrad.train.interrupt import ctrl_c
from handgrad.train.lock import held
from handgrad.train.memory import keep_freed_memory
from handgrad.train.metrics import Metrics, peak_rss_bytes
from handgrad.train.optimiser import State, uses_fused
from handgrad.train.prepare import compile_problem, gradient_of, prepared
from handgrad.train.schedule import lr_at
from handgrad.train.size import size_problem
from handgrad.train.start import (
    CONFIG,
    Parts,
    check_run,
    data_table,
    fresh_folder,
    memory_explained,
    parts_of,
    reopened,
    tokens_sha256,
)
from handgrad.train.step import step_on

__all__ = ["Observer", "Result", "evaluate", "resume", "step_on", "train"]


class Observer(Protocol):
    """Whoever shows a run to people or programs; the loop itself prints nothing.

    started     before the first step: step, steps, parameters, tokens of both parts, device, dtype, optimiser, ...
    stepped     each record of metrics.jsonl, as it is written
    said        plain one-line notices and warnings
    finished    the result, at the very end
    """

    def started(self, info: Mapping[str, object]) -> None: ...
    def stepped(self, record: Mapping[str, object]) -> None: ...
    def said(self, message: str) -> None: ...
    def finished(self, result: Result) -> None: ...


class _Silent:
    def started(self, info: Mapping[str, object]) -> None: ...
    def stepped(self, record: Mapping[str, object]) -> None: ...
    def said(self, message: str) -> None: ...
    def finished(self, result: Result) -> None: ...


@dataclass(frozen=True)
class Result:
    """How a run ended. `elapsed_s` and `tokens_seen` count all sessions of the run, `tokens_per_s` this one's steps.

    `val_step` is the step after which `val_loss_nats` was measured.
    """

    step: int
    val_loss_nats: float | None
    val_step: int | None
    loss_nats: float | None
    checkpoint: Path
    interrupted: bool
    elapsed_s: float
    tokens_seen: int
    tokens_per_s: float


@dataclass(frozen=True)
class _Session:
    """What one call trains with."""

    folder: Path
    config: TrainConfig
    corpus: Corpus
    sha256: str
    parts: Parts
    model: Model
    state: State
    start: checkpoint.Progress
    saved: Path | None
    observer: Observer
    context: int  # tokens of one window


def train(
    folder: str | Path,
    model_config: GPT2Config,
    config: TrainConfig,
    corpus: Corpus,
    *,
    observer: Observer | None = None,
    keep_going: Callable[[], bool] | None = None,
    model: Model | None = None,
    finetune: Finetune | None = None,
) -> Result:
    """Train a fresh model on the first 90 % of `corpus`, validating on the rest; everything goes into `folder`. With
    `model`, that one is trained on, its parameters in place; `finetune` then says for config.toml what it is.

    `keep_going` is asked after each step; once it says no, the run validates, saves and ends. Ctrl-C lets the step
    finish, saves, and ends with `interrupted`; a second one raises KeyboardInterrupt at once.

    Everything is checked before the first step, and before anything is written. Raises ConfigError (also where
    `folder` already holds a run, which is left as it is), DataError, FileError, and NumericError where a value is no
    longer finite: then nothing was updated and the last checkpoint is intact.

    >>> import handgrad as hg, tempfile
    >>> from handgrad.data import prepare
    >>> folder = tempfile.mkdtemp()
    >>> corpus = prepare(["embedded"], "bytes", folder + "/tokens")
    >>> corpus = Corpus(corpus.tokens[:300], corpus.tokenizer, corpus.folder, 300)
    >>> shape = hg.GPT2Config(vocabulary=256, context=8, n_layers=1, n_heads=1, d_model=8)
    >>> result = train(folder, shape, TrainConfig(steps=2, batch_size=2), corpus)
    >>> result.step, result.checkpoint.name, hg.load(folder).params
    (2, 'step_000002', Buffer(20 names, 3,000 parameters, torch.float32))
    """
    folder, observer = Path(folder), observer or _Silent()
    available_device(config)
    size = None if model is not None and model.frozen else size_problem(model_config, config)
    if problem := size or compile_problem(model_config, config):
        raise ConfigError(problem)
    window = finetune.window if finetune else 0
    parts = parts_of(corpus, model_config, window)
    fresh_folder(folder)
    with held(folder):
        fresh_folder(folder)
        with memory_explained():
            model, state = _built(model_config, config, corpus, model)
            model = prepared(model, config)
        sha256 = tokens_sha256(corpus)
        tables = {"data": data_table(corpus, folder, sha256)} | ({"finetune": asdict(finetune)} if finetune else {})
        write_toml(folder / CONFIG, model_config, config, tables)
        start, context = checkpoint.Progress(), window or model_config.context
        session = _Session(folder, config, corpus, sha256, parts, model, state, start, None, observer, context)
        return _run(session, keep_going)


def resume(
    folder: str | Path,
    *,
    steps: int | None = None,
    observer: Observer | None = None,
    keep_going: Callable[[], bool] | None = None,
    model: Model | None = None,
) -> Result:
    """Go on from the newest checkpoint with the settings of config.toml; `steps` is a new total number of steps.

    `model` is the one that the run began with, for one that trains an adapter: its checkpoints hold no more than that.

    A run that has its steps already is left as it is, and that is said. Other `steps` are written to config.toml; the
    learning rate then follows the schedule of that many steps from here on. Raises as `train` does, FileError or
    ConfigError where the files of the run do not belong together, and ConfigError for fewer steps than are done.
    """
    folder, observer = Path(folder), observer or _Silent()
    check_run(folder)
    with held(folder):
        return _resumed(folder, steps, observer, keep_going, model)


def _resumed(
    folder: Path, steps: int | None, observer: Observer, keep_going: Callable[[], bool] | None, first: Model | None
) -> Result:
    found = reopened(folder, steps, observer.said, first)
    if found.corpus is None:
        result = _result(found.start, found.saved, 0, 0.0, 0.0, False)
        observer.finished(result)
        return result
    config, corpus, shape = found.config, found.corpus, found.file.model_config
    if problem := compile_problem(shape, config):
        raise ConfigError(problem)
    window = found.file.finetune.get("window", 0)
    parts = parts_of(corpus, shape, window)
    model, state = found.model, found.state
    if model is None or state is None:
        model, state = _built(shape, config, corpus, first)
    if steps is not None:
        tables = {"data": found.file.data} | ({"finetune": found.file.finetune} if found.file.finetune else {})
        write_toml(folder / CONFIG, shape, found.file.train_config, tables)
    sha256 = tokens_sha256(corpus)
    model = prepared(model, config)
    context = window or shape.context
    session = _Session(folder, config, corpus, sha256, parts, model, state, found.start, found.saved, observer, context)
    return _run(session, keep_going)


def _built(shape: GPT2Config, config: TrainConfig, corpus: Corpus, first: Model | None) -> tuple[Model, State]:
    """The model to begin with: a fresh one, unless one is given."""
    dtype, device = MASTER[config.dtype], config.device
    model = build(shape, config.seed, dtype, device) if first is None else first.moved(dtype, device)
    model.tokenizer = corpus.tokenizer
    return model, State.zeros(model.params.flat, config.optimiser)


def _run(s: _Session, keep_going: Callable[[], bool] | None) -> Result:
    keep_freed_memory()
    checkpoint.clean(s.folder)
    for message in s.parts.warnings:
        s.observer.said(message)
    s.observer.started(_info(s))
    fresh, now, saved, stopping, empty = s.saved is None, s.start, s.saved, False, False
    began, trained_s, n_targets = perf_counter(), 0.0, 0
    g = gradient_of(s.model, s.config)

    def elapsed_s() -> float:
        return s.start.elapsed_s + perf_counter() - began

    def report(record: dict[str, object]) -> None:
        record["peak_rss_bytes"] = peak_rss_bytes()
        metrics.write(record)
        s.observer.stepped(record)

    def save() -> Path:
        metrics.sync()
        done = replace(now, elapsed_s=elapsed_s())
        return checkpoint.save(s.folder, s.model, s.state, done, s.config, s.corpus.tokenizer, tokens_sha256=s.sha256)

    with memory_explained(), ctrl_c() as pressed, Metrics(s.folder, after=None if fresh else now.step) as metrics:
        try:
            if fresh and s.parts.validation is not None:
                now = _validated(s, now)
                report({"step": 0, "val_loss_nats": now.val_loss_nats})
            while now.step < s.config.steps and not stopping and not pressed():
                step, lr, at = now.step + 1, lr_at(now.step + 1, s.config), perf_counter()
                done = step_on(s.model, _batches(s, step), g, s.state, lr, s.config, step)
                took = perf_counter() - at
                if done.n_targets == 0 and not empty:
                    s.observer.said(f"step {step} has no target that counts: its loss is 0 and no weight changes")
                empty = empty or done.n_targets == 0
                trained_s, n_targets = trained_s + took, n_targets + done.n_targets
                now = replace(now, step=step, loss_nats=done.loss_nats, tokens_seen=now.tokens_seen + done.n_targets)
                stopping = keep_going is not None and not keep_going()
                record: dict[str, object] = {
                    "step": step,
                    "loss_nats": done.loss_nats,
                    "lr": lr,
                    "grad_norm": done.grad_norm,
                    "tokens_per_s": done.n_targets / took,
                }
                if done.samples is not None:
                    record |= done.samples.record()
                due = step % s.config.validate_every == 0 or step == s.config.steps or stopping
                if due and s.parts.validation is not None:
                    now = _validated(s, now)
                    record["val_loss_nats"] = now.val_loss_nats
                report(record)
                if step % s.config.save_every == 0:
                    saved = save()
            if pressed():
                s.observer.said(f"stopped after step {now.step}")
            if saved is None or saved.name != checkpoint.name_of(now.step):
                saved = save()
        except NumericError as error:
            kept = f"The last checkpoint is intact: {saved}" if saved else "No checkpoint had been written yet"
            raise NumericError(f"{error}.\n{kept}. Try a lower --lr, or a smaller --clip") from None
        interrupted = pressed() and now.step < s.config.steps
    result = _result(now, saved, n_targets, trained_s, elapsed_s(), interrupted)
    s.observer.finished(result)
    return result


def _batches(s: _Session, step: int) -> list[Batch]:
    c, device = s.config, s.model.params.flat.device
    drawn = [
        training_windows(s.parts.training, s.context, c.batch_size, c.seed, step, micro)
        for micro in range(c.accumulate)
    ]
    return [(torch.from_numpy(ids).to(device), torch.from_numpy(targets).to(device)) for ids, targets in drawn]


def _validated(s: _Session, now: checkpoint.Progress) -> checkpoint.Progress:
    assert s.parts.validation is not None
    c = s.config
    loss, _ = evaluate(s.model, s.parts.validation, s.context, c.batch_size, c.implementation)
    if now.best_val_loss_nats is None or loss < now.best_val_loss_nats:
        now = replace(now, best_val_loss_nats=loss, best_step=now.step)
    return replace(now, val_loss_nats=loss, val_step=now.step)


def _info(s: _Session) -> dict[str, object]:
    flat = s.model.params.flat
    return {
        "folder": s.folder,
        "step": s.start.step,
        "steps": s.config.steps,
        "resumed": s.saved is not None,
        "n_parameters": s.model.params.layout.count,
        "vocabulary": s.model.config.vocabulary,
        "context": s.context,
        "n_training_tokens": len(s.parts.training),
        "n_validation_tokens": 0 if s.parts.validation is None else len(s.parts.validation),
        "validate_every": s.config.validate_every,
        "tokens_per_step": s.config.batch_size * s.config.accumulate * s.context,
        "dtype": s.config.dtype,
        "compile": s.config.compile,
        "device": str(flat.device),
        "implementation": s.config.implementation,
        "optimiser": "AdamW, torch's fused operator"
        if uses_fused(s.config, flat.device.type)
        else "AdamW, explicit formulas",
    }


def _result(
    now: checkpoint.Progress, saved: Path | None, n_tokens: int, trained_s: float, elapsed_s: float, interrupted: bool
) -> Result:
    assert saved is not None, "a run ends with a checkpoint"
    rate = n_tokens / trained_s if trained_s else 0.0
    return Result(
        step=now.step,
        val_loss_nats=now.val_loss_nats,
        val_step=now.val_step,
        loss_nats=now.loss_nats,
        checkpoint=saved,
        interrupted=interrupted,
        elapsed_s=max(elapsed_s, now.elapsed_s),
        tokens_seen=now.tokens_seen,
        tokens_per_s=rate,
    )
