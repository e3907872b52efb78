"""Writes docs/lab.md from docs/lab/lab.json, the recorded full run of `handgrad lab all`; without one it says so.

python tools/lab_page.py                    writes it
python tools/lab_page.py --check            exits with 1 if docs/lab.md is not up to date
python tools/lab_page.py --from RUN_FOLDER  records that run first: its lab.json becomes docs/lab/lab.json
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handgrad.lab.record import read, text_of
from handgrad.lab.report import answers, arranged, interval, value

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs" / "lab.md", ROOT / "docs" / "lab" / "lab.json"
NOTHING: dict[str, Any] = {"format": "handgrad lab 1", "about": {}, "rungs": {}, "steps": []}
HEAD = """# The laboratory

The Transformer rebuilt from a recurrent network, one choice at a time, each measured. `handgrad lab all --out runs/lab
--budget 20` measures it on your machine and writes `lab.html`, which shows what this page shows with plots, diagrams
and the code of each step. This page is made by `python tools/lab_page.py`.
"""
EMPTY = "\n**Not recorded yet.** The argument stands below; its figures come with the first recorded run.\n"


def page(found: Mapping[str, Any] | None) -> str:
    """The page as Markdown; None for no run."""
    sections = arranged(found or NOTHING)
    out = [HEAD, EMPTY if found is None else told(found)]
    if found is not None:
        out += ["\n## The answers\n", "| question | answer | verdict |", "| --- | --- | --- |"]
        for a in answers(found["steps"]):
            out.append(f"| [{cell(a.question)}](#{a.anchor}) | {cell(a.number)}. {cell(a.because)} | {a.verdict} |")
    for section in sections:
        chapter = section.chapter
        out.append(f"\n## {cell(chapter.title)} {{ #{anchor(chapter.name)} }}\n")
        if chapter.text:
            out.append(f"**{cell(chapter.question)}** {cell(chapter.text)}\n")
        if chapter.formula:
            out.append(f"$${chapter.formula}$$\n")
        if not section.steps and found is not None:
            out.append("Not measured in this run.\n")
        for step in section.steps:
            out += measured(step)
    return "\n".join(out).rstrip() + "\n"


def told(found: Mapping[str, Any]) -> str:
    facts = [f"{k} {v}" for k, v in found["about"].items() if isinstance(v, str | int | float)]
    cut = found["about"].get("cut") or []
    left = f" {len(cut)} trials were cut." if cut else ""
    return f"\nThe recorded run: {cell(', '.join(facts))}.{left}\n"


def measured(step: Mapping[str, Any]) -> list[str]:
    """A step: claim, verdict, numbers, notes."""
    finding = step["finding"]
    out = [f"*{cell(step['claim'])}*\n", f"**{finding['verdict']}**: {cell(finding['because'])}\n"]
    if finding["numbers"]:
        out += ["| measured | value | 95 % interval |", "| --- | --- | --- |"]
        out += [f"| {cell(labelled(n))} | {cell(value(n))} | {interval(n)} |" for n in finding["numbers"]]
        out.append("")
    return out + [f"- {cell(note)}" for note in finding["notes"]] + [""] * bool(finding["notes"])


def labelled(n: Mapping[str, Any]) -> str:
    return n["label"] + (f" (against {n['against']})" if n.get("against") else "")


def cell(text: str) -> str:
    """Text without what Markdown, HTML or the docs' formulas take for more than text.

    >>> cell("a|b <c> $d W_o")
    'a&#124;b &lt;c&gt; &#36;d W&#95;o'
    """
    shown = html.escape(" ".join(text.split()), quote=False)
    return shown.translate({ord(c): f"&#{ord(c)};" for c in "|*_`[]\\$"})


def anchor(name: str) -> str:
    return re.sub(r"[^\w-]", "-", name)


def main(arguments: list[str]) -> int:
    """Write or check the page; 1 where it is out of date."""
    parser = argparse.ArgumentParser(description="docs/lab.md from the recorded run of the laboratory")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--from", dest="run", type=Path, metavar="RUN_FOLDER")
    asked = parser.parse_args(arguments)
    if asked.run:
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_text(text_of(read(asked.run / "lab.json")), encoding="utf-8")
    text = page(read(DATA) if DATA.exists() else None)
    if asked.check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            print("docs/lab.md is not up to date; run python tools/lab_page.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
