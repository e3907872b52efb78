"""What a training report is made of: names, numbers and arrays, in the order in which the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from handgrad.core.errors import ShapeError


@dataclass(frozen=True)
class Curve:
    """One value for each of some steps. For the learning rate the values are rates, not losses.

    Raises ShapeError where the two lengths differ.

    >>> len(Curve(steps=[0, 10], loss_nats=[4.6, 3.1]).steps)
    2
    """

    steps: Sequence[int]
    loss_nats: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.loss_nats):
            raise ShapeError(
                f"a curve needs one value a step: found {len(self.steps)} steps and {len(self.loss_nats)} values."
            )


@dataclass(frozen=True)
class ParameterRow:
    """One line of the table of gradients. A tied parameter names in `tied_to` the one whose numbers it shares.

    >>> ParameterRow("block.w", (3, 5), "aᵗ Δ", count=15, norm=0.2, gradient_norm=0.01).tied_to is None
    True
    """

    name: str
    shape: tuple[int, ...]
    formula: str
    count: int
    norm: float
    gradient_norm: float
    tied_to: str | None = None


@dataclass(frozen=True)
class ReportData:
    """Everything `render` shows.

    `facts` is a short table; `reference_losses` (nats a token) become horizontal lines; `tokens` are the T tokens of
    one sentence as text and `attention` maps the name of a block to its weights (H, T, T), rows summing to 1;
    `error_sizes` goes from the loss down to the embedding: (signal name, root mean square).
    """

    title: str
    facts: Mapping[str, str]
    train: Curve
    validation: Curve | None
    reference_losses: Mapping[str, float]
    learning_rate: Curve | None
    tokens: Sequence[str]
    attention: Mapping[str, np.ndarray]
    error_sizes: Sequence[tuple[str, float]]
    parameters: Sequence[ParameterRow]
    sample: str
    prompt: str
    commands: Sequence[str]
