"""Train one rung on one task, by the product's own step, and say what it learned. Equal seeds see equal data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from handgrad.core.errors import NumericError, ShapeError
from handgrad.core.run import Run
from handgrad.lab.rung import Rung, Sizes, network, parameters
from handgrad.lab.steps import Result
from handgrad.lab.tasks import HELD_OUT, TRAIN, Task, batch_of, settings
from handgrad.models.model import Model
from handgrad.rules.crossentropy import CROSS_ENTROPY
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State
from handgrad.train.schedule import lr_at
from handgrad.train.step import step_on


@dataclass(frozen=True)
class Fit:
    """How a rung is trained.

    steps, batch, lr, warmup, clip, weight_decay     as in `TrainConfig`; the rate falls to a tenth
    seed             of first weights and of data
    every            steps between two measurements on held-out sequences
    solved           stop at this accuracy; above 1 never
    minutes          stop after this time, 0 never: what is reached then counts, and `stopped` says so
    sequences        held-out sequences of one measurement, or the whole task where a batch is all of it
    """

    steps: int = 1500
    batch: int = 64
    lr: float = 3e-3
    warmup: int = 50
    clip: float = 1.0
    weight_decay: float = 0.0
    seed: int = 0
    every: int = 50
    solved: float = 0.999
    minutes: float = 0.0
    sequences: int = 256

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch,
            lr=self.lr,
            lr_floor=self.lr / 10,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            clip=self.clip,
            seed=self.seed,
        )


def key_of(rung: Rung, task: Task, sizes: Sizes, fit: Fit) -> str:
    """Names a training run by all that its result depends on.

    >>> from handgrad.lab.rungs import rung; from handgrad.lab.tasks import Recall
    >>> key_of(rung("rnn"), Recall(2, 4, 4), Sizes(width=8), Fit(steps=9))
    'fit rnn width=8 | recall pairs=2 n_keys=4 n_values=4 | steps=9'
    """
    parts = (f"{rung.name}{changed(sizes)}", f"{task.name}{changed(task)}", changed(fit).strip())
    return f"fit {' | '.join(part for part in parts if part)}"


def changed(x: Any) -> str:
    """The fields that are not the default's."""
    default = type(x)()
    return "".join(f" {name}={value}" for name, value in asdict(x).items() if value != getattr(default, name))


def train(
    rung: Rung,
    task: Task,
    sizes: Sizes,
    fit: Fit,
    say: Callable[[str, float], None] = lambda what, part: None,
    elsewhere: Mapping[str, Task] | None = None,
) -> tuple[Model, Result]:
    """The trained model, and what it came to, in JSON's own types.

    `elsewhere` are other sizes of the task, by a name for each: how well the network does there without having trained
    for them. A rung that cannot read them at all is reported with its own words. A network whose loss or gradient stops
    being finite ends there, with `diverged`.
    """
    model, config = network(rung, task.vocabulary, sizes, fit.seed), fit.config
    state, gradient = State.zeros(model.params.flat), model.params.layout.zeros()
    began, curve, diverged, stopped, step, measuring = time.perf_counter(), [], "", "", 0, 0.0
    for step in range(1, fit.steps + 1):
        batch = batch_of(task, fit.batch, fit.seed, TRAIN, step)
        try:
            step_on(model, [batch], gradient, state, lr_at(step, config), config, step)
        except NumericError as error:
            diverged = str(error)
            break
        if step % fit.every == 0 or step == fit.steps:
            before = time.perf_counter()
            loss, accuracy = measured(model, task, fit)
            measuring += time.perf_counter() - before
            curve.append([step, loss, accuracy])
            seconds = time.perf_counter() - began - measuring
            say(f"{rung.title}: step {step} of {fit.steps}, accuracy {accuracy:.1%}", step / fit.steps)
            if accuracy >= fit.solved:
                break
            if fit.minutes and seconds > 60 * fit.minutes:
                stopped = f"after {fit.minutes:g} minutes, at step {step} of {fit.steps}"
                break
    seconds = time.perf_counter() - began - measuring
    loss, accuracy = (curve[-1][1], curve[-1][2]) if curve else (None, None)
    solved = accuracy is not None and accuracy >= fit.solved
    return model, {
        "rung": rung.name,
        **settings(task),
        "sizes": asdict(sizes),
        "fit": asdict(fit),
        "seed": fit.seed,
        "parameters": model.params.layout.count,
        "stack_parameters": parameters(rung, sizes),
        "state_bytes": rung.state_bytes(sizes, task.length),
        "chance": task.chance,
        "steps": step,
        "seconds": seconds,
        "curve": curve,
        "loss_nats": loss,
        "accuracy": accuracy,
        "solved": solved,
        "diverged": diverged,
        "stopped": stopped,
        "elsewhere": {} if diverged else {n: tried(model, other, fit) for n, other in (elsewhere or {}).items()},
    }


def measured(model: Model, task: Task, fit: Fit, at_once: int = 64) -> tuple[float, float]:
    """Mean loss in nats and accuracy over the scored tokens of held-out sequences; the task's own where it has some."""
    task = replace(task, held_out=True) if hasattr(task, "held_out") else task  # type: ignore[type-var]
    ids, targets = batch_of(task, fit.sequences, fit.seed, HELD_OUT, 0)
    loss, right, n = 0.0, 0, 0
    for part, aims in zip(ids.split(at_once), targets.split(at_once), strict=True):
        counts = aims >= 0
        logits = model(part)
        loss += float(nats(logits[counts], aims[counts]))
        right += int((logits[counts].argmax(-1) == aims[counts]).sum())
        n += int(counts.sum())
    return loss / n, right / n


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed surprise of targets ~ (n,) under logits ~ (n, V)."""
    valid = torch.ones_like(targets, dtype=torch.bool)[None]
    return CROSS_ENTROPY.forward(logits[None], targets[None], valid, 1, run=Run())[0]


def tried(model: Model, task: Task, fit: Fit) -> dict[str, Any]:
    try:
        loss, accuracy = measured(model, task, fit)
    except ShapeError as error:
        return {"refused": str(error), **settings(task)}
    return {"loss_nats": loss, "accuracy": accuracy, **settings(task)}
