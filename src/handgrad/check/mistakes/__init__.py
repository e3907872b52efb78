"""All planted mistakes. `check/plant.py` says what a mistake is and how it is planted."""

from handgrad.check.mistakes import attention, composition, dense, losses, norms

MISTAKES = (*dense.MISTAKES, *norms.MISTAKES, *attention.MISTAKES, *losses.MISTAKES, *composition.MISTAKES)
