"""A step that never holds the gradient as one buffer: each parameter's gradient comes by itself, once it is complete.

The update *inside* the backward pass: each parameter moves as soon as its gradient is complete. The gradient of the
whole network never exists, only that of one layer and of the tied embedding. The price: whatever needs the whole
gradient before the first update needs a pass of its own. Clipping does: a first pass forms the norm and drops
everything else, a second one, the same, updates with the gradient scaled. Exact, at twice the time. Clipping each
parameter's gradient by itself is another rule, and needs no second pass.

The update *after* it: gradients lie where the activations lay that the backward pass has given up on its way down, so
the most that is held is parameters, moments and activations, without a gradient beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import fsum, isfinite, sqrt

import torch

from handgrad.core.collect import Collect, Done, Room
from handgrad.core.errors import NumericError
from handgrad.core.params import Buffer
from handgrad.core.run import Run
from handgrad.models.diagnose import Batch, not_finite
from handgrad.models.model import Model
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State, norm_of, shrinking, update_slice
from handgrad.train.sampled import Sampled


def step_inside(
    model: Model,
    batch: Batch,
    state: State,
    lr: float,
    config: TrainConfig,
    n_valid: int,
    run: Run,
    what: str,
    room: Room,
    sampled: Sampled | None = None,
) -> tuple[float, float]:
    """One step; the loss, and the norm of the gradient before clipping, come back.

    Without clipping, a gradient that is not finite may be met when part of the network has moved already: NumericError
    says so, and the last checkpoint is what is left.
    """
    squares: list[float] = []
    scale = 1.0

    def measure(name: str, g: torch.Tensor) -> None:
        squares.append(norm_of(g.flatten()) ** 2)

    def drop(name: str, g: torch.Tensor) -> None:
        measure(name, g)
        room.give(g)

    def move(name: str, g: torch.Tensor) -> None:
        measure(name, g)
        if not isfinite(squares[-1]) and len(squares) > 1:
            raise NumericError(
                f"{what}: the gradient of {name} is not finite, and parameters above it have moved already. "
                "With --clip the whole gradient is looked at before anything moves"
            )
        if not isfinite(squares[-1]):
            raise refused(f"the gradient of {name} is not finite")
        alone = shrinking(sqrt(squares[-1]), config.clip) if config.clip_by == "parameter" else scale
        update(model, name, g, alone, state, lr, config)
        room.give(g)

    def refused(why: str) -> NumericError:
        return not_finite(f"{what}: {why}; nothing was updated", model, [batch], [run], n_valid, None)

    passed, two = passing(model, sampled), config.clip > 0 and config.clip_by == "whole"
    if two:
        loss = collected(model, batch, n_valid, run, room, drop, passed)
        passed = passed if sampled is None else partial(sampled.again, model)
        norm = sqrt(fsum(squares))
        if not isfinite(norm) or not isfinite(loss):
            raise refused(f"the loss is {loss} and the gradient's norm {norm}")
        scale = shrinking(norm, config.clip)
        squares.clear()
    state.step += 1
    try:
        loss = collected(model, batch, n_valid, run, room, move, passed)
    except NumericError:
        state.step -= 1
        raise
    return loss, norm if two else sqrt(fsum(squares))


def step_after(
    model: Model,
    batch: Batch,
    state: State,
    lr: float,
    config: TrainConfig,
    n_valid: int,
    run: Run,
    what: str,
    room: Room,
    sampled: Sampled | None = None,
) -> tuple[float, float]:
    """The step of a gradient in one buffer; loss and norm come back. Nothing moves unless all is finite."""
    held: dict[str, torch.Tensor] = {}
    loss = collected(model, batch, n_valid, run, room, held.__setitem__, passing(model, sampled))
    norm = sqrt(fsum(norm_of(g.flatten()) ** 2 for g in held.values()))
    if not isfinite(loss) or not isfinite(norm):
        held.clear()
        what = f"{what}: the loss is {loss} and the gradient's norm {norm}; nothing was updated"
        again: Buffer = model.params.layout.zeros(model.params.flat.dtype, model.params.flat.device)
        raise not_finite(what, model, [batch], [run], n_valid, again)
    state.step += 1
    for name in list(held):
        g = held.pop(name)
        by = norm if config.clip_by == "whole" else norm_of(g.flatten())
        update(model, name, g, shrinking(by, config.clip), state, lr, config)
        room.give(g)
    return loss, norm


Pass = Callable[..., torch.Tensor]  # `Model.loss_and_backward`, or the same with a look at every sample


def passing(model: Model, sampled: Sampled | None) -> Pass:
    return model.loss_and_backward if sampled is None else partial(sampled.loss_and_backward, model)


def collected(model: Model, batch: Batch, n_valid: int, run: Run, room: Room, done: Done, passed: Pass) -> float:
    """Forward and backward pass, with each gradient handed to `done`; the loss."""
    params = model.params
    receiver = Collect.into(params.layout, done, params.flat.dtype, params.flat.device, room)
    loss = passed(batch[0], batch[1], receiver, n_valid=n_valid, run=run)
    receiver.finished()
    return float(loss)


def update(
    model: Model, name: str, g: torch.Tensor, scale: float, state: State, lr: float, config: TrainConfig
) -> None:
    """One parameter, and its shadow where it has one, from its gradient, which is scaled in place."""
    layout, flat = model.params.layout, model.params.flat
    if scale != 1.0:
        g.mul_(scale)
    where = slice(layout.places[name][0], layout.places[name][0] + g.numel())
    update_slice(flat[where], g.flatten(), state, where, lr, config, decayed=layout.slots[name].decayed)
    model.refresh(name)
