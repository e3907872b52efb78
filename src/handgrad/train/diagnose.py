"""Where the first value that is not finite came from: the pass is run once more, and every signal is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from handgrad.core.errors import NumericError
from handgrad.core.gradients import Accumulate
from handgrad.core.params import Buffer
from handgrad.core.run import Run
from handgrad.models.model import Model

Batch = tuple[Tensor, Tensor]
"""Ids ~ (B, T) and targets ~ (B, T); a negative target does not count."""


class _Found(Exception):
    """Carries the first bad signal out of the pass."""


@dataclass(frozen=True)
class FirstBad:
    """Shown every signal in the order of computation; stops the pass at the first that holds NaN or infinity."""

    def wants(self, path: str) -> bool:
        return True

    def see(self, path: str, x: Any) -> Any:
        # -∞ is what a masked agreement is; only there is it no fault.
        if isinstance(x, Tensor) and (bad := bad_value(x, masked=path.endswith(".causal"))):
            raise _Found(path, bad)
        return x

    def again(self) -> FirstBad:
        return self


def bad_value(x: Tensor, masked: bool = False) -> str | None:
    """ "NaN" or "infinity" if x holds such, else None."""
    if bool(x.isfinite().all()):
        return None
    if bool(x.isnan().any()):
        return "NaN"
    return None if masked and not bool((x == float("inf")).any()) else "infinity"


def not_finite(
    what: str, model: Model, batches: Sequence[Batch], runs: Sequence[Run], n_valid: int, g: Buffer | None
) -> NumericError:
    """The error to raise: `what` was seen, and which signal, in forward or backward, was the first to go wrong.

    The micro-batches are run again in their order; with a gradient buffer `g` (it is overwritten) backward too.
    """
    where = first_bad(model, batches, runs, n_valid, g)
    damaged = [f"{name} ({bad})" for name, p in model.params.items() if (bad := bad_value(p))]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        where += f". The parameter {damaged[0]}{more} was already not finite before this step"
    return NumericError(f"{what}: {where}")


def first_bad(model: Model, batches: Sequence[Batch], runs: Sequence[Run], n_valid: int, g: Buffer | None) -> str:
    if g is not None:
        g.flat.zero_()
    for micro, ((inputs, targets), run) in enumerate(zip(batches, runs, strict=True)):
        which = f" of micro-batch {micro + 1}" if len(batches) > 1 else ""
        run = replace(run, signals=FirstBad())
        passing = "forward"
        try:
            loss = model.loss(inputs, targets, n_valid=n_valid, run=run)
            if bad := bad_value(loss):
                return f"the loss itself is the first to hold {bad}, in the forward pass{which}"
            if g is not None:
                passing = "backward"
                model.backward(Accumulate(g.tree))
                if name := next((name for name in g if bad_value(g[name])), None):
                    return (
                        f"the gradient of {name} is the first to hold {bad_value(g[name])}, in the backward pass{which}"
                    )
        except _Found as found:
            path, bad = found.args
            return f"{path} is the first signal to hold {bad}, in the {passing} pass{which}"
        finally:
            model.pending = None
    return "every single signal is finite when computed again, so a sum grew beyond the range of the type"
