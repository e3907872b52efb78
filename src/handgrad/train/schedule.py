"""The learning rate of each optimiser step: up in a straight line, then down along half a cosine to a floor.

lr(t) = lr · t/w                                                        1 ≤ t ≤ w
lr(t) = floor + (lr - floor) · (1 + cos(π (t - w)/(steps - w)))/2       w ≤ t ≤ steps
lr(t) = floor                                                           t > steps
w = max(warmup, 1): step 1 is never at rate 0, and without warmup it is the peak.
"""

from __future__ import annotations

from math import cos, pi

from handgrad.train.config import TrainConfig


def lr_at(step: int, config: TrainConfig) -> float:
    """The learning rate of the optimiser step number `step`, counted from 1; micro-batches do not count.

    Finite and never rising after its peak, whatever the warmup: with `steps` ≤ `warmup` the rate rises until the last
    step. A step beyond the end (a run that is continued) stays at the floor.

    >>> config = TrainConfig(steps=20, warmup=10, lr=1.0, lr_floor=0.1, accumulate=4)
    >>> [round(lr_at(t, config), 3) for t in (1, 5, 10, 15, 20, 21)]
    [0.1, 0.5, 1.0, 0.55, 0.1, 0.1]
    """
    peak = max(config.warmup, 1)
    if step > config.steps:
        return config.lr_floor
    if step <= peak:
        return config.lr * max(step, 0) / peak
    progress = (step - peak) / (config.steps - peak)
    return config.lr_floor + (config.lr - config.lr_floor) * (1 + cos(pi * progress)) / 2
