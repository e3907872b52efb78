"""One table of cases over every rule and layer. `check/case.py` says what a case is."""

from handgrad.check.case import Case
from handgrad.check.cases import attention, composition, dense, losses, norms

CASES = (*dense.CASES, *norms.CASES, *attention.CASES, *losses.CASES, *composition.CASES)


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)
