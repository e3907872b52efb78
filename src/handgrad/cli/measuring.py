"""What `handgrad lab` does once its options are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from handgrad.cli.options import problems, quoted
from handgrad.cli.output import Output, duration
from handgrad.cli.proving import table
from handgrad.core.errors import ConfigError, FileError, HandgradError, unknown
from handgrad.data.files import read_json, replacing
from handgrad.lab.argument import STEPS
from handgrad.lab.fit import Fit, train
from handgrad.lab.record import read, record, rungs_of, text_of
from handgrad.lab.report import write_lab
from handgrad.lab.run import MAX_BYTES, RESULTS, Hears, Ran, assembled
from handgrad.lab.run import run as run_steps
from handgrad.lab.rung import Rung, Sizes, network, width_for
from handgrad.lab.rungs import RUNGS, difference, rung
from handgrad.lab.steps import FAILS, HOLDS, OPEN, UNSURE, Number, Step, Trial
from handgrad.lab.tasks import TRAIN, Patterns, Pocket, Recall, Task, batch_of
from handgrad.train.interrupt import ctrl_c

TASKS: dict[str, type] = {task.name: task for task in (Recall, Pocket, Patterns)}
PAGE, DATA = "lab.html", "lab.json"
INTERRUPTED = 130
LINE_EVERY_S = 20.0


# ---- list ---------------------------------------------------------------------------------------------------------
def show_list(output: Output) -> None:
    for one in RUNGS.values():
        output.record({"rung": one.name, "title": one.title, "question": one.question, "before": one.before})
    for name, kind in TASKS.items():
        output.record({"task": name, "settings": defaults(kind)})
    for step in STEPS:
        output.record({"step": step.name, "question": step.question, "trials": len(step.trials())})
    output.text(table(("rung", "what it is", "changes"), [(r.name, r.title, r.before) for r in RUNGS.values()]))
    rows = [(name, " ".join(f"{n}={v}" for n, v in defaults(kind).items())) for name, kind in TASKS.items()]
    output.text("\n" + table(("task", "--set"), rows))
    if STEPS:
        steps = [(s.name, s.question, str(len(s.trials()))) for s in STEPS]
        output.text("\n" + table(("step", "question", "trials"), steps))


def defaults(kind: type) -> dict[str, Any]:
    return {f.name: f.default for f in fields(kind)}


# ---- run ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Compared:
    """The options of one `handgrad lab run`. Raises ConfigError for what cannot be, all of it together."""

    rungs: tuple[str, ...]
    task: str = "recall"
    settings: tuple[str, ...] = ()
    seeds: int = 3
    steps: int = 500
    width: int = 64
    layers: int = 2
    functions: int = 4
    parameters: int = 0
    batch: int = 64
    lr: float = 3e-3

    def __post_init__(self) -> None:
        counts = ("seeds", "steps", "width", "layers", "functions")
        counted = [(f"--{name}", getattr(self, name)) for name in counts] + [("--batch-size", self.batch)]
        wrong = [f"{option} is {n}, and must be at least 1" for option, n in counted if n < 1]
        wrong += [f"--parameters is {self.parameters}, and must be 0 or more"] if self.parameters < 0 else []
        wrong += [] if 0 < self.lr < inf else [f"--lr is {self.lr}, and must be above 0 and finite"]
        if wrong:
            raise ConfigError(problems(wrong))

    def about(self) -> Task:
        """The task with its settings. Raises UnknownName and ConfigError."""
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        known = defaults(TASKS[self.task])
        given = {}
        for text in self.settings:
            name, equals, number = text.partition("=")
            if name not in known:
                raise ConfigError(f"--set {text!r}: the task {self.task} has {', '.join(known)}")
            if not equals or not number.isascii() or not number.isdigit() or len(number) > 5:
                raise ConfigError(f"--set {text!r} must be {name}= and a whole number, such as {name}={known[name]}")
            given[name] = int(number)
        task: Task = TASKS[self.task](**given)
        try:
            ids, _ = batch_of(task, 1, 0, TRAIN, 0)
            right = ids.numel() > 0 and 0 < task.chance <= 1
        except (RuntimeError, ZeroDivisionError, IndexError):
            right = False
        if not right:
            raise ConfigError(f"--set {' '.join(self.settings)}: a {self.task} of these sizes cannot be drawn")
        return task

    def sizes(self, one: Rung, task: Task) -> Sizes:
        own = Sizes(self.width, max(task.length, Sizes().context), self.functions, layers=self.layers)
        return width_for(one, own, self.parameters) if self.parameters else own


def compare(asked: Compared, output: Output) -> int:
    """Train the rungs, seed by seed, and print the table; 130 where Ctrl-C cut it short. Raises HandgradError."""
    chosen, task = [rung(name) for name in dict.fromkeys(asked.rungs)], asked.about()
    sizes = {one.name: asked.sizes(one, task) for one in chosen}
    for one in chosen:  # what cannot be built is refused before anything is trained
        network(one, task.vocabulary, sizes[one.name])
    found: dict[str, list[dict[str, Any]]] = {one.name: [] for one in chosen}
    work, status = [(seed, one) for seed in range(asked.seeds) for one in chosen], 0
    with shown(output, len(work)) as told:
        try:
            for i, (seed, one) in enumerate(work):
                fit = Fit(steps=asked.steps, batch=asked.batch, lr=asked.lr, seed=seed)
                say = lambda what, part, i=i, seed=seed: told(f"seed {seed}, {what}", i + part)  # noqa: E731
                say(one.title, 0.0)
                result = train(one, task, sizes[one.name], fit, say)[1]
                found[one.name].append(result)
                output.record(result)
        except KeyboardInterrupt:
            status = INTERRUPTED
    rows = [row(one, sizes[one.name], found[one.name]) for one in chosen]
    if status:
        output.note(f"interrupted: {sum(map(len, found.values()))} of {len(work)} runs are in the table")
    heads = ("rung", "accuracy", "95 % interval", "parameters", "fixed state", "a token", "steps", "seconds", "seeds")
    output.text(table(heads, [cells(r) for r in rows]))
    output.text(f"task {asked.task}: {task.length} tokens, chance {task.chance:.1%}; state in bytes of float32")
    for r in rows:
        output.record(r)
    return status


def row(one: Rung, sizes: Sizes, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the seeds of one rung came to; a run that diverged before it was measured counts as diverged, not as 0."""
    right = [r["accuracy"] for r in results if r["accuracy"] is not None]
    mean = Number.over("accuracy", right) if right else None
    kept = one.state_bytes(sizes, 0)
    return {
        "rung": one.name,
        "accuracy": mean.value if mean else None,
        "low": mean.low if mean else None,
        "high": mean.high if mean else None,
        "seeds": len(results),
        "diverged": sum(bool(r["diverged"]) for r in results),
        "width": sizes.width,
        "parameters": results[0]["parameters"] if results else None,
        "fixed_state_bytes": kept,
        "state_bytes_per_token": one.state_bytes(sizes, 1) - kept,
        "steps": sum(r["steps"] for r in results) / len(results) if results else None,
        "seconds": sum(r["seconds"] for r in results) / len(results) if results else None,
    }


