"""The loss over a whole piece of data, in evaluation: nothing is dropped, nothing is sampled."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy.typing as npt
import torch

from handgrad.core.run import Run
from handgrad.data.windows import validation_windows
from handgrad.models.diagnose import not_finite
from handgrad.models.model import Model


def evaluate(
    model: Model, tokens: npt.NDArray[Any], context: int, batch_size: int, implementation: str = "auto"
) -> tuple[float, int]:
    """Mean surprise in nats over every target of `tokens`, and how many targets there are.

    Every token but the first is a target exactly once, in consecutive windows of `context`. Raises DataError for fewer
    than two tokens, ShapeError for ids that the model does not know, NumericError for a loss that is not finite,
    naming the first signal that is not.

    >>> import handgrad as hg, numpy as np
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6, std=1e-9), seed=0)
    >>> loss_nats, n_targets = evaluate(model, np.arange(11), context=5, batch_size=2)
    >>> round(loss_nats, 4), n_targets
    (2.3979, 10)
    """
    total, n_targets, run = 0.0, 0, Run(implementation=implementation)
    device = model.params.flat.device
    with torch.no_grad():
        for ids, wanted in validation_windows(tokens, context, batch_size):
            inputs, targets = torch.from_numpy(ids).to(device), torch.from_numpy(wanted).to(device)
            surprise = float(model.loss(inputs, targets, n_valid=1, run=run))
            model.pending = None
            if not isfinite(surprise):
                raise not_finite(f"the validation loss is {surprise}", model, [(inputs, targets)], [run], 1, None)
            total += surprise
            n_targets += wanted.size
    return total / n_targets, n_targets
