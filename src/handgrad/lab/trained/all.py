"""The steps that train, in the argument's order."""

from __future__ import annotations

from handgrad.lab.steps import Step
from handgrad.lab.trained.arguments import Arguments
from handgrad.lab.trained.compared import PRODUCT, WINDOW
from handgrad.lab.trained.memory import Memory

TRAINED: tuple[Step, ...] = (Memory(), Arguments(), PRODUCT, WINDOW)
