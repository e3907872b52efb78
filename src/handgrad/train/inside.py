"""The update inside the backward pass: each parameter moves as soon as its gradient is complete.

The gradient of the whole network never exists, only that of one layer and of the tied embedding. The price: whatever
needs the whole gradient before the first update needs a pass of its own. Clipping does: a first pass forms the norm
and drops everything else, a second one, the same, updates with the gradient scaled. Exact, at twice the time.
"""

from __future__ import annotations

from math import isfinite, sqrt

import torch

from handgrad.core.collect import Collect, Done
from handgrad.core.errors import NumericError
from handgrad.core.run import Run
from handgrad.models.model import Model
from handgrad.train.config import TrainConfig
from handgrad.train.diagnose import Batch, not_finite
from handgrad.train.optimiser import State, norm_of, update_slice


def step_inside(
    model: Model, batch: Batch, state: State, lr: float, config: TrainConfig, n_valid: int, run: Run, what: str
) -> tuple[float, float]:
    """One step; the loss, and the norm of the gradient before clipping, come back.

    Without clipping, a gradient that is not finite may be met when part of the network has moved already: NumericError
    says so, and the last checkpoint is what is left.
    """
    layout, flat = model.params.layout, model.params.flat
    squares: list[float] = []
    scale = 1.0

    def backward(done: Done) -> float:
        receiver = Collect.into(layout, done, flat.dtype, flat.device)
        loss = model.loss_and_backward(batch[0], batch[1], receiver, n_valid=n_valid, run=run)
        receiver.finished()
        return float(loss)

    def measure(name: str, g: torch.Tensor) -> None:
        squares.append(norm_of(g.flatten()) ** 2)

    def move(name: str, g: torch.Tensor) -> None:
        measure(name, g)
        if not isfinite(squares[-1]) and len(squares) > 1:
            raise NumericError(
                f"{what}: the gradient of {name} is not finite, and parameters above it have moved already. "
                "With --clip the whole gradient is looked at before anything moves"
            )
        if not isfinite(squares[-1]):
            raise refused(f"the gradient of {name} is not finite")
        if scale != 1.0:
            g.mul_(scale)
        where = slice(layout.places[name][0], layout.places[name][0] + g.numel())
        update_slice(flat[where], g.flatten(), state, where, lr, config, decayed=layout.slots[name].decayed)
        if model.shadow is not None:
            model.shadow.flat[where].copy_(flat[where])

    def refused(why: str) -> NumericError:
        return not_finite(f"{what}: {why}; nothing was updated", model, [batch], [run], n_valid, None)

    if config.clip:
        loss = backward(measure)
        norm = sqrt(sum(squares))
        if not isfinite(norm) or not isfinite(loss):
            raise refused(f"the loss is {loss} and the gradient's norm {norm}")
        scale = min(1.0, config.clip / norm) if norm else 1.0
        squares.clear()
    state.step += 1
    try:
        loss = backward(move)
    except NumericError:
        state.step -= 1
        raise
    return loss, norm if config.clip else sqrt(sum(squares))
