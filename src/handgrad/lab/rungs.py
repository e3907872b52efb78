"""The ladder from a recurrent network to the Transformer. A rung is added beside its kind: words and a builder."""

from __future__ import annotations

from collections.abc import Iterable

from handgrad.core.errors import unknown
from handgrad.lab.rung import Ladder, Rung
from handgrad.lab.rungs_memory import MEMORY
from handgrad.lab.rungs_network import NETWORK
from handgrad.lab.rungs_weights import WEIGHTS

RUNGS = Ladder(MEMORY | WEIGHTS | NETWORK)


def rung(name: str) -> Rung:
    """The rung of that name; UnknownName lists them all.

    >>> rung("lstm").before
    'rnn'
    """
    if name not in RUNGS:
        raise unknown("rung", name, RUNGS)
    return RUNGS[name]


def difference(name: str | Rung) -> list[str]:
    """How a rung's builder differs from the one before it, as lines with "-" or "+"; the first one is all "+".

    >>> print(*difference("softmax"), sep="\\n")
    -def low_rank(s: Sizes) -> Layer:
    +def softmax(s: Sizes) -> Layer:
    -    mixing = make.matrix_sum(score, s.width, s.functions, KEEP, std=s.std)
    +    mixing = make.matrix_sum(score, s.width, s.functions, softened(s.tau), std=s.std)
    """
    return RUNGS.difference(rung(name if isinstance(name, str) else name.name).name)


def in_order(names: Iterable[str]) -> list[Rung]:
    """The rungs of these names, in the ladder's order."""
    wanted = {rung(name).name for name in names}
    return [one for one in RUNGS.values() if one.name in wanted]
