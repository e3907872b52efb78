"""All planted mistakes. `check/plant.py` says what a mistake is and how it is planted."""

from handgrad.check.mistakes import (
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

MISTAKES = (
    *dense.MISTAKES,
    *norms.MISTAKES,
    *positions.MISTAKES,
    *gates.MISTAKES,
    *smoothing.MISTAKES,
    *attention.MISTAKES,
    *heads.MISTAKES,
    *losses.MISTAKES,
    *recurrent.MISTAKES,
    *weights.MISTAKES,
    *composition.MISTAKES,
)
