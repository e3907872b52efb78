"""The abstraction: layers, their composition, parameters, how a pass is run, who receives gradients."""

from handgrad.core.combine import Chain, Fork, Gate, Recompute, Residual, Sequence, Sum
from handgrad.core.gradients import Accumulate, Gradients
from handgrad.core.layer import Layer
from handgrad.core.params import Buffer, Layout, Slot
from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run
from handgrad.core.scan import Scan
from handgrad.core.signals import Watch

__all__ = [
    "Accumulate",
    "Buffer",
    "Chain",
    "Fork",
    "Gate",
    "Gradients",
    "Layer",
    "Layout",
    "Pair",
    "Recompute",
    "Residual",
    "Rule",
    "Run",
    "Scan",
    "Sequence",
    "Slot",
    "Sum",
    "Watch",
]
