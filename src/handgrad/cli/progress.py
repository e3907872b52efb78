"""A training run, shown: a bar with rates and the time left on a terminal, now and then a line where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from handgrad.cli.output import NoOutput, Output, duration

LINE_EVERY_S = 10.0
SHOWN_AFTER_S = 2.0
WEIGHT = 0.1  # of a new step in the shown rate
STEPS_BEFORE_TIME_LEFT = 5
COMPILING = "compiling the blocks (first step)"


@dataclass
class Shown:
    """The observer of `train.loop`: records go to programs as they come, and to people as they can read them.

    When a reader of the records goes away, or the system asks this process to end, `told_to_stop` becomes true: the
    run is to end as after Ctrl-C, with everything saved.
    """

    output: Output
    told_to_stop: bool = False
    steps: int = 0
    first: int = 0
    rate: float = 0.0
    compiling: bool = False
    left: TimeLeft | None = None
    val_loss_nats: float | None = None
    last_line: float = -inf
    bar: Progress | None = None
    task: TaskID = field(default=TaskID(0))

    def started(self, info: Mapping[str, Any]) -> None:
        self.steps, self.first, self.compiling = info["steps"], info["step"], bool(info.get("compile"))
        self.left = TimeLeft(
            self.steps,
            info["validate_every"] if info["n_validation_tokens"] else 0,
            info["tokens_per_step"],
            info["n_validation_tokens"],
            monotonic(),
            self.compiling,
        )
        for line in introduction(info):
            self.output.note(line)
        if self.compiling and not self.output.live:
            self.output.note(f"{COMPILING}: this takes up to a minute, once")
        if self.output.live:
            self.bar = Progress(
                SpinnerColumn("line"),
                TextColumn("step {task.completed:,}/{task.total:,}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                console=Console(stderr=True, highlight=False),
                refresh_per_second=4,
            )
            self.task = self.bar.add_task(
                "", total=self.steps, completed=self.first, state=COMPILING if self.compiling else ""
            )
            self.bar.start()

    def stepped(self, record: Mapping[str, Any]) -> None:
        try:
            self.output.record(record)
        except (BrokenPipeError, NoOutput):
            self.told_to_stop = True
        if self.left is not None:
            self.left.took(record, monotonic())
        if (found := record.get("val_loss_nats")) is not None:
            self.val_loss_nats = found
        if "loss_nats" not in record:
            self.line(f"step {record['step']:,}/{self.steps:,}  {self.state(record)}", due=True)
            return
        speed = record["tokens_per_s"]
        if self.compiling:  # of a step that compiles, the time says nothing about the next
            self.compiling = False
        else:
            self.rate = speed if not self.rate else (1 - WEIGHT) * self.rate + WEIGHT * speed
        if self.bar is not None:
            self.bar.update(self.task, completed=record["step"], state=self.state(record))
        due = record.get("val_loss_nats") is not None or monotonic() - self.last_line > LINE_EVERY_S
        self.line(f"step {record['step']:,}/{self.steps:,}  {self.state(record)}", due)

    def said(self, message: str) -> None:
        if self.bar is not None:
            self.bar.console.print(escape(message), highlight=False)
        else:
            self.output.note(message)

    def finished(self, result: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was; the last state of the bar stays."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def line(self, text: str, due: bool) -> None:
        if due and not self.output.live:
            self.last_line = monotonic()
            self.output.note(text)

    def state(self, record: Mapping[str, Any]) -> str:
        parts = [f"loss {record['loss_nats']:.3f}"] if "loss_nats" in record else []
        shown = record.get("val_loss_nats", self.val_loss_nats if self.bar is not None else None)
        parts += [] if shown is None else [f"val loss {shown:.3f}"]
        parts += [f"{self.rate:,.0f} tokens/s"] if self.rate else []
        if self.left is not None and (left_s := self.left.seconds(record["step"])) is not None:
            parts.append(f"{duration(left_s)} left")
        return "  ".join(parts)


@dataclass
class TimeLeft:
    """The rest of a run in seconds: its steps at the mean time of a step, its validations at their own mean time.

    `validate_every` is 0 where validation is off; `now_s` is the time of the record before, from any fixed moment.
    What comes while `compiling`, the first step and the validation before it, does not count.
    """

    steps: int
    validate_every: int
    tokens_per_step: int
    n_validation_tokens: int
    now_s: float
    compiling: bool = False
    steps_s: float = 0.0
    n_steps: int = 0
    validations_s: float = 0.0
    n_validations: int = 0

    def took(self, record: Mapping[str, Any], now_s: float) -> None:
        """Count one record that came at `now_s`."""
        if self.compiling:
            self.compiling, self.now_s = "loss_nats" not in record, now_s
            return
        step_s = 0.0
        if record.get("tokens_per_s"):
            step_s = self.tokens_per_step / record["tokens_per_s"]
            self.steps_s, self.n_steps = self.steps_s + step_s, self.n_steps + 1
        if record.get("val_loss_nats") is not None:
            self.validations_s += max(now_s - self.now_s - step_s, 0.0)
            self.n_validations += 1
        self.now_s = now_s

    def seconds(self, step: int) -> float | None:
        """What is left after `step`; None before enough steps were seen, and at the end.

        >>> left = TimeLeft(20, 10, 100, 50, 0.0)
        >>> left.took({"step": 0, "val_loss_nats": 3.0}, 30.0)
        >>> for step in range(1, 6):
        ...     left.took({"step": step, "tokens_per_s": 50.0}, 30.0 + 2 * step)
        >>> left.seconds(4), left.seconds(5), left.seconds(20)
        (92.0, 90.0, None)
        """
        if self.n_steps < STEPS_BEFORE_TIME_LEFT or step >= self.steps:
            return None
        step_s = self.steps_s / self.n_steps
        if self.n_validations:
            validation_s = self.validations_s / self.n_validations
        else:  # forward only: a third of the work of a step on as many tokens
            validation_s = step_s * self.n_validation_tokens / self.tokens_per_step / 3
        return (self.steps - step) * step_s + self.validations_after(step) * validation_s

    def validations_after(self, step: int) -> int:
        """One every `validate_every` steps, and one after the last."""
        if not self.validate_every:
            return 0
        every = self.steps // self.validate_every - step // self.validate_every
        return every + (self.steps % self.validate_every > 0)


def introduction(info: Mapping[str, Any]) -> list[str]:
    """What is about to be trained, on what, and how, in two lines."""
    validation = info["n_validation_tokens"]
    begins = f"continuing after step {info['step']:,}: " if info["resumed"] else ""
    return [
        f"{begins}{info['n_parameters']:,} parameters, vocabulary {info['vocabulary']:,}, context {info['context']:,}; "
        f"{info['n_training_tokens']:,} tokens to train on, "
        + (f"{validation:,} to validate on" if validation else "none to validate on"),
        f"{info['steps']:,} steps of {info['tokens_per_step']:,} tokens; {info['dtype']} on {info['device']}, "
        f"{info['optimiser']}",
    ]


@contextmanager
def preparing(output: Output, what: str = "writing tokens") -> Iterator[Any]:
    """Gives a `progress(done, total)` that draws a bar once the work has taken a while."""
    began, bar = monotonic(), None
    task = TaskID(0)

    def progress(done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None and output.live and monotonic() - began > SHOWN_AFTER_S:
            bar = Progress(
                TextColumn(what + " {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=24),
                console=Console(stderr=True, highlight=False),
                transient=True,
            )
            task = bar.add_task("", total=total)
            bar.start()
        if bar is not None:
            bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.stop()