def cells(r: Mapping[str, Any]) -> tuple[str, ...]:
    if not r["seeds"]:
        return (r["rung"], "not measured", "", "", "", "", "", "", "0")
    between = "" if r["low"] is None else f"{max(r['low'], 0):.1%} to {min(r['high'], 1):.1%}"
    accuracy = "diverged" if r["accuracy"] is None else f"{r['accuracy']:.1%}"
    seeds = f"{r['seeds']}" + (f" ({r['diverged']} diverged)" if r["diverged"] else "")
    sizes = (f"{r['parameters']:,}", f"{r['fixed_state_bytes']:,}", f"{r['state_bytes_per_token']:,}")
    return (r["rung"], accuracy, between, *sizes, f"{r['steps']:.0f}", f"{r['seconds']:.1f}", seeds)


# ---- all ----------------------------------------------------------------------------------------------------------
def measure_all(folder: Path, budget: float | None, output: Output, steps: Sequence[Step] | None = None) -> int:
    """Do what the folder does not hold yet, then write the page; 130 after Ctrl-C. Raises HandgradError."""
    chosen = chosen_steps(steps)
    if budget is not None and not 0 <= budget < inf:
        raise ConfigError(f"--budget is {budget}, and must be a number of minutes, 0 or more")
    if folder.exists() and not folder.is_dir():
        raise FileError(f"--out {folder} is a file, and must be a folder")
    # the same trial in two steps is done once
    total = sum({t.key: t.seconds for step in chosen for t in step.trials()}.values())
    limit = "" if budget is None else f"; a budget of {budget:g} min cuts what does not fit"
    output.note(f"{len(chosen)} steps, about {duration(total)} of work on two cores{limit}; Ctrl-C keeps what is done")
    limit_s = inf if budget is None else 60 * budget
    with shown(output, total, limit_s) as told, ctrl_c() as pressed:
        ran = run_steps(quickest_first(chosen), folder, budget, Heard(output, told), pressed)
    written(folder, chosen, ran, budget, output)
    return INTERRUPTED if ran.interrupted else 0


