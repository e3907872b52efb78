"""Where the first value that is not finite came from: the pass is run once more, and every signal is looked at.

Training asks which signal of a step it was, forward or backward; writing and scoring ask why logits cannot be used.
"""

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
    """Shown every signal in the order of computation; stops the pass at the first that holds NaN or infinity.

    It asks for all of them, so that the explicit formulas run and no fused one hides where it was.
    """

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


def first_not_finite(model: Model, tokens: Tensor) -> str | None:
    """The path of the first signal of a forward pass that holds NaN or infinity; None if none does.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=2, n_heads=1, d_model=6), seed=0)
    >>> model.params["blocks.1.mlp.up.w"][0, 0] = torch.nan
    >>> first_not_finite(model, torch.tensor([[1, 2]]))
    'blocks.1.mlp.up'
    """
    try:
        model(tokens, Run(signals=FirstBad()))
    except _Found as found:
        return str(found.args[0])
    return None


def refusal(model: Model, window: Tensor, what: str) -> NumericError:
    """The error for logits that cannot be drawn from, with the place where it began and what to do."""
    place = first_not_finite(model, window)
    broken = [name for name, w in model.params.items() if bad_value(w)]
    if broken:
        where = f"The parameter {broken[0]} holds values that are not finite"
        where += f" ({len(broken)} parameters do)" if len(broken) > 1 else ""
        where += f"; the first signal that is not finite is {place}" if place else ""
        return NumericError(f"{what}. {where}. The model is damaged; use an earlier checkpoint")
    if place:
        return NumericError(
            f"{what}. The first signal that is not finite is {place}, while every parameter is finite: values grew "
            f"beyond what {str(model.params.flat.dtype).removeprefix('torch.')} can hold. Use an earlier checkpoint"
        )
    return NumericError(
        f"{what}. A plain pass over the same tokens is finite, though. If you replace signals, look there; otherwise "
        "please report this"
    )
