"""Steps of the argument that need no training: counts, equalities and measurements on first weights, in its order."""

from __future__ import annotations

from handgrad.lab.exact.absorbed import ABSORBED
from handgrad.lab.exact.alone import SELF
from handgrad.lab.exact.cost import COST
from handgrad.lab.exact.explosion import EXPLOSION
from handgrad.lab.exact.fixed import FIXED
from handgrad.lab.exact.heads import HEADS
from handgrad.lab.exact.interaction import INTERACTION
from handgrad.lab.exact.kept import CACHE
from handgrad.lab.exact.keys import KEYS
from handgrad.lab.exact.normalisation import NORMALISATION
from handgrad.lab.exact.patterns import STORED
from handgrad.lab.exact.source import SOURCE
from handgrad.lab.exact.steps import DEPENDENT
from handgrad.lab.steps import Step

STEPS: tuple[Step, ...] = (
    DEPENDENT,
    FIXED,
    SOURCE,
    SELF,
    EXPLOSION,
    INTERACTION,
    CACHE,
    NORMALISATION,
    HEADS,
    STORED,
    ABSORBED,
    KEYS,
    COST,
)
