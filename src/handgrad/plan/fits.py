"""The largest batch, or the longest context, whose training step fits in so many bytes: found by planning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from handgrad.core.errors import ConfigError
from handgrad.plan.plan import MOST_CONTEXT, held_bytes
from handgrad.train.config import TrainConfig

SEARCHES = ("batch-size", "context")
MOST = {"batch-size": 1 << 16, "context": MOST_CONTEXT}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?)B?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Fit:
    """The largest `value` that fits, with the memory it takes, and the next larger one with its own."""

    search: str
    limit_bytes: int
    value: int
    held_bytes: int
    next_value: int
    next_held_bytes: int


def fits(shape: Any, config: TrainConfig, limit_bytes: int, search: str = "batch-size", base_bytes: int = 0) -> Fit:
    """Search by doubling, then halving. `base_bytes` is what the process holds without the model.

    Raises ConfigError where not even 1 fits, or the largest that is looked at still does.

    >>> import handgrad as hg
    >>> found = fits(hg.GPT2Config(vocabulary=99, n_layers=1, d_model=16), TrainConfig(), 20_000_000)
    >>> found.held_bytes <= 20_000_000 < found.next_held_bytes, found.next_value - found.value
    (True, 1)
    """
    if search not in SEARCHES:
        raise ConfigError(f"--search is {search!r}, and must be one of {', '.join(SEARCHES)}")
    known: dict[int, int] = {}

    def held(value: int) -> int:
        if value not in known:
            known[value] = base_bytes + held_bytes(*changed(shape, config, search, value))
        return known[value]

    low, high = bracket(held, limit_bytes, MOST[search], search)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if held(middle) <= limit_bytes else (low, middle)
    return Fit(search, limit_bytes, low, held(low), high, held(high))


def bracket(held: Callable[[int], int], limit: int, most: int, search: str) -> tuple[int, int]:
    if held(1) > limit:
        raise ConfigError(
            f"--fits {in_units(limit)} is too little: --{search} 1 already takes {in_units(held(1))}. "
            "Use a smaller model, --recompute blocks or --update inside"
        )
    low = 1
    while (high := 2 * low) <= most:
        if held(high) > limit:
            return low, high
        low = high
    raise ConfigError(f"--fits {in_units(limit)} is more than --{search} {low} takes, the largest that is looked at")


def changed(shape: Any, config: TrainConfig, search: str, value: int) -> tuple[Any, TrainConfig]:
    if search == "context":
        return replace(shape, context=value), config
    return shape, replace(config, batch_size=value)


def bytes_of(text: str) -> int:
    """A size as people write it.

    >>> bytes_of("8GB"), bytes_of("1.5 GiB"), bytes_of("300M")
    (8000000000, 1610612736, 300000000)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) < 1e12:
        raise ConfigError(f"--fits is {text!r}, and must be a size such as 8GB, 500MB or 16GiB")
    unit = found[2].lower()
    return int(float(found[1]) * (1024 if unit.endswith("i") else 1000) ** _UNITS[unit.rstrip("i")])


def in_units(nbytes: float) -> str:
    """Bytes in the unit in which they read well, powers of 1000.

    >>> in_units(512), in_units(2_488_359_940), in_units(10_000_000_000)
    ('512 B', '2.49 GB', '10.00 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.2f} TB"
