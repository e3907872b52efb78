"""The steps that train, in the argument's order."""

from __future__ import annotations

from handgrad.lab.steps import Step
from handgrad.lab.trained.arguments import Arguments
from handgrad.lab.trained.compared import PRODUCT, WINDOW
from handgrad.lab.trained.ladder import PRICE, WHOLE
from handgrad.lab.trained.memory import Memory
from handgrad.lab.trained.mlp import MLP
from handgrad.lab.trained.normalise import NORMALISE
from handgrad.lab.trained.pocket import AMOUNTS
from handgrad.lab.trained.positions import POSITIONS, SPARSE
from handgrad.lab.trained.reading import OUTPUT, RANK
from handgrad.lab.trained.values import VALUES

TRAINED: tuple[Step, ...] = (
    Memory(),
    AMOUNTS,
    Arguments(),
    VALUES,
    PRODUCT,
    RANK,
    NORMALISE,
    OUTPUT,
    MLP,
    WINDOW,
    SPARSE,
    WHOLE,
    POSITIONS,
    PRICE,
)
