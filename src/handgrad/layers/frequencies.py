"""How fast each pair of features turns: frozen objects that give the inverse frequencies ω_i of rotary positions.

The published ways to read further than a model was trained: `linear` squeezes all positions, `ntk` slows the slow pairs
more than the fast ones by a larger base, `llama3` leaves fast pairs alone, slows slow ones, and blends between.
All in float64; `frequencies(width)` has width/2 entries, in radians a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import pi

from handgrad.core.errors import ConfigError, unknown


def plain(width: int, base: float) -> tuple[float, ...]:
    """ω_i = base^(-2i/width), i = 0 … width/2 - 1."""
    return tuple(base ** (-2 * i / width) for i in range(width // 2))


def positive(what: object, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(
                f"{name} is {value} in the rotary scaling {type(what).__name__}, and must be above 0: "
                "frequencies are divided by it or are powers of it"
            )


@dataclass(frozen=True)
class Plain:
    """ω_i = base^(-2i/width).

    >>> Plain().frequencies(4)
    (1.0, 0.01)
    """

    base: float = 10_000.0

    def __post_init__(self) -> None:
        positive(self, base=self.base)

    def frequencies(self, width: int) -> tuple[float, ...]:
        return plain(width, self.base)


@dataclass(frozen=True)
class LinearScaling:
    """ω_i / factor: position `factor` turns as position 1 did."""

    factor: float
    base: float = 10_000.0

    def __post_init__(self) -> None:
        positive(self, factor=self.factor, base=self.base)

    def frequencies(self, width: int) -> tuple[float, ...]:
        return tuple(omega / self.factor for omega in plain(width, self.base))


@dataclass(frozen=True)
class NTKAware:
    """base · factor^(width/(width-2)): the fastest pair stays as it is, the slowest becomes `factor` times slower."""

    factor: float
    base: float = 10_000.0

    def __post_init__(self) -> None:
        positive(self, factor=self.factor, base=self.base)

    def frequencies(self, width: int) -> tuple[float, ...]:
        if width <= 2:
            raise ConfigError(
                f"NTK-aware scaling needs heads of width 4 or more, found {width}: with one pair the fastest is the "
                "slowest; use the linear scaling"
            )
        return plain(width, self.base * self.factor ** (width / (width - 2)))


@dataclass(frozen=True)
class Llama3:
    """Waves shorter than original/high stay, longer than original/low become `factor` times slower; between, blended.

    `original` is the context of the first training, in tokens.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    base: float = 500_000.0

    def __post_init__(self) -> None:
        positive(self, factor=self.factor, low=self.low, high=self.high, original=self.original, base=self.base)
        if self.low >= self.high:
            raise ConfigError(
                f"llama3 scaling blends between {self.low} and {self.high} waves of the original context; "
                "low must be below high"
            )

    def frequencies(self, width: int) -> tuple[float, ...]:
        return tuple(self.slowed(omega) for omega in plain(width, self.base))

    def slowed(self, omega: float) -> float:
        waves = self.original * omega / (2 * pi)  # turns within the original context
        keep = min(max((waves - self.low) / (self.high - self.low), 0.0), 1.0)
        return keep * omega + (1 - keep) * omega / self.factor


Scaling = Plain | LinearScaling | NTKAware | Llama3
SCALINGS: dict[str, type[Scaling]] = {"plain": Plain, "linear": LinearScaling, "ntk": NTKAware, "llama3": Llama3}


def scaling(name: str, values: Mapping[str, float]) -> Scaling:
    """The scaling of that name; an unknown name or setting is refused with the nearest one.

    >>> scaling("linear", {"factor": 4.0})
    LinearScaling(factor=4.0, base=10000.0)
    """
    if name not in SCALINGS:
        raise unknown("rotary scaling", name, SCALINGS)
    known = [f.name for f in fields(SCALINGS[name])]
    for setting in values:
        if setting not in known:
            raise unknown(f"setting of the rotary scaling {name}", setting, known)
    if "factor" in known and "factor" not in values and name != "llama3":
        raise ConfigError(f"the rotary scaling {name} needs its factor, found none: it says how much slower to turn")
    return SCALINGS[name](**values)  # type: ignore[arg-type]
