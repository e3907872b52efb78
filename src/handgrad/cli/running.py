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
from handgrad.cli.output import NoOutput, Output, duration
from handgrad.cli.progress import Shown, preparing
from handgrad.cli.reporting import write_run_report
from handgrad.cli.settings import Settings, check_name
from handgrad.cli.waiting import waiting
from handgrad.core.errors import ConfigError, FileError, HandgradError
from handgrad.data.corpus import Corpus
from handgrad.data.tokens import prepare
from handgrad.train import loop
from handgrad.train.config import read_toml
from handgrad.train.lock import held
from handgrad.train.start import not_a_model

RUN_FILES = ("config.toml", "metrics.jsonl", "checkpoints")
LONGEST_NAME = 255  # bytes


@dataclass(frozen=True)
class Ended:
    """A run that ended, and the number of steps that it was to have (0: there was nothing left to do)."""

    result: loop.Result
    steps: int

    @property
    def interrupted(self) -> bool:
        return self.result.interrupted or self.result.step < self.steps


def run_folder(name: str) -> Path:
    """The folder that `--out` names. Raises ConfigError for a name that no folder can have.

    >>> run_folder("")
    Traceback (most recent call last):
    handgrad.core.errors.ConfigError: --out is empty; name the folder of the run, such as --out runs/first
    """
    if not name:
        raise ConfigError("--out is empty; name the folder of the run, such as --out runs/first")
    check_name(name, "--out")
    out = Path(name)
    for part in out.parts:
        if len(part.encode()) > LONGEST_NAME:
            raise ConfigError(
                f"--out has a name of {len(part.encode())} bytes in it, {part[:20]}..., and most systems take at most "
                f"{LONGEST_NAME}; choose a shorter one"
            )
    try:
        out.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise FileError(f"cannot use {shown!r} as a run folder: {getattr(error, 'strerror', None) or error}") from None
    return out


def refuse_taken(out: Path) -> None:
    """ConfigError where `out` holds a run, before its tokens could be replaced by others."""
    for name in RUN_FILES:
        if (out / name).exists():
            raise ConfigError(
                f"{out} already holds a run ({name} is there), and it is left as it is. "
                f"Go on with it ({resume_command(out)}), or choose another folder"
            )
    not_a_model(out)


def fresh(out: Path, settings: Settings, output: Output) -> Ended:
    """Tokens into `out`/data, then a run from its first step; nothing is written for data that cannot be trained on."""
    with held(out):
        refuse_taken(out)
        with preparing(output) as progress:
            corpus = prepare(
                settings.sources,
                settings.tokenizer,
                out / "data",
                vocab_size=settings.vocab_size,
                progress=progress,
                accept=settings.check_tokens,
            )
        n, asked = corpus.tokenizer.vocab_size, getattr(corpus.tokenizer, "asked", 0)
        if n < asked:
            output.note(f"bpe:{asked} became {n:,} tokens: in this text no more pairs of tokens come at least twice")
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
    with suppress(BrokenPipeError, NoOutput):  # whoever read the records may have left; people are still told
        output.record({"result": fields})
    configured = configured_steps(ended, out)
    short = not ended.interrupted and result.step < configured
    head = "saved" if ended.interrupted else "so far:" if short else "done:"
    output.text(f"{head} step {result.step:,}{f' of {configured:,}' if short else ''}{summary(ended)}")
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
        choices = equally_likely(result.val_loss_nats)
        parts.append(f"validation loss {figure(result.val_loss_nats)} nats a token (as unsure as among {choices})")
        if result.val_step is not None and result.val_step != result.step:
            parts[-1] += f", measured at step {result.val_step:,}"
    elif result.loss_nats is not None:
        parts.append(f"loss {figure(result.loss_nats)} nats a token")
    parts.append(duration(result.elapsed_s))
    if result.tokens_per_s:
        parts.append(f"{result.tokens_per_s:,.0f} tokens/s")
    return "".join(f", {part}" for part in parts)


def equally_likely(loss_nats: float) -> str:
    """How many equally likely tokens have this loss.

    >>> equally_likely(2.0), equally_likely(1000.0)
    ('7.39 equally likely tokens', 'more than 1e300 equally likely tokens')
    """
    return (
        f"{math.exp(loss_nats):.3g} equally likely tokens"
        if loss_nats < 690
        else ("more than 1e300 equally likely tokens")
    )


def figure(value: float) -> str:
    """A loss with three decimals, or with a power of ten where that would be long.

    >>> figure(2.0), figure(1e12)
    ('2.000', '1e+12')
    """
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.4g}"


def next_commands(ended: Ended, out: Path) -> list[str]:
    if ended.interrupted:
        return [resume_command(out)]
    return [f"handgrad generate {quoted(out)} --temperature 0.8", onward(out, ended, configured_steps(ended, out))]


def onward(out: Path, ended: Ended, configured: int) -> str:
    """To the end of the run as configured; from there, to twice its steps."""
    step = ended.result.step
    return resume_command(out) if step < configured else f"{resume_command(out)} --steps {2 * max(step, 1)}"


def configured_steps(ended: Ended, out: Path) -> int:
    """The steps in config.toml, which a session with fewer steps left as they were."""
    try:
        return read_toml(out / "config.toml").train_config.steps
    except HandgradError:
        return ended.steps


def resume_command(out: Path) -> str:
    try:
        command = "finetune" if read_toml(out / "config.toml").finetune else "train"
    except HandgradError:
        command = "train"
    return f"handgrad {command} --out {quoted(out)} --resume"


def reported(out: Path, output: Output) -> Path | None:
    """The report of a run that is done and saved: what keeps the page from being written is only said."""
    try:
        with waiting("writing the report", output.live):
            return write_run_report(out)
    except HandgradError as error:
        output.note(f"there is no report: {error}")
        return None
