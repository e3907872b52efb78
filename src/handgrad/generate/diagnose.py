"""Where values stopped being finite: the same pass once more, watched, ended at the first signal that is not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from handgrad.core.errors import NumericError
from handgrad.core.run import Run
from handgrad.models.model import Model


class Reached(Exception):
    """Ends the pass; its text is the path of the signal."""


@dataclass(frozen=True)
class FirstNotFinite:
    """Asks for every signal, so that the explicit formulas run, and stops at the first with NaN or infinity.

    The -∞ of masked places in `causal` is meant, and passes.
    """

    def wants(self, path: str) -> bool:
        return True

    def see(self, path: str, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        bad = x.isnan() | (x == torch.inf) if path.endswith(".causal") else ~x.isfinite()
        if bad.any():
            raise Reached(path)
        return x

    def again(self) -> FirstNotFinite:
        return self


def first_not_finite(model: Model, tokens: Tensor) -> str | None:
    """The path of the first signal, in the order of computation, that holds NaN or infinity; None if none does.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=2, n_heads=1, d_model=6), seed=0)
    >>> model.params["blocks.1.mlp.up.w"][0, 0] = torch.nan
    >>> first_not_finite(model, torch.tensor([[1, 2]]))
    'blocks.1.mlp.up'
    """
    try:
        model(tokens, Run(signals=FirstNotFinite()))
    except Reached as reached:
        return str(reached)
    return None


def refusal(model: Model, window: Tensor, what: str) -> NumericError:
    """The error for logits that cannot be drawn from, with the place where it began and what to do."""
    place = first_not_finite(replace(model, pending=None), window)
    broken = [name for name, w in model.params.items() if not w.isfinite().all()]
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
