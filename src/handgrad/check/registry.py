"""The registry of equations: every row of the catalogue names one code object, one docs passage, one numeric check.

code     what computes it                     `resolve` imports it
page     where it is explained in our words   `resolve` looks for the anchor
check    what would fail were it wrong        `run_check` runs it
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from handgrad.check import laws, registry_attention, registry_dense, registry_dynamic
from handgrad.check.cases import CASES
from handgrad.check.equation import Equation
from handgrad.check.report import LawBroken
from handgrad.core.errors import unknown

EQUATIONS: tuple[Equation, ...] = (
    *registry_dense.EQUATIONS,
    *registry_attention.EQUATIONS,
    *registry_dynamic.EQUATIONS,
)

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"  # beside the source; an installed package brings none

PROOF = (laws.oracle, laws.reference, laws.adjoint)
BY_NAME = {law.__name__: (law,) for law in laws.LAWS} | {"case": PROOF}

ANCHOR = re.compile(r"\{[^{}]*#([\w-]+)[^{}]*\}")


class Resolved(NamedTuple):
    """Which of the three places exist. `page` is None where the docs did not come along."""

    code: bool
    page: bool | None
    check: bool

    @property
    def complete(self) -> bool:
        return self.code and self.page is not False and self.check


def equation(id: str) -> Equation:
    """The row of that id. Raises UnknownName, with the nearest one.

    >>> equation("raw").backward
    'Δ_q = Δ_raw k; Δ_k = Δ_rawᵗ q'
    """
    rows = {e.id: e for e in EQUATIONS}
    if id not in rows:
        raise unknown("equation", id, rows)
    return rows[id]


def resolve(e: Equation, docs: Path = DOCS) -> Resolved:
    """Are the code object, the docs passage and the check there?

    >>> resolve(equation("linear")).code
    True
    """
    page = e.anchor in anchors(docs / e.file) if docs.is_dir() else None
    return Resolved(there(e.code), page, checks_of(e) is not None)


def missing(e: Equation) -> list[str]:
    """What `resolve` did not find, in words."""
    found = resolve(e)
    absent = [("code", e.code, found.code), ("page", e.page, found.page is not False), ("check", e.check, found.check)]
    return [f"no {what} {where}" for what, where, ok in absent if not ok]


def run_check(e: Equation) -> None:
    """Really run the numeric check of this equation. Raises LawBroken.

    >>> run_check(equation("linear"))
    """
    checks = checks_of(e)
    if checks is None:
        raise LawBroken(f"the check of {e.id}, {e.check}, does not exist")
    for check in checks:
        check()


def status(e: Equation) -> str:
    """The word ok, or what is missing or wrong in one line."""
    if absent := missing(e):
        return "; ".join(absent)
    try:
        run_check(e)
    except LawBroken as broken:
        return f"broken: {str(broken).splitlines()[0]}"
    except Exception as error:  # one check that cannot even run must not hide the others
        return f"broken: {type(error).__name__}: {error}".splitlines()[0]
    return "ok"


def checks_of(e: Equation) -> list[Callable[[], Any]] | None:
    """The checks as functions without arguments; None when one of them does not exist."""
    found: list[Callable[[], Any]] = []
    for check in e.checks:
        what, _, name = check.partition(":")
        if what in BY_NAME:
            at = next((c for c in CASES if c.name == name), None)
            found += [] if at is None else [lambda law=law, at=at: law(at) for law in BY_NAME[what]]
            gone = at is None
        else:
            function = object_of(check)
            found.append(function)
            gone = not callable(function)
        if gone:
            return None
    return found


def there(path: str) -> bool:
    return object_of(path) is not None


def object_of(path: str) -> Any:
    """The object of "module:qualified.name", or None."""
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError:
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def place_of(path: str) -> tuple[Path, int]:
    """File and first line of "module:name". Raises UnknownName when it does not exist.

    >>> file, line = place_of("handgrad.rules.linear:backward")
    >>> file.name, file.read_text(encoding="utf-8").splitlines()[line - 1].startswith("def backward")
    ('linear.py', True)
    """
    found = object_of(path)
    if found is None:
        raise unknown("code object", path, [e.code for e in EQUATIONS])
    found = inspect.unwrap(found)
    return Path(inspect.getsourcefile(found) or ""), inspect.getsourcelines(found)[1]


@lru_cache(maxsize=256)
def read(page: Path, changed_ns: int) -> frozenset[str]:
    return frozenset(ANCHOR.findall(page.read_text(encoding="utf-8")))


def anchors(page: Path) -> frozenset[str]:
    """The explicit anchors of a page: `### Title {#anchor}`."""
    return read(page, page.stat().st_mtime_ns) if page.is_file() else frozenset()
