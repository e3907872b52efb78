"""All steps of the argument, in its order: those that are computed exactly, and those that train."""

from __future__ import annotations

from collections.abc import Iterable

from handgrad.lab.chapters import CHAPTERS
from handgrad.lab.exact import STEPS as EXACT
from handgrad.lab.steps import Step
from handgrad.lab.trained.all import TRAINED


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """In the order of the chapters; what no chapter names comes last.

    >>> [step.name for step in in_order(EXACT)][:3]
    ['steps', 'fixed', 'source']
    """
    place = {name: i for i, name in enumerate(name for chapter in CHAPTERS for name in chapter.steps)}
    return tuple(sorted(steps, key=lambda step: place.get(step.name, len(place))))


STEPS = in_order((*EXACT, *TRAINED))