def quickest_first(steps: Sequence[Step]) -> list[Step]:
    """So that one long training does not use up a budget in which all the quick ones had room."""
    return sorted(steps, key=lambda step: sum(trial.seconds for trial in step.trials()))


def report_again(folder: Path, output: Output, steps: Sequence[Step] | None = None) -> None:
    """The page and the record, from the results in the folder, or from its lab.json alone. Raises HandgradError."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}. `handgrad lab all --out {quoted(folder)}` makes one.")
    old = read(folder / DATA) if (folder / DATA).exists() else None
    if not any((folder / RESULTS).glob("*.json")):
        if old is None:
            raise FileError(f"{folder} holds neither {RESULTS} nor {DATA} of a laboratory")
        write_page(folder, old, output)
        return
    chosen = chosen_steps(steps)
    ran = run_steps(chosen, folder, None, None, lambda: True)
    about = old["about"] if old else {}
    ran.interrupted, budget = bool(about.get("interrupted", False)), about.get("budget minutes")
    written(folder, chosen, ran, float(budget) if isinstance(budget, int | float) else None, output)


def chosen_steps(steps: Sequence[Step] | None) -> Sequence[Step]:
    found = STEPS if steps is None else steps
    if not found:
        raise ConfigError("the laboratory has no steps to measure; `handgrad lab run` compares rungs")
    return found


def written(folder: Path, steps: Sequence[Step], ran: Ran, budget: float | None, output: Output) -> None:
    content = assembled(steps, ran, budget)
    content["seconds"] = spent(folder)
    done = len({key for results in ran.results.values() for key in results})
    found = record(content, rungs_of(RUNGS, difference), trials=done, interrupted=ran.interrupted)
    with replacing(folder / DATA) as file:
        file.write(text_of(found).encode())
    for step in found["steps"]:
        finding = step["finding"]
        told = {"verdict": finding["verdict"], "because": finding["because"], "numbers": finding["numbers"]}
        output.record({"step": step["name"], "question": step["question"], **told})
        output.text(f"{step['name']:<16} {finding['verdict']:<20} {finding['because']}")
    if ran.cut:
        why = "cut by Ctrl-C" if ran.interrupted else f"cut by the budget of {budget:g} min"
        why = "not yet done" if budget is None and not ran.interrupted else why
        output.note(f"{why}: " + ", ".join(f"{len(keys)} of {name}" for name, keys in ran.cut.items()))
        output.note(f"`handgrad lab all --out {quoted(folder)}` goes on from here")
    write_page(folder, found, output)


def write_page(folder: Path, found: Mapping[str, Any], output: Output) -> None:
    size = write_lab(found, folder / PAGE)
    verdicts = [step["finding"]["verdict"] for step in found["steps"]]
    counts = {verdict: verdicts.count(verdict) for verdict in (HOLDS, FAILS, UNSURE, OPEN)}
    output.record({"page": folder / PAGE, "data": folder / DATA, "verdicts": counts, "bytes": size})
    said = ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n)
    output.text(f"{quoted(folder / PAGE)} ({said or 'no steps'})")


def spent(folder: Path) -> float:
    """Seconds that went into the results of the folder, over all the runs that made them."""
    total = 0.0
    for path in (folder / RESULTS).glob("*.json"):
        try:
            total += float(read_json(path, MAX_BYTES)["seconds"])
        except (HandgradError, OSError, ValueError, KeyError, TypeError, OverflowError):
            continue
    return round(total, 1)


# ---- progress -----------------------------------------------------------------------------------------------------
@contextmanager
def shown(output: Output, total: float, limit_s: float = inf) -> Iterator[Any]:
    """Gives a `told(what, done, kept=0)`: a bar on a terminal, now and then a line where there is none.

    No more is left than until `limit_s`.
    """
    began, last, first = monotonic(), -LINE_EVERY_S, 0.0
    bar, task = None, TaskID(0)
    if output.live:
        columns = (BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.fields[what]}"))
        bar = Progress(*columns, console=Console(stderr=True, highlight=False, markup=False))
        task = bar.add_task("", total=total, what="")
        bar.start()

    def told(what: str, done: float, kept: float = 0.0) -> None:
        """`kept` of `done` was there before, and says nothing about the speed."""
        nonlocal last, first
        first = max(first, kept)
        now, part = monotonic() - began, (done - first) / max(total - first, 1e-9)
        left_s = min(now * (1 - part) / part if part > 0.01 and now > 2 else inf, max(limit_s - now, 0.0))
        left = "" if left_s == inf else f", {duration(left_s)} left"
        text = f"{what}{left}".replace("[", "(").replace("]", ")")
        if bar is not None:
            bar.update(task, completed=done, what=text)
        elif now - last >= LINE_EVERY_S:
            last = now
            output.note(f"{min(done / max(total, 1e-9), 1):4.0%}  {text}")

    try:
        yield told
    finally:
        if bar is not None:
            bar.stop()


class Heard(Hears):
    """What a run of all steps does, for the bar: trials count by the seconds that they were said to take."""

    def __init__(self, output: Output, told: Any) -> None:
        self.output, self.told = output, told
        self.done, self.kept, self.seen = 0.0, 0.0, set[str]()
        self.step, self.seconds = "", 0.0

    def begins(self, step: Step, trial: Trial, number: int, of: int) -> None:
        self.step, self.seconds = f"{step.name} ({number} of {of})", trial.seconds
        self.told(self.step, self.done, self.kept)

    def does(self, what: str, part: float) -> None:
        self.told(f"{self.step}: {what}", self.done + part * self.seconds, self.kept)

    def ends(self, step: Step, trial: Trial, seconds: float, kept: bool) -> None:
        self.count(trial, kept)
        if not kept:
            self.output.record({"step": step.name, "trial": trial.key, "seconds": round(seconds, 3)})

    def cuts(self, step: Step, trial: Trial) -> None:
        self.count(trial, True)

    def fails(self, step: Step, trial: Trial, why: str) -> None:
        self.count(trial, False)
        self.output.note(f"{step.name}: {trial.key} could not be done: {why}")

    def count(self, trial: Trial, kept: bool) -> None:
        if trial.key not in self.seen:
            self.seen.add(trial.key)
            self.done += trial.seconds
            self.kept += trial.seconds * kept
