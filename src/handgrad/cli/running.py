"""What `train` and `demo` share: tokens, a run that is watched and can be stopped, and how its end is told."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from handgrad.cli.options import quoted
from handgrad.cli.output import Output, duration
from handgrad.cli.progress import Shown, preparing
from handgrad.cli.reporting import write_run_report
from handgrad.cli.settings import Settings
from handgrad.core.errors import ConfigError, HandgradError
from handgrad.data.corpus import Corpus
from handgrad.data.tokens import prepare
from handgrad.train import loop

RUN_FILES = ("config.toml", "metrics.jsonl", "checkpoints")


@dataclass(frozen=True)
class Ended:
    """A run that ended, and the number of steps that it was to have (0: there was nothing left to do)."""

    result: loop.Result
    steps: int

    @property
    def interrupted(self) -> bool:
        return self.result.interrupted or self.result.step < self.steps


def refuse_taken(out: Path) -> None:
    """ConfigError where `out` holds a run, before its tokens could be replaced by others."""
    for name in RUN_FILES:
        if (out / name).exists():
            raise ConfigError(
                f"{out} already holds a run ({name} is there), and it is left as it is. "
                f"Go on with it (handgrad train --out {quoted(out)} --resume), or choose another folder"
            )


def fresh(out: Path, settings: Settings, output: Output) -> Ended:
    """Tokens into `out`/data, then a run from its first step."""
    with preparing(output) as progress:
        corpus = prepare(
            settings.sources, settings.tokenizer, out / "data", vocab_size=settings.vocab_size, progress=progress
        )
    return trained(out, settings, corpus, output)


def trained(out: Path, settings: Settings, corpus: Corpus, output: Output) -> Ended:
    model_config = settings.model_config(corpus.tokenizer.vocab_size)
    with watched(out, output) as shown:
        result = loop.train(
            out, model_config, settings.train, corpus, observer=shown, keep_going=lambda: not shown.told_to_stop
        )
    return Ended(result, shown.steps)


def resumed(out: Path, steps: int | None, output: Output) -> Ended:
    with watched(out, output) as shown:
        result = loop.resume(out, steps=steps, observer=shown, keep_going=lambda: not shown.told_to_stop)
    return Ended(result, shown.steps)


@contextmanager
def watched(out: Path, output: Output) -> Iterator[Shown]:
    """The observer of a run. SIGTERM ends the run as the first Ctrl-C does; the second Ctrl-C ends everything."""
    shown = Shown(output)

    def ask(number: int, frame: object) -> None:
        shown.told_to_stop = True

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, ask) if in_main else None
    try:
        yield shown
    except KeyboardInterrupt:
        shown.close()
        output.note(f"stopped at once. From the last checkpoint, go on with: {resume_command(out)}")
        raise typer.Exit(130) from None
    finally:
        shown.close()
        if in_main:
            signal.signal(signal.SIGTERM, before)


def conclude(ended: Ended, out: Path, output: Output) -> None:
    """Say how a run ended and what can be done next; a run that was interrupted exits with 130."""
    report = None if ended.interrupted else reported(out, output)
    tell_result(ended, out, report, output)
    if ended.interrupted:
        raise typer.Exit(130)


def tell_result(ended: Ended, out: Path, report: Path | None, output: Output, remark: str = "", **more: Any) -> None:
    """`remark` is a line for people, `more` are further fields for programs."""
    result, commands = ended.result, next_commands(ended, out)
    fields = asdict(result) | {"interrupted": ended.interrupted, "report": report, "next": commands} | more
    with suppress(BrokenPipeError):  # whoever read the records may have left; people are still told
        output.record({"result": fields})
    output.text(f"{'saved' if ended.interrupted else 'done:'} step {result.step:,}{summary(ended)}")
    if remark:
        output.text(remark)
    output.text(f"checkpoint  {result.checkpoint}")
    if report is not None:
        output.text(f"report      {report}  ({report.stat().st_size / 1e6:.1f} MB, opens in any browser)")
    output.text("next        " + "\n            ".join(commands))


def summary(ended: Ended) -> str:
    result, parts = ended.result, []
    # A run that was interrupted has not been validated at its last step.
    if result.val_loss_nats is not None and not ended.interrupted:
        parts.append(
            f"validation loss {result.val_loss_nats:.3f} nats a token "
            f"(as unsure as among {math.exp(result.val_loss_nats):.3g} equally likely tokens)"
        )
    elif result.loss_nats is not None:
        parts.append(f"loss {result.loss_nats:.3f} nats a token")
    parts.append(duration(result.elapsed_s))
    if result.tokens_per_s:
        parts.append(f"{result.tokens_per_s:,.0f} tokens/s")
    return "".join(f", {part}" for part in parts)


def next_commands(ended: Ended, out: Path) -> list[str]:
    if ended.interrupted:
        return [resume_command(out)]
    return [
        f"handgrad generate {quoted(out)} --temperature 0.8",
        f"{resume_command(out)} --steps {2 * max(ended.result.step, 1)}",
    ]


def resume_command(out: Path) -> str:
    return f"handgrad train --out {quoted(out)} --resume"


def reported(out: Path, output: Output) -> Path | None:
    """The report of a run that is done and saved: what keeps the page from being written is only said."""
    try:
        return write_run_report(out)
    except HandgradError as error:
        output.note(f"there is no report: {error}")
        return None
