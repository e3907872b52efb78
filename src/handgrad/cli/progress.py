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
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from handgrad.cli.output import Output, duration

LINE_EVERY_S = 10.0
SHOWN_AFTER_S = 2.0
WEIGHT = 0.1  # of a new step in the shown rate


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
    began: float = 0.0
    rate: float = 0.0
    val_loss_nats: float | None = None
    last_line: float = -inf
    bar: Progress | None = None
    task: TaskID = field(default=TaskID(0))

    def started(self, info: Mapping[str, Any]) -> None:
        self.steps, self.first, self.began = info["steps"], info["step"], monotonic()
        for line in introduction(info):
            self.output.note(line)
        if self.output.live:
            self.bar = Progress(
                TextColumn("step {task.completed:,}/{task.total:,}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                console=Console(stderr=True, highlight=False),
                refresh_per_second=4,
            )
            self.task = self.bar.add_task("", total=self.steps, completed=self.first, state="")
            self.bar.start()

    def stepped(self, record: Mapping[str, Any]) -> None:
        try:
            self.output.record(record)
        except BrokenPipeError:
            self.told_to_stop = True
        if (found := record.get("val_loss_nats")) is not None:
            self.val_loss_nats = found
        if "loss_nats" not in record:
            self.line(f"step {record['step']:,}/{self.steps:,}  {self.state(record)}", due=True)
            return
        speed = record["tokens_per_s"]
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
        done = record["step"] - self.first
        parts = [f"loss {record['loss_nats']:.3f}"] if "loss_nats" in record else []
        shown = record.get("val_loss_nats", self.val_loss_nats if self.bar is not None else None)
        parts += [] if shown is None else [f"val loss {shown:.3f}"]
        parts += [f"{self.rate:,.0f} tokens/s"] if self.rate else []
        if 0 < done < self.steps - self.first:
            left_s = (monotonic() - self.began) / done * (self.steps - record["step"])
            parts.append(f"{duration(left_s)} left")
        return "  ".join(parts)


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
def preparing(output: Output) -> Iterator[Any]:
    """Gives a `progress(done, total)` that draws a bar once the work has taken a while."""
    began, bar = monotonic(), None
    task = TaskID(0)

    def progress(done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None and output.live and monotonic() - began > SHOWN_AFTER_S:
            bar = Progress(
                TextColumn("writing tokens {task.completed:,.0f}/{task.total:,.0f}"),
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
