"""What `handgrad demo` does: measure the machine, choose a number of steps that fits, say what to expect, check it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import typer

from handgrad.cli.options import problems
from handgrad.cli.output import Output, duration
from handgrad.cli.presets import PRESETS
from handgrad.cli.progress import preparing
from handgrad.cli.reference import unigram_nats
from handgrad.cli.reporting import sample_of
from handgrad.cli.running import refuse_taken, reported, run_folder, tell_result, trained
from handgrad.cli.settings import Settings, resolve
from handgrad.core.errors import ConfigError
from handgrad.data.corpus import Corpus
from handgrad.data.tokens import prepare
from handgrad.train import loop
from handgrad.train.config import TrainConfig
from handgrad.train.lock import held

STATED_LOSS_NATS = 2.0
STATED_STEPS = 1000  # a run of fewer steps is held to the frequencies alone
MOST_MINUTES = 24 * 60
LEAST_STEPS, MOST_STEPS = 100, 3000
SLOW_STEPS_PER_S = 2.0
SHARE = 0.8  # of the time asked for; the rest is for validation, the report, and a machine that slows down
N_VALIDATIONS = 10
TRIAL_STEPS, TRIAL_SKIPPED, TRIAL_TOKENS = 25, 5, 20_000


def show(name: str | None, minutes: float, seed: int, output: Output) -> None:
    """The demo. Raises ConfigError for numbers that cannot be and for a folder that is taken."""
    wrong = []
    if not (isfinite(minutes) and 0 < minutes <= MOST_MINUTES):
        wrong.append(f"--minutes is {minutes}, and must be above 0 and at most {MOST_MINUTES}")
    if not 0 <= seed < 1 << 63:
        wrong.append(f"--seed is {seed}, and must be a whole number of at least 0")
    if wrong:
        raise ConfigError(problems(wrong))
    out = free_folder(Path("runs") / "demo") if name is None else run_folder(name)
    refuse_taken(out)
    with held(out):
        refuse_taken(out)
        output.note("text: the documentation that comes with Python; tokens: its characters")
        with preparing(output) as progress:
            corpus = prepare(["embedded"], "chars", out / "data", progress=progress)
        output.note(f"measuring this machine: {TRIAL_STEPS} steps of a model that is thrown away")
        settings = fitted(corpus, minutes * 60, seed, output)
        expected = expectation(corpus, settings.train.steps)
        output.note(expected.before)
        ended = trained(out, settings, corpus, output)
    if ended.interrupted:
        tell_result(ended, out, None, output)
        raise typer.Exit(130)
    prompt, text = sample_of(out, seed)
    output.text(f"\nwhat it writes after {prompt!r}:\n\n{text}\n")
    report = reported(out, output)
    found = ended.result.val_loss_nats
    reached = found is not None and found < expected.loss_nats
    tell_result(
        ended,
        out,
        report,
        output,
        expected.after(found, reached),
        frequencies_nats=expected.frequencies_nats,
        expected_nats=expected.loss_nats,
        reached=reached,
        sample=text,
    )


@dataclass(frozen=True)
class Expectation:
    """What the validation loss must fall below: the frequencies of tokens, and after a whole run a stated figure."""

    frequencies_nats: float
    loss_nats: float

    @property
    def before(self) -> str:
        text = (
            f"who knew only how often each character occurs would have a loss of {self.frequencies_nats:.2f} nats; "
            f"this model must fall below {self.loss_nats:.2f} on text that it never learns from"
        )
        whole = self.loss_nats < self.frequencies_nats
        return text if whole else f"{text} (a run this short is held to no more)"

    def after(self, found: float | None, reached: bool) -> str:
        if found is None:
            return "the validation loss is not known: the text is too short to set a part of it aside"
        if reached:
            return f"it fell below {self.loss_nats:.2f}, as stated: {found:.3f}"
        return f"it did NOT fall below {self.loss_nats:.2f}, as stated before: {found:.3f}. More --minutes may help"


def expectation(corpus: Corpus, steps: int) -> Expectation:
    training, validation = corpus.split()
    frequencies = unigram_nats(training, validation, corpus.tokenizer.vocab_size)
    return Expectation(frequencies, min(STATED_LOSS_NATS, frequencies) if steps >= STATED_STEPS else frequencies)


def fitted(corpus: Corpus, budget_s: float, seed: int, output: Output) -> Settings:
    """The settings of the demo, with as many steps as fit the time; the schedule then ends where the run ends."""
    steps_per_s, validation_s = speed(corpus, seed)
    steps = steps_for(budget_s, steps_per_s, validation_s)
    took_s = steps / steps_per_s + N_VALIDATIONS * validation_s
    output.note(f"{steps_per_s:.1f} steps a second: {steps:,} steps, about {duration(took_s)}")
    for line in remarks(budget_s, steps_per_s, steps, took_s):
        output.note(line)
    return demo_settings(steps, seed)


def remarks(budget_s: float, steps_per_s: float, steps: int, took_s: float) -> list[str]:
    """What to say where the least number of steps takes longer than was asked for, and where all is very slow.

    >>> remarks(budget_s=30, steps_per_s=0.7, steps=LEAST_STEPS, took_s=175)[0]
    '0.5 minutes were asked; the demo needs at least 100 steps, here about 2 min 55 s'
    """
    said = []
    if steps == LEAST_STEPS and took_s > budget_s:
        minutes = f"{budget_s / 60:g} minute{'' if budget_s == 60 else 's'} {'was' if budget_s == 60 else 'were'} asked"
        said.append(f"{minutes}; the demo needs at least {LEAST_STEPS} steps, here about {duration(took_s)}")
    if steps_per_s < SLOW_STEPS_PER_S:
        said.append("on a busy machine OMP_NUM_THREADS=1 is often faster")
    return said


def steps_for(budget_s: float, steps_per_s: float, validation_s: float) -> int:
    """Whole tens of steps that fit into a share of the time, validations included.

    >>> steps_for(budget_s=120, steps_per_s=20.0, validation_s=0.6), steps_for(1, 20.0, 0.6), steps_for(3600, 20.0, 0.6)
    (1800, 100, 3000)
    """
    fit = int((SHARE * budget_s - N_VALIDATIONS * validation_s) * steps_per_s) // 10 * 10
    return min(max(fit, LEAST_STEPS), MOST_STEPS)


def demo_settings(steps: int, seed: int) -> Settings:
    flags = {"steps": steps, "seed": seed, "tokenizer": "chars", "warmup": min(100, steps // 10)}
    often = {"validate_every": max(10, steps // (N_VALIDATIONS - 1)), "save_every": max(100, steps // 4)}
    return resolve(flags | often, ["embedded"], "demo", None)


@dataclass
class Rates:
    """An observer that keeps the tokens/s of every step."""

    tokens_per_s: list[float] = field(default_factory=list)

    def started(self, info: Mapping[str, Any]) -> None: ...
    def said(self, message: str) -> None: ...
    def finished(self, result: object) -> None: ...

    def stepped(self, record: Mapping[str, Any]) -> None:
        if "tokens_per_s" in record:
            self.tokens_per_s.append(record["tokens_per_s"])


def speed(corpus: Corpus, seed: int) -> tuple[float, float]:
    """Steps a second of the demo's model on this machine, and the seconds of one validation.

    A validation is forward only, a third of the work of a step on as many tokens. Raises KeyboardInterrupt after
    Ctrl-C: there is nothing here worth keeping.
    """
    settings, rates = demo_settings(LEAST_STEPS, seed), Rates()
    config = TrainConfig(**{**PRESETS["demo"].train, "steps": 2 * TRIAL_STEPS, "seed": seed})
    tokens: Any = corpus.tokens[:TRIAL_TOKENS]
    some = Corpus(tokens, corpus.tokenizer, corpus.folder, len(tokens))
    with tempfile.TemporaryDirectory() as folder:
        # Ended from outside, well before its own end: a run that is in its last step does not tell of Ctrl-C.
        result = loop.train(
            folder,
            settings.model_config(corpus.tokenizer.vocab_size),
            config,
            some,
            observer=rates,
            keep_going=lambda: len(rates.tokens_per_s) < TRIAL_STEPS - 1,
        )
    if result.interrupted:
        raise KeyboardInterrupt
    tokens_per_s = median(rates.tokens_per_s[TRIAL_SKIPPED:])
    per_step = config.batch_size * config.accumulate * PRESETS["demo"].model["context"]
    return tokens_per_s / per_step, len(corpus.split()[1]) / (3 * tokens_per_s)


def free_folder(wanted: Path) -> Path:
    """`wanted`, or the first of `wanted`-2, `wanted`-3, … that is not there yet."""
    folder, n = wanted, 1
    while folder.exists():
        n += 1
        folder = wanted.with_name(f"{wanted.name}-{n}")
    return folder
