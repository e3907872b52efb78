"""One equation as a pair of functions, explicit and perhaps also fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from handgrad.core.errors import ConfigError
from handgrad.core.run import Run


class Pair(NamedTuple):
    """forward(*inputs, run) -> (output, saved), and backward(Delta, saved, run) -> one Delta for each input.

    Where one of the inputs is a parameter, backward takes the receiver of its gradient before `run`, and the layer
    calls the pair that it chose: see `rules/additive.py`.
    """

    forward: Callable[..., tuple[torch.Tensor, Any]]
    backward: Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """An equation without parameters of its own.

    `inner` names the signals that only the explicit pair forms. Asking to see one of them selects the explicit pair
    for that layer; otherwise the fused pair runs where there is one. The pair that ran forward travels in `saved`, so
    backward cannot choose differently.
    """

    name: str
    explicit: Pair
    fused: Pair | None = None
    inner: tuple[str, ...] = ()

    def choose(self, run: Run) -> Pair:
        if run.implementation not in ("auto", "explicit", "fused"):
            raise ConfigError(f"no implementation named '{run.implementation}'. Known: auto, explicit, fused")
        if self.fused is None or run.implementation == "explicit" or run.wants(self.inner):
            return self.explicit
        return self.fused

    def forward(self, *inputs: Any, run: Run) -> tuple[torch.Tensor, Any]:
        pair = self.choose(run)
        output, saved = pair.forward(*inputs, run=run)
        return output, (pair, saved)

    def backward(self, Delta: torch.Tensor, saved: Any, run: Run) -> Any:
        pair, saved = saved
        return pair.backward(Delta, saved, run)
