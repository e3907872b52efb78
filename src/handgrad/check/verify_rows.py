"""Signals of two passes, compared: the rows of `handgrad verify`, and their verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

KINDS = ("activations", "error signals", "gradients")
FEW = 40  # numbers over all draws: the errors of fewer may differ by a factor of 2 by chance
VANISHING = 1e-12  # of the whole: a gradient or an error below it is 0 but for rounding


@dataclass(frozen=True)
class Row:
    """One signal in one comparison; in a rounding type, the signals of one kind in a layer, of which `first` is one.

    error   ‖found - right‖/‖right‖; where what is right must vanish, over the norm of the whole gradient instead
    budget  the largest error that is allowed
    torchs  the error of torch's own autograd, in comparisons in a rounding type
    """

    comparison: str
    layer: str
    signal: str
    error: float
    budget: float
    ok: bool
    torchs: float | None = None
    note: str = ""
    first: str = ""


@dataclass(frozen=True)
class Verified:
    """All rows in the order of computation; `left_out` says what could not be compared, and why."""

    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.rows) and all(row.ok for row in self.rows)

    @property
    def first_wrong(self) -> Row | None:
        """The first signal, in the order of computation, that is off by more than its budget."""
        return next((row for row in self.rows if not row.ok), None)

    @property
    def comparisons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.comparison for row in self.rows))


@dataclass(frozen=True)
class Kept:
    """What one pass and its way back showed: activations, error signals in their order, gradients.

    In `events` of a pass by hand, None marks the moment at which a gradient was complete.
    """

    forward: Mapping[str, Tensor]
    events: Mapping[str, Tensor | None]
    gradients: Mapping[str, Tensor]

    @property
    def order(self) -> tuple[str, ...]:
        late = [name for name in self.gradients if name not in self.events]
        return (*self.forward, *self.events, *late)

    @property
    def errors(self) -> dict[str, Tensor]:
        return {path: x for path, x in self.events.items() if x is not None}

    def kinds(self, forward: bool = True) -> Iterator[tuple[Mapping[str, Tensor], float]]:
        """Activations, errors and gradients, each with the norm of the whole that a vanishing one is measured by."""
        if forward:
            yield self.forward, 0.0
        yield self.errors, largest(self.errors.values())
        yield self.gradients, norm_of(self.gradients.values())

    def against(self, right: Kept, comparison: str, budget: float, forward: bool = True) -> list[Row]:
        """A row for each signal that both have."""
        rows = []
        for (found, _), (exact, whole) in zip(self.kinds(forward), right.kinds(forward), strict=True):
            for path, x in found.items():
                if path in exact:
                    difference, scale, note = off(x, exact[path], whole)
                    error = difference / scale if scale else 0.0 if not difference else float("inf")
                    rows.append(Row(comparison, layer_of(path), path, error, budget, error <= budget, None, note))
        return rows

    def shape_rows(self, oracle: Kept) -> Iterator[Row]:
        """A failing row for each error signal or gradient that one of the two has and the other lacks."""
        ours = {path for path in self.errors if not path.rpartition(".")[2].startswith("Delta_from_")}
        for path in (*self.order, *oracle.events):
            if path in ours and path not in oracle.events:
                yield lacking(path, "autograd gives no such error signal")
        for name in self.gradients:
            if name not in self.events:
                yield lacking(name, "backward never handed it over")


@dataclass
class Rounding:
    """Errors in a rounding type: ours, torch's, and what they are relative to.

    As in `tests/test_precision.py`, they are added up over draws, so that chance does not decide, and over the signals
    of a kind in a layer: where a single signal nearly cancels, torch rounds it better or worse than its neighbours.
    A group of a few numbers, such as the loss alone, is judged together with the layer before it.
    """

    comparison: str
    unit: float
    over: float
    sums: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    first: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, found: Kept, exact: Kept, torchs: Kept) -> None:
        """One draw. What autograd does not show, such as a branch's share of an error, is left out."""
        all_three = zip(KINDS, found.kinds(), exact.kinds(), torchs.kinds(), strict=True)
        for kind, (ours, _), (right, _), (other, _) in all_three:
            for path, x in ours.items():
                if path in right and path in other:
                    mine, size, _ = off(x, right[path], 0.0)
                    its = off(other[path], right[path], 0.0)[0]
                    group = (layer_of(path), kind)
                    self.first.setdefault(group, path)
                    sums = self.sums.setdefault(group, [0.0, 0.0, 0.0, 0])
                    for i, value in enumerate((mine, its, size, x.numel() ** 0.5)):
                        sums[i] += value * value

    def merged(self) -> dict[tuple[str, str], list[float]]:
        """The sums, those of fewer than `FEW` numbers added to the sums of the same kind before them."""
        found: dict[tuple[str, str], list[float]] = {}
        last: dict[str, tuple[str, str]] = {}
        for (layer, kind), sums in self.sums.items():
            if sums[3] < FEW and kind in last:
                found[last[kind]] = [a + b for a, b in zip(found[last[kind]], sums, strict=True)]
            else:
                found[layer, kind], last[kind] = list(sums), (layer, kind)
        return found

    def rows(self) -> Iterator[Row]:
        for (layer, kind), (ours, its, size, _) in self.merged().items():
            error, torchs = ((x / size) ** 0.5 if size else 0.0 if not x else float("inf") for x in (ours, its))
            budget = self.over * torchs + self.unit
            first = self.first[layer, kind]
            yield Row(self.comparison, layer, f"{kind} of {layer}", error, budget, error <= budget, torchs, "", first)


def lacking(path: str, note: str) -> Row:
    return Row("float64", layer_of(path), path, float("inf"), 0.0, False, None, note)


def ordered(rows: Iterable[Row], exact: Kept, left_out: tuple[str, ...]) -> Verified:
    """The rows in the order in which `exact` came to their signals."""
    place = {path: i for i, path in enumerate(exact.order)}
    return Verified(tuple(sorted(rows, key=lambda row: place.get(row.first or row.signal, len(place)))), left_out)


def off(found: Tensor, right: Tensor, whole: float) -> tuple[float, float, str]:
    """Norm of the difference, what it is relative to, and a note where that is not the signal's own norm."""
    if found.shape != right.shape:
        return float("inf"), 1.0, f"shape {tuple(found.shape)}, and {tuple(right.shape)} is right"
    found, right = found.double(), right.double()
    difference = float((found - right).masked_fill(found == right, 0.0).norm())  # the -∞ of masked places are equal
    size = float(right.masked_fill(right.isinf(), 0.0).norm())
    if difference != difference:
        return float("inf"), 1.0, "not finite"
    if size > VANISHING * whole:
        return difference, size, ""
    return difference, whole, "must vanish" if whole else "must be 0"


def largest(signals: Iterable[Tensor]) -> float:
    return max((float(x.double().norm()) for x in signals), default=0.0)


def norm_of(gradients: Iterable[Tensor]) -> float:
    return sum(float(g.double().square().sum()) for g in gradients) ** 0.5


def layer_of(path: str) -> str:
    """The layer of a signal, of its error or of a parameter.

    >>> layer_of("blocks.0.attention.Delta_q"), layer_of("blocks.Delta_0"), layer_of("Delta_norm"), layer_of("loss")
    ('blocks.0', 'blocks.0', 'norm', 'head')
    """
    first, *rest = [part.removeprefix("Delta_").removeprefix("from_") for part in path.split(".")]
    if first == "blocks" and rest:
        return f"blocks.{rest[0]}"
    return "head" if first == "loss" else first
