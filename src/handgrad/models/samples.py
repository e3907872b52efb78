"""How much each sample of a batch would move the model: norms and gradients of single samples.

The loss of a batch is the mean over its n targets; sample b has n_b of them. g_b is the gradient of the sample's own
mean loss, what `model.loss` gives for it alone, and

    Σ_b w_b g_b is the gradient of the batch, with w_b = n_b/n

With as many targets everywhere, w_b = 1/B. A sample without any target has g_b = 0 and w_b = 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.params import Layout
from handgrad.core.run import Run
from handgrad.models.model import Model
from handgrad.receivers.sample_gradients import SampleGradients
from handgrad.receivers.sample_norms import SampleNorms


@dataclass(frozen=True)
class Norms:
    """‖g_b‖ of every sample.

    norms          ~ (B,), over all parameters
    by_parameter   name -> ~ (B,), a tied parameter once
    by_head        name -> ~ (B, H), of the branches of attention, where heads were asked for
    weights        w_b ~ (B,), with which the g_b add up to the gradient of the batch
    """

    norms: Tensor
    by_parameter: Mapping[str, Tensor]
    by_head: Mapping[str, Tensor]
    weights: Tensor


@dataclass(frozen=True)
class SampleGrads:
    """name -> g_b ~ (B, *shape) for each parameter that was chosen, and `weights`, as in `Norms`."""

    gradients: Mapping[str, Tensor]
    weights: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.gradients[name]


def sample_norms(
    model: Model,
    tokens: Tensor,
    targets: Tensor | None = None,
    valid: Tensor | None = None,
    *,
    heads: bool = False,
    run: Run | None = None,
) -> Norms:
    """Norm of each sample's gradient, exact for tied and repeated tokens, in one pass; tokens, targets, valid as in
    `model.loss`. With `heads`, query, key, value and the output of attention also head by head.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=2, d_model=6), seed=0)
    >>> found = hg.sample_norms(model, torch.tensor([[1, 2, 3, 1], [4, 4, 4, 4]]), heads=True)
    >>> found.norms.shape, found.by_head["blocks.0.attention.query.w"].shape, found.weights
    (torch.Size([2]), torch.Size([2, 2]), tensor([0.5000, 0.5000]))
    """
    layout = model.params.layout
    cuts = heads_of(model, layout) if heads else {}
    receiver = SampleNorms.of(layout, tokens, cuts)
    weights = passed(model, tokens, targets, valid, receiver, run)
    own = inverse(weights)
    return Norms(
        receiver.norms() * own,
        {name: found.sqrt() * own for name, found in receiver.squares.items()},
        {name: receiver.by_head(name) * own.unsqueeze(1) for name in cuts},
        weights,
    )


def sample_gradients(
    model: Model,
    tokens: Tensor,
    targets: Tensor | None = None,
    valid: Tensor | None = None,
    *,
    names: Iterable[str] = ("*",),
    run: Run | None = None,
) -> SampleGrads:
    """The gradient of each sample for the parameters that `names` match, B times their memory.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=2, d_model=6), seed=0)
    >>> found = hg.sample_gradients(model, torch.tensor([[1, 2, 3, 1], [4, 4, 4, 4]]), names=["*.query.w"])
    >>> {name: g.shape for name, g in found.gradients.items()}
    {'blocks.0.attention.query.w': torch.Size([2, 6, 6])}
    """
    if isinstance(names, str):
        raise ConfigError(f"names is the text {names!r}, and must be a list of patterns, such as [{names!r}]")
    receiver = SampleGradients.of(model.params.layout, names, len(model.checked(tokens)))
    weights = passed(model, tokens, targets, valid, receiver, run)
    own = inverse(weights)
    return SampleGrads({name: g * own.view(-1, *[1] * (g.ndim - 1)) for name, g in receiver.named().items()}, weights)


def passed(
    model: Model, tokens: Tensor, targets: Tensor | None, valid: Tensor | None, grads: Gradients, run: Run | None
) -> Tensor:
    """One forward and one backward pass into `grads`; the weights w_b."""
    targets, counts = model.aimed(model.checked(tokens), targets, valid)
    n_of = counts.sum(1)
    n = int(n_of.sum())
    with torch.no_grad():
        model.loss_and_backward(tokens, targets.masked_fill(~counts, -1), grads, n_valid=max(n, 1), run=run)
    grads.finished()
    return n_of.to(model.params.flat.dtype) / max(n, 1)


def inverse(weights: Tensor) -> Tensor:
    """1/w, and 0 where w is 0."""
    return weights.reciprocal().masked_fill(weights == 0, 0.0)


def heads_of(model: Model, layout: Layout) -> dict[str, tuple[str, int]]:
    """The matrices of attention's branches that can be cut by head: their columns, and the rows of the output's."""
    n = getattr(model.config, "n_heads", 0)
    shared = getattr(model.config, "n_kv_heads", 0) or n
    cuts = {
        "query.w": ("columns", n),
        "key.w": ("columns", shared),
        "value.w": ("columns", shared),
        "out.w": ("rows", n),
    }
    return {
        name: cut
        for name in layout.places
        for ending, cut in cuts.items()
        if name.endswith(f"attention.{ending}") and cut[1]
    }
