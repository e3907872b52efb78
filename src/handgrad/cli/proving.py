"""What `handgrad equations`, `handgrad mistakes` and `handgrad explain` do once their options are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from handgrad.check.equation import Equation
from handgrad.check.explain import explain, table
from handgrad.check.mistakes import MISTAKES
from handgrad.check.registry import DOCS, EQUATIONS, equation, missing, status
from handgrad.check.tables import Planted, as_csv, plant, write
from handgrad.cli.output import Output
from handgrad.cli.waiting import waiting
from handgrad.models.found import find
from handgrad.models.load import load
from handgrad.models.model import Model
from handgrad.models.store import read_state
from handgrad.train.config import flag

SETTINGS = ("dtype", "implementation", "recompute", "update", "compile")


def show_equations(ids: Sequence[str], check: bool, output: Output) -> int:
    """Print the rows; 1 when one of them lacks something, or its check fails. Raises UnknownName for an id."""
    rows = [equation(id) for id in ids] or list(EQUATIONS)
    verdicts: dict[str, str] = {}
    for e in followed(rows, "checked", output) if check else rows:
        verdicts[e.id] = status(e) if check else "; ".join(missing(e)) or "complete"
    for e in rows:
        output.record(asdict(e) | {"status": verdicts[e.id]})
    for name, section in groupby(rows, key=lambda e: e.section):
        output.text(f"\n{name}" + "".join(f"\n{as_text(e, verdicts[e.id])}" for e in section))
    bad = [id for id, verdict in verdicts.items() if verdict not in ("ok", "complete")]
    share = (len(rows) - len(bad)) / len(rows)
    places = "code, page" if DOCS.is_dir() else "code (the docs did not come along)"
    what = f"with {places} and {'a check that holds' if check else 'check'}"
    output.text(f"\n{len(rows) - len(bad)} of {len(rows)} equations ({share:.0%}) {what}")
    output.record({"equations": len(rows), "complete": len(rows) - len(bad), "checked": check})
    return 1 if bad else 0


def as_text(e: Equation, verdict: str) -> str:
    optional = " (optional)" if e.optional else ""
    return "\n".join(
        [
            f"  {e.id}{optional}: {verdict}",
            f"    forward   {e.forward}",
            f"    backward  {e.backward}",
            f"    code      {e.code}",
            f"    page      docs/{e.page}",
            f"    check     {e.check}",
        ]
    )


def show_mistakes(out: Path | None, output: Output) -> int:
    """Plant all mistakes and print the table; 1 when one is missed or seen elsewhere. Raises FileError."""
    rows: list[Planted] = []
    for mistake in followed(MISTAKES, "planted", output):
        rows.append(plant(mistake))
        output.record(asdict(rows[-1]) | {"ok": rows[-1].ok})
    shown = [(r.rule, r.planted, r.seen or "nowhere", r.expected, "yes" if r.ok else "NO") for r in rows]
    output.text(table(("rule", "what was planted", "first seen at", "expected", "ok"), shown))
    missed = [r for r in rows if not r.ok]
    rules = Counter(r.rule for r in rows)
    output.text(
        f"\n{len(rows)} mistakes planted in {len(rules)} files, {len(rows) - len(missed)} seen where they were expected"
    )
    output.record({"mistakes": len(rows), "ok": len(rows) - len(missed)})
    if out is not None:
        write(out, as_csv(rows))
        output.note(f"written: {out}")
    return 1 if missed else 0


def show_model(name: str, output: Output) -> None:
    """Layers, equations and gradients of the model of that name, and what its training was set to. FileError."""
    with waiting(f"loading {name}", output.live):
        settings, model = trained_with(name), load(name)
    found = explain(model, str(settings.get("implementation", "")))
    for layer in found.layers:
        output.record(asdict(layer))
    for gradient in found.gradients:
        output.record(asdict(gradient))
    output.record({"total": found.total})
    output.text(str(found))
    if settings:
        now = run_now(model)
        output.record({"trained_with": settings, "now": now})
        rows = [(flag(name), word(value), word(now[name])) for name, value in settings.items()]
        output.text("\n" + table(("setting", "in training", "in a pass now"), rows))


def trained_with(name: str) -> dict[str, object]:
    """How the passes of a run's training were made, which need not be how the model runs now; {} where nobody knows."""
    source = find(name)
    if source.kind != "checkpoint":
        return {}
    state = read_state(source.path)
    train = state["train"] if state["step"] else {}  # a model that was imported was not trained here
    return {field: train[field] for field in SETTINGS if field in train}


def run_now(model: Model) -> dict[str, object]:
    """The same settings, as a pass has them that nobody asked anything of: it trains nothing."""
    dtype = str(model.params.flat.dtype).removeprefix("torch.")
    how = {"dtype": dtype, "implementation": model.run.implementation, "recompute": "nothing"}
    return how | {"update": "none", "compile": False}


def word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def followed(items: Sequence[Any], done: str, output: Output) -> Iterator[Any]:
    """The items, with a bar and the time left on a terminal."""
    if not output.live:
        yield from items
        return
    columns = (BarColumn(bar_width=24), TextColumn(f"{{task.completed}}/{{task.total}} {done}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        yield from bar.track(items, total=len(items))
