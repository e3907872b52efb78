"""lab.html: the argument, and beside each claim what was measured of it, in one file that needs no network.

What is shown comes from a record (`lab.record`), all of it taken for hostile text: the template escapes it, plots
travel as JSON in a data block, and the page's policy allows its two scripts by their hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup, escape

from handgrad.inspect import report as page
from handgrad.inspect.text import number, printable
from handgrad.lab.chapters import CHAPTERS, DECIDES, Chapter
from handgrad.lab.formula import mathml
from handgrad.lab.plots import Drawn, drawn
from handgrad.lab.record import checked
from handgrad.lab.steps import FAILS, HOLDS, OPEN, SHARE, UNSURE
from handgrad.lab.words import WORDS

KINDS = {HOLDS: "holds", FAILS: "fails", UNSURE: "open", OPEN: "open"}  # verdict -> class of the style sheet
LINES_OF_DIFFERENCE = 60
ROWS = 10  # numbers of a step that are shown at once


class Answer(NamedTuple):
    """A row of the table at the top: a question, a number, a verdict, and where it is told."""

    question: str
    number: str
    because: str
    verdict: str
    kind: str
    anchor: str
    against: list[tuple[str, str]]  # other steps of the chapter that contradict it: (name, question)


class Section(NamedTuple):
    """A chapter with the steps that measure it; `verdict` is the deciding one's."""

    chapter: Chapter
    steps: list[Mapping[str, Any]]
    plots: dict[str, list[tuple[str, Drawn]]]
    rungs: list[tuple[str, Mapping[str, Any]]]


def render(record: Mapping[str, Any]) -> str:
    """The whole page as text, ready for UTF-8. Raises FileError where `record` is none.

    >>> text = render({"format": "handgrad lab 1", "about": {}, "rungs": {}, "steps": []})
    >>> text.startswith("<!DOCTYPE html>"), text.count("<section")
    (True, 15)
    """
    checked(record, "what is to be shown")
    sections = arranged(record)
    figures = {
        name: shown.plot.figure
        for section in sections
        for plots in section.plots.values()
        for name, shown in plots
        if shown.plot.figure is not None
    }
    plotly, script = page._plotly_script(), page._template_text("page.js") + text("lab.js")
    rendered: str = (
        environment()
        .get_template("lab.html")
        .render(
            record=record,
            sections=sections,
            answers=answers(record["steps"]),
            counts={verdict: sum(s["finding"]["verdict"] == verdict for s in record["steps"]) for verdict in KINDS},
            page_data={"figures": figures},
            css=Markup(page._template_text("report.css") + text("lab.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            hashes=[page._hash(plotly), page._hash(script)],
        )
    )
    return rendered


def write_lab(record: Mapping[str, Any], path: Path) -> int:
    """Write the page to `path` and return its bytes; an older file stays whole until the new one is. FileError."""
    return page.write_page(render(record), Path(path))


def arranged(record: Mapping[str, Any]) -> list[Section]:
    """All chapters in order, then a section for each step that none of them names."""
    by_name = {step["name"]: step for step in record["steps"]}
    named = {name for chapter in CHAPTERS for name in chapter.steps}
    rest = [alone(step) for name, step in by_name.items() if name not in named]
    return [section(chapter, by_name, record["rungs"]) for chapter in (*CHAPTERS, *rest)]


def alone(step: Mapping[str, Any]) -> Chapter:
    return Chapter(f"step-{step['name']}", step["question"], "", "", "", (step["name"],), ())


def section(chapter: Chapter, by_name: Mapping[str, Any], rungs: Mapping[str, Any]) -> Section:
    steps = steps_of(chapter, by_name)
    plots = {
        step["name"]: [
            (f"{step['name']}-{i}-{j}", one)
            for i, drawing in enumerate(step["finding"]["drawings"])
            for j, one in enumerate(drawn(drawing))
        ]
        for step in steps
    }
    names = dict.fromkeys([*chapter.rungs, *(name for step in steps for name in step["rungs"])])
    return Section(chapter, steps, plots, [(name, rungs[name]) for name in names if name in rungs])


def answers(steps: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """The questions of the table, each with the first number of the first step that has one."""
    by_name = {step["name"]: step for step in steps}
    found = []
    for chapter in CHAPTERS:
        if not chapter.asked:
            continue
        known = [by_name[name] for name in DECIDES.get(chapter.name, chapter.steps) if name in by_name]
        measured = [step for step in known if step["finding"]["verdict"] != OPEN] or known
        finding = measured[0]["finding"] if measured else {"verdict": OPEN, "because": "", "numbers": ()}
        value = told(finding["numbers"][0]) if finding["numbers"] else "no number yet"
        verdict, deciding = finding["verdict"], measured[:1]
        against = [step for step in steps_of(chapter, by_name) if step["finding"]["verdict"] == FAILS]
        others = [(step["name"], step["question"]) for step in against if step not in deciding]
        found.append(Answer(chapter.asked, value, finding["because"], verdict, KINDS[verdict], chapter.name, others))
    return found


def steps_of(chapter: Chapter, by_name: Mapping[str, Any]) -> list[Any]:
    return [by_name[name] for name in chapter.steps if name in by_name]


def value(n: Mapping[str, Any]) -> str:
    """A number with its unit.

    >>> value({"value": 4096.0, "unit": "functions"}), value({"value": None, "unit": ""})
    ('4096 functions', 'not a number')
    >>> value({"value": 0.4548, "unit": SHARE})
    '45.5 %'
    """
    return " ".join(part for part in (figure(n["value"], n["unit"]), n["unit"] if n["unit"] != SHARE else "") if part)


def figure(x: float | None, unit: str = "") -> str:
    if x is None:
        return "not a number"
    return f"{number(round(100 * float(x), 1))} %" if unit == SHARE else number(float(x))


def interval(n: Mapping[str, Any]) -> str:
    """Its 95 % interval, where it is a mean; empty otherwise."""
    if n.get("low") is None:
        return ""
    low, high = (figure(n[end], n["unit"]) for end in ("low", "high"))
    each = "; ".join(figure(x, n["unit"]) for x in n.get("each") or ())
    return f"{low} to {high} (n = {n['n']}{f': {each}' if each else ''})"


def told(n: Mapping[str, Any]) -> str:
    against = f", against: {n['against']}" if n.get("against") else ""
    return f"{n['label']}: {value(n)}" + (f", {interval(n)}" if interval(n) else "") + against


def formula(latex: str) -> Markup:
    """MathML, or the LaTeX itself as code where it cannot be read."""
    latex = printable(latex)
    if not latex.strip():
        return Markup("")
    try:
        return Markup(mathml(latex, display=True))
    except ValueError:
        return Markup("<code>") + escape(latex) + Markup("</code>")


@cache
def environment() -> Environment:
    """The report's own, with the templates and the words of this page."""
    theirs = page._environment()
    loader = ChoiceLoader([PackageLoader("handgrad.lab", "templates"), theirs.loader])
    found = theirs.overlay(loader=loader)
    found.globals |= {"interval": interval, "value": value, "formula": formula, "KINDS": KINDS, "Markup": Markup}
    found.globals |= {"LINES": LINES_OF_DIFFERENCE, "ROWS": ROWS, "WORDS": WORDS}
    return found


def text(name: str) -> str:
    return files("handgrad.lab").joinpath("templates", name).read_text(encoding="utf-8")
