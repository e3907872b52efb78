"""Weights for oneself alone: no other token has any influence, forward or backward."""

from __future__ import annotations

import torch
from torch import Tensor

from handgrad.core.gradients import Accumulate
from handgrad.core.layer import Layer
from handgrad.core.run import Run
from handgrad.lab.exact.common import SEEDS, Exact, drawn, normal, output, verdict
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import rung
from handgrad.lab.steps import Drawing, Finding, Number, Result, Say, Trial

SIZES = Sizes(width=16, context=8, functions=4, layers=2)
NAMES = ("self_only", "source_only", "tanh")


def forward_influence(layer: Layer, seed: int) -> Tensor:
    """(T, T): the most that a change of token β moves output α."""
    p, a = drawn(layer, seed), normal((1, SIZES.context, SIZES.width), seed)
    before, found = output(layer, p, a), []
    for t in range(SIZES.context):
        changed = a.clone()
        changed[:, t] = normal((1, SIZES.width), seed, f"other {t}") * 10
        found.append((output(layer, p, changed) - before).abs().amax((0, 2)))
    return torch.stack(found, 1)


def backward_influence(layer: Layer, seed: int) -> Tensor:
    """(T, T): the most that an error at output α leaves at token β, by the layer's own backward map."""
    p, a = drawn(layer, seed), normal((1, SIZES.context, SIZES.width), seed)
    found = []
    for t in range(SIZES.context):
        y, saved = layer.forward(p.tree, a, Run())
        Delta = torch.zeros_like(y)
        Delta[:, t] = normal((1, SIZES.width), seed, "Delta")
        below = layer.backward(p.tree, Delta, saved, Accumulate(p.layout.zeros(torch.float64).tree), Run())
        assert isinstance(below, Tensor)
        found.append(below.abs().amax((0, 2)))
    return torch.stack(found)


def measured(layer: Layer, seed: int) -> Result:
    up, down = forward_influence(layer, seed), backward_influence(layer, seed)
    return {
        "others": float(others(up).max()),
        "others_backward": float(others(down).max()),
        "least_earlier": float(up[torch.ones_like(up).tril(-1) > 0].min()),
        "oneself": float(up.diagonal().min()),
        "field": up.tolist(),
    }


def others(influence: Tensor) -> Tensor:
    return influence - torch.diag(influence.diagonal())


def work(say: Say) -> Result:
    return {name: [measured(rung(name).build(SIZES), seed) for seed in SEEDS] for name in NAMES}


def judged(found: Result) -> Finding:
    alone, both = found["self_only"], found["tanh"]
    forward, backward = (max(one[key] for one in alone) for key in ("others", "others_backward"))
    least, oneself = min(one["least_earlier"] for one in both), min(one["oneself"] for one in alone)
    holds = forward == 0.0 and backward == 0.0 and oneself > 0 and least > 0
    because = (
        f"When another token is exchanged, an output moves by {forward:.3g}, and an error sends {backward:.3g} down to "
        f"it: {'exactly nothing' if forward == backward == 0.0 else 'not nothing'}, in {len(alone)} draws of two "
        f"layers. With weights of both tokens every earlier token moves every output, by {least:.2g} at least."
    )
    numbers = (
        Number("influence of other tokens, forward", forward),
        Number("influence of other tokens, backward", backward),
        Number("influence of the unit's own token, at least", oneself),
        Number("influence of earlier tokens with both arguments, at least", least),
    )
    places = list(range(1, SIZES.context + 1))
    fields = tuple(
        Drawing(
            f"How far outputs move: {rung(name).title}",
            "token exchanged",
            "output",
            {"change": {"x": places, "y": places, "z": found[name][0]["field"]}},
            "field",
        )
        for name in ("self_only", "tanh")
    )
    return Finding(verdict(holds), because, numbers, fields)


SELF = Exact(
    "self",
    "Is it enough that weights differ?",
    "Weights that are zero for every input but the unit's own break the symmetry, and leave a network without state: "
    "no other token can have any influence.",
    r"W_{\alpha\beta} = 0 \quad \text{unless} \quad \alpha = \beta",
    NAMES,
    (Trial(f"self: influence of each token, {SIZES}, seeds {SEEDS}", 2.0, work),),
    judged,
)
