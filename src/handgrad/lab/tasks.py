"""Generated tasks: what is read, and which tokens are scored. Equal seeds give equal data, on every machine.

A batch is (ids, targets), both (B, T) int64; a negative target does not count. Training draws from the stream "train",
measuring from "held out": no batch of one is a batch of the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import factorial
from typing import Any, Protocol

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError
from handgrad.core.params import generator_of

Batch = tuple[Tensor, Tensor]
TRAIN, HELD_OUT = "train", "held out"


class Task(Protocol):
    """What a network is asked.

    vocabulary   ids are below it
    length       tokens of one sequence
    chance       accuracy of the best answer that looks at no token
    """

    @property
    def name(self) -> str: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def chance(self) -> float: ...
    def draw(self, n: int, g: torch.Generator) -> Batch: ...


def batch_of(task: Task, n: int, seed: int, stream: str, step: int) -> Batch:
    """Batch number `step` of a stream.

    >>> a, b = (batch_of(Recall(2, 4, 4), 1, 0, TRAIN, 7)[0] for _ in range(2))
    >>> bool((a == b).all()), a.shape
    (True, torch.Size([1, 8]))
    """
    return task.draw(n, generator_of(seed, f"{task.name}/{stream}/{step}"))


def settings(task: Task) -> dict[str, Any]:
    """The task's name and fields, as JSON: with a seed, all that its data depend on."""
    return {"task": task.name, **asdict(task)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Recall:
    """Multi-query associative recall: facts (key, value), then every key again, each followed by its value.

        k₁ v₁ k₂ v₂ … filler … k₂ v₂ k₁ v₁ …          scored: what follows a key of the second half

    Keys of a sequence differ, values may repeat, the order of the questions is drawn; `distance` tokens that mean
    nothing stand between facts and questions. With `pause`, so many marks stand after each key that is asked, and what
    follows the last of them is scored: a network that looks up with the state from before its input, as growing memory
    does, then has read the key when it looks.

    >>> Recall(8, 32, 32).length, Recall(8, 32, 32).chance
    (32, 0.03125)
    >>> ids, targets = Recall(2, 4, 4).draw(1, torch.Generator().manual_seed(0))
    >>> ids, targets
    (tensor([[2, 5, 1, 7, 1, 7, 2, 5]]), tensor([[-1, -1, -1, -1,  7, -1,  5, -1]]))
    """

    pairs: int = 8
    n_keys: int = 32
    n_values: int = 32
    distance: int = 0
    n_fillers: int = 8
    pause: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= self.n_keys:
            raise ConfigError(f"{self.pairs} facts need as many different keys, and there are {self.n_keys}")
        if self.n_fillers < 1 and (self.distance or self.pause):
            raise ConfigError("a distance or a pause needs a token that means nothing, and n_fillers is below 1")

    name = "recall"

    @property
    def vocabulary(self) -> int:
        return self.n_keys + self.n_values + self.n_fillers

    @property
    def length(self) -> int:
        return (4 + self.pause) * self.pairs + self.distance

    @property
    def chance(self) -> float:
        return 1 / self.n_values

    @property
    def unbound(self) -> float:
        """Accuracy of the best guess that knows the values told and not yet asked, and none of their keys: the one
        that is there most often, since values repeat.

        >>> round(Recall(8, 16, 16).unbound, 3), round(Recall(4, 16, 16).unbound, 3), Recall(1, 4, 4).unbound
        (0.424, 0.566, 1.0)
        """
        return sum(most_frequent(m, self.n_values) / m for m in range(1, self.pairs + 1)) / self.pairs

    def draw(self, n: int, g: torch.Generator) -> Batch:
        keys = different(n, self.pairs, self.n_keys, g)
        values = torch.randint(self.n_values, (n, self.pairs), generator=g) + self.n_keys
        order = different(n, self.pairs, self.pairs, g)
        facts = torch.stack((keys, values), -1).flatten(1)
        marks = [torch.full_like(order, self.n_keys + self.n_values)] * self.pause
        answers = values.gather(1, order)
        questions = torch.stack((keys.gather(1, order), *marks, answers), -1).flatten(1)
        filler = torch.randint(max(self.n_fillers, 1), (n, self.distance), generator=g) + self.n_keys + self.n_values
        ids = torch.cat((facts, filler, questions), 1)
        targets = torch.full_like(ids, -1)
        targets[:, facts.shape[1] + self.distance + self.pause :: 2 + self.pause] = answers
        return ids, targets


THINGS = ("dollars", "cents", "stamps", "keys", "tickets", "coins", "nuts", "pens")
CHATTER = ("well", "so", "today", "rain", "comes", "down", "again", "the", "bus", "is", "late", "and", "red", "old")
FRAME = ("have", "now", "many")


@dataclass(frozen=True)
class Pocket:
    """How much is in my pocket? Amounts are told, some are told anew, talk stands between; then each is asked.

        have 5 dollars  well so today  have 40 cents  rain …  now 7 dollars  …  many cents → 40  many dollars → 7

    `things` amounts are told first, then `updates` of them anew, with `chatter` words of talk after each; scored: what
    follows the thing in a question. The answer is the amount told last.

    >>> Pocket(2, 1, 1, 8).text(Pocket(2, 1, 1, 8).draw(1, torch.Generator().manual_seed(1))[0][0])
    'have 6 dollars today have 1 coins rain now 2 dollars red many coins 1 many dollars 2'
    """

    things: int = 3
    updates: int = 2
    chatter: int = 3
    amounts: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.things <= len(THINGS) or not 0 <= self.updates <= self.things:
            raise ConfigError(
                f"{self.things} things with {self.updates} updates cannot be: there are 1 to {len(THINGS)} things, "
                "and at most as many updates"
            )

    name = "pocket"

    @cached_property
    def words(self) -> tuple[str, ...]:
        return (*map(str, range(self.amounts)), *THINGS, *CHATTER, *FRAME)

    @property
    def vocabulary(self) -> int:
        return len(self.words)

    @property
    def length(self) -> int:
        return (self.things + self.updates) * (3 + self.chatter) + 3 * self.things

    @property
    def chance(self) -> float:
        return 1 / self.amounts

    def draw(self, n: int, g: torch.Generator) -> Batch:
        have, now, many = (self.words.index(word) for word in FRAME)
        thing = different(n, self.things, len(THINGS), g) + self.amounts
        told = torch.randint(self.amounts, (n, self.things), generator=g)
        which = different(n, self.updates, self.things, g)
        anew = torch.randint(self.amounts, (n, self.updates), generator=g)
        order = different(n, self.things, self.things, g)
        last = told.scatter(1, which, anew)
        verbs = torch.tensor([have] * self.things + [now] * self.updates).expand(n, -1)
        amount, of = torch.cat((told, anew), 1), torch.cat((thing, thing.gather(1, which)), 1)
        talk = torch.randint(len(CHATTER), (*verbs.shape, self.chatter), generator=g) + self.amounts + len(THINGS)
        statements = torch.cat((torch.stack((verbs, amount, of), -1), talk), -1).flatten(1)
        asked, answers = thing.gather(1, order), last.gather(1, order)
        questions = torch.stack((torch.full_like(asked, many), asked, answers), -1).flatten(1)
        ids = torch.cat((statements, questions), 1)
        targets = torch.full_like(ids, -1)
        targets[:, statements.shape[1] + 1 :: 3] = answers
        return ids, targets

    def text(self, ids: Tensor) -> str:
        return " ".join(self.words[i] for i in ids.tolist())


@dataclass(frozen=True)
class Patterns:
    """Arbitrary answers to pairs of tokens: first and second out of `side` each, so side² patterns to learn by heart.

        a b → table[a, b]          scored: what follows b; all side² sequences are one batch, whatever is asked for

    The table is drawn from `table_seed`: no rule is behind it, so there is nothing to hold out.

    >>> Patterns(side=3).draw(0, torch.Generator())[0].shape, Patterns(side=3).patterns
    (torch.Size([9, 2]), 9)
    """

    side: int = 16
    n_answers: int = 16
    table_seed: int = 0

    name = "patterns"

    @property
    def patterns(self) -> int:
        return self.side**2

    @property
    def vocabulary(self) -> int:
        return 2 * self.side + self.n_answers

    @property
    def length(self) -> int:
        return 2

    @property
    def table(self) -> Tensor:
        own = generator_of(self.table_seed, "table of patterns")
        return torch.randint(self.n_answers, (self.side, self.side), generator=own)

    @property
    def chance(self) -> float:
        """Of the answer that is there most often."""
        return int(self.table.flatten().bincount().max()) / self.patterns

    def draw(self, n: int, g: torch.Generator) -> Batch:
        table = self.table + 2 * self.side
        first, second = torch.cartesian_prod(torch.arange(self.side), torch.arange(self.side)).unbind(1)
        ids = torch.stack((first, second + self.side), 1)
        return ids, torch.stack((torch.full_like(first, -1), table.flatten()), 1)


def most_frequent(m: int, n: int) -> float:
    """How often, in the mean, the most frequent of m values drawn from n is there.

    Of the n^m ways, m!·[x^m] (Σ_{i ≤ c} x^i/i!)^n have no value more than c times.

    >>> most_frequent(2, 2), most_frequent(3, 1)
    (1.5, 3.0)
    """
    mean = 0.0
    for c in range(m):
        power, term = [1.0] + [0.0] * m, [1 / factorial(i) if i <= c else 0.0 for i in range(m + 1)]
        for _ in range(n):
            power = [sum(power[i] * term[k - i] for i in range(k + 1)) for k in range(m + 1)]
        mean += 1 - power[m] * factorial(m) / float(n) ** m  # the chance of more than c
    return mean


def different(n: int, k: int, of: int, g: torch.Generator) -> Tensor:
    """k different numbers below `of` for each of n samples, in an order that is drawn: (n, k)."""
    return torch.rand(n, of, generator=g, dtype=torch.float64).argsort(1)[:, :k]


def longer(task: Task, **change: Any) -> Any:
    """The same task in another size, for a network that was trained on the first; its ids mean the same."""
    other = replace(task, **change)  # type: ignore[type-var]
    if other.vocabulary != task.vocabulary:
        raise ConfigError(f"a change of {', '.join(change)} changes what the ids mean; change lengths only")
    return other
