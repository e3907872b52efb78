"""One optimiser step: micro-batches -> one gradient -> one update."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import NamedTuple

import torch

from handgrad.core.collect import Room
from handgrad.core.gradients import Accumulate
from handgrad.core.params import Buffer
from handgrad.core.run import Run
from handgrad.models.diagnose import Batch, not_finite
from handgrad.models.model import Model
from handgrad.train.config import TrainConfig
from handgrad.train.inside import step_after, step_inside
from handgrad.train.optimiser import State, clip, clip_each, update_all
from handgrad.train.sampled import Figures, Sampled


class Stepped(NamedTuple):
    """What one step did."""

    loss_nats: float  # mean over all targets of the step that count
    grad_norm: float  # of the whole gradient, before clipping
    n_targets: int  # targets that counted; 0: nothing was learned, and no weight has changed
    samples: Figures | None = None  # where they were asked for


def step_on(
    model: Model,
    batches: Sequence[Batch],
    g: Buffer | Room | None,
    state: State,
    lr: float,
    config: TrainConfig,
    step: int,
) -> Stepped:
    """Train on exactly these micro-batches, changing `model.params`, `state` and the gradient buffer `g` in place.
    The model is as `prepare.prepared` made it, and `g` as `prepare.gradient_of` did: a Room where the gradient is
    never held as one buffer; None is a Room for this step alone. Whichever it is, the weights are the same.

    Each micro-batch is divided by the targets of the *whole* step, so however the same rows are cut into micro-batches,
    loss, norm and weights are those of the one large batch. `step` (from 1) seeds dropout. Raises NumericError before
    anything is updated if the loss or the gradient is not finite.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=5, context=4, n_layers=1, n_heads=1, d_model=8), seed=0)
    >>> g, state = model.params.layout.zeros(), State.zeros(model.params.flat)
    >>> batch = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[1, 2, 3, 4]])
    >>> step_on(model, [batch], g, state, 1e-3, TrainConfig(), step=1).n_targets
    4
    """
    n_valid = sum(int((targets >= 0).sum()) for _, targets in batches)
    if n_valid == 0:
        if isinstance(g, Buffer):
            g.flat.zero_()
        return Stepped(0.0, 0.0, 0)
    runs = [
        Run(implementation=config.implementation, seed=dropout_seed(config.seed, step, micro))
        for micro in range(len(batches))
    ]
    sampled = Sampled.of(config)
    if config.update == "inside" or not isinstance(g, Buffer):
        assert len(batches) == 1, "micro-batches add up in a buffer"
        step_of = step_inside if config.update == "inside" else step_after
        room = g if isinstance(g, Room) else Room()
        with torch.no_grad():
            did = step_of(model, batches[0], state, lr, config, n_valid, runs[0], f"step {step}", room, sampled)
        return Stepped(*did, n_valid, sampled and sampled.figures(did[1]))
    receiver, loss = Accumulate.over(g), torch.zeros((), dtype=g.flat.dtype, device=g.flat.device)
    with torch.no_grad():
        for (inputs, targets), run in zip(batches, runs, strict=True):
            passed = model.loss_and_backward if sampled is None else partial(sampled.loss_and_backward, model)
            loss += passed(inputs, targets, receiver, n_valid=n_valid, run=run)
        receiver.settle()
        whole = config.clip if config.clip_by == "whole" else 0.0
        loss_nats, grad_norm = float(loss), clip(g.flat, whole, g.values())
        if not isfinite(loss_nats) or not isfinite(grad_norm):
            what = f"step {step}: the loss is {loss_nats} and the gradient's norm {grad_norm}; nothing was updated"
            raise not_finite(what, model, batches, runs, n_valid, g)
        if config.clip_by == "parameter":
            clip_each(g.values(), config.clip)
        update_all(model.params.flat, g.flat, state, lr, config, model.params.layout.n_decayed)
        model.refresh()
    return Stepped(loss_nats, grad_norm, n_valid, sampled and sampled.figures(grad_norm))


def dropout_seed(seed: int, step: int, micro: int) -> int:
    """Randomness without state: what a micro-batch drops depends on these three numbers alone."""
    digest = hashlib.blake2b(f"dropout/{seed}/{step}/{micro}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
