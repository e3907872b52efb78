"""One table of cases over every rule and layer. `check/case.py` says what a case is."""

from handgrad.check.case import Case
from handgrad.check.cases import (
    attention,
    composition,
    dense,
    gates,
    heads,
    losses,
    norms,
    positions,
    recurrent,
    smoothing,
    weights,
)

CASES = (
    *dense.CASES,
    *norms.CASES,
    *positions.CASES,
    *gates.CASES,
    *smoothing.CASES,
    *attention.CASES,
    *heads.CASES,
    *losses.CASES,
    *recurrent.CASES,
    *weights.CASES,
    *composition.CASES,
)


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)
