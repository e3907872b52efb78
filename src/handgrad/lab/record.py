"""What the laboratory found, as one JSON object: enough to write its page again without measuring or loading anything.

{"format": "handgrad lab 1", "about": {...}, "rungs": {name: {...}}, "steps": [{..., "finding": {...}}]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from handgrad.core.errors import FileError
from handgrad.lab.steps import FAILS, HOLDS, OPEN, UNSURE, Drawing, Finding, Number, Step

FORMAT = "handgrad lab 1"
VERDICTS = (HOLDS, FAILS, UNSURE, OPEN)
NO_FINDING = Finding(OPEN, "Nothing was measured.")
MOST_BYTES, MOST_NUMBER = 64 << 20, 1e300


def record(content: Mapping[str, Any], rungs: Mapping[str, Mapping[str, Any]], **about: Any) -> dict[str, Any]:
    """The object, from what `run.assembled` gives and `rungs_of`; `about` adds names and values of the run.

    >>> record({"steps": [], "seconds": 3.0, "machine": {"cores": 2}}, {}, trials=4)["about"]
    {'cores': 2, 'trials': 4, 'seconds': 3.0, 'cut': [], 'could not be done': []}
    """
    told = {**content.get("machine", {}), **content.get("versions", {}), **about}
    told |= {
        name.replace("_", " "): content[name] for name in ("budget_minutes", "seconds") if content.get(name) is not None
    }
    told["cut"] = [f"{step}: {key}" for step, keys in content.get("cut", {}).items() for key in keys]
    failed = content.get("failed", {}).items()
    told["could not be done"] = [f"{step}: {key}: {why}" for step, ones in failed for key, why in ones.items()]
    found: dict[str, Any] = plain({"format": FORMAT, "about": told, "rungs": rungs, "steps": content["steps"]})
    return found


def steps_in_words(steps: Iterable[Step], findings: Mapping[str, Finding]) -> list[dict[str, Any]]:
    """Steps and what they came to; one without a finding is there and open."""
    return [
        {
            "name": step.name,
            "question": step.question,
            "claim": step.claim,
            "formula": step.formula,
            "rungs": list(step.rungs),
            "finding": asdict(findings.get(step.name, NO_FINDING)),
        }
        for step in steps
    ]


def rungs_of(ladder: Mapping[str, Any], difference: Any) -> dict[str, dict[str, Any]]:
    """The rungs in words; `difference` gives the lines in which a rung differs from the one before it."""
    return {
        name: {
            "title": rung.title,
            "question": rung.question,
            "before": rung.before,
            "formula": rung.formula,
            "difference": lines(difference(rung)),
        }
        for name, rung in ladder.items()
    }


def lines(text: str | Sequence[str]) -> list[str]:
    return text.splitlines() if isinstance(text, str) else [str(line) for line in text]


def plain(value: Any) -> Any:
    """Only what JSON has: mappings, lists, texts, numbers; a number that is none becomes null."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return plain(value.tolist() if hasattr(value, "tolist") else value.item()) if hasattr(value, "item") else str(value)


def text_of(found: Mapping[str, Any]) -> str:
    """The file's content.

    >>> text_of({"a": 1})
    '{\\n "a": 1\\n}\\n'
    """
    return json.dumps(found, allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> dict[str, Any]:
    """A record from a file. Raises FileError where there is none, or where it is something else."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise FileError(f"{path} has {size:,} bytes, and a record of the laboratory has at most {MOST_BYTES:,}")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {str(error)[:200]}. Run the laboratory again to make it.") from None
    return checked(found, str(path))


def checked(found: Any, where: str) -> dict[str, Any]:
    """The same object, once it is known to be a record; FileError says what is wrong with it."""
    try:
        need(isinstance(found, dict) and found.get("format") == FORMAT, f"its format is not '{FORMAT}'")
        need(isinstance(found["about"], dict), "'about' is not an object")
        for name, rung in found["rungs"].items():
            texts(rung, ("title", "question", "before", "formula"), f"rung {name}")
            need(all(isinstance(line, str) for line in rung["difference"]), f"rung {name}: a line is no text")
        for step in found["steps"]:
            texts(step, ("name", "question", "claim", "formula"), "a step")
            need(all(isinstance(name, str) for name in step["rungs"]), f"step {step['name']}: a rung is no name")
            check_finding(step["finding"], f"step {step['name']}")
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        raise FileError(f"{where} is not a record of the laboratory: {why}") from None
    return found  # type: ignore[no-any-return]


def check_finding(finding: Any, where: str) -> None:
    need(finding["verdict"] in VERDICTS, f"{where}: the verdict is none of {', '.join(VERDICTS)}")
    texts(finding, ("because",), where)
    need(all(isinstance(note, str) for note in finding["notes"]), f"{where}: a note is no text")
    for number in finding["numbers"]:
        known = Number(**number)
        texts(asdict(known), ("label", "unit", "against"), where)
        need(
            all(is_number(v) for v in (known.value, known.low, known.high, known.n, *known.each)), f"{where}: no number"
        )
    for one in finding["drawings"]:
        known_drawing = Drawing(**one)
        texts(one, ("title", "x", "y", "kind", "log"), where)
        for series in known_drawing.series.values():
            check_series(series, one["kind"], f"{where}, '{one['title']}'")


def check_series(series: Any, kind: str, where: str) -> None:
    need(kind in ("lines", "bars", "field"), f"{where}: there is no kind of drawing '{kind}'")
    x, y = series["x"], series["y"]
    need(all(isinstance(v, str) or is_number(v) for v in x), f"{where}: x has what is neither text nor number")
    if kind == "field":
        rows = series["z"]
        right = bool(x) and len(rows) == len(y) > 0 and all(len(row) == len(x) for row in rows)
        need(right, f"{where}: z is not one row for each y with one value for each x")
        need(all(is_number(v) for row in rows for v in row), f"{where}: z has what is no number")
        return
    need(len(x) == len(y), f"{where}: {len(x)} values of x and {len(y)} of y")
    for name in ("y", "low", "high"):
        need(all(is_number(v) for v in series.get(name) or ()), f"{where}: {name} has what is no number")


def is_number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (known and not abs(value) > MOST_NUMBER)


def texts(holder: Any, names: Sequence[str], where: str) -> None:
    for name in names:
        need(isinstance(holder[name], str), f"{where}: '{name}' is no text")


def need(right: bool, otherwise: str) -> None:
    if not right:
        raise ValueError(otherwise)
