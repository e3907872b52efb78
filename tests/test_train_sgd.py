"""SGD, and clipping each parameter's gradient by itself: against torch, and the same in all three ways of a step."""

from __future__ import annotations

import pytest
import torch

from handgrad.core.collect import Room
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.model import build
from handgrad.train import checkpoint
from handgrad.train.config import TrainConfig
from handgrad.train.inside import collected, passing
from handgrad.train.optimiser import State
from handgrad.train.step import step_on

SHAPE = GPT2Config(vocabulary=257, context=7, n_layers=2, n_heads=1, d_model=13, tied=True)
WAYS = {"buffer": ("after", False), "pieces": ("after", True), "inside": ("inside", True)}


def trained(way: str, steps: int = 3, **settings):
    update, pieces = WAYS[way]
    config = TrainConfig(dtype="float64", update=update, lr=0.1, lr_floor=0.01, **settings)
    model = build(SHAPE, seed=1, dtype=torch.float64)
    state = State.zeros(model.params.flat, config.optimiser)
    g = Room() if pieces else model.params.layout.zeros(torch.float64)
    draw = torch.Generator().manual_seed(2)
    for step in range(1, steps + 1):
        x, y = (torch.randint(0, 257, (3, 7), generator=draw) for _ in range(2))
        step_on(model, [(x, y)], g, state, 0.1, config, step)
    return model, state


def far(one, other) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("clip_by", ["whole", "parameter"])
@pytest.mark.parametrize("way", ["pieces", "inside"])
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_all_ways_of_a_step_move_the_weights_alike(way, optimiser, clip_by):
    settings = {"optimiser": optimiser, "clip": 0.05, "clip_by": clip_by}
    one, other = trained(way, **settings)[0].params, trained("buffer", **settings)[0].params
    for name in one:
        if not name.endswith("key.b"):  # a softmax does not see it: its gradient is rounding, which AdamW makes large
            assert far(one[name], other[name]) < 1e-12, name


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_sgd_with_momentum_and_each_gradient_clipped_is_torchs(clip):
    config = TrainConfig(dtype="float64", optimiser="sgd", clip=clip, clip_by="parameter", weight_decay=0.0, beta1=0.7)
    ours, _ = trained("buffer", optimiser="sgd", clip=clip, clip_by="parameter", weight_decay=0.0, beta1=0.7)
    model = build(SHAPE, seed=1, dtype=torch.float64)
    theirs = {name: w.detach().clone().requires_grad_() for name, w in model.params.items()}
    optimiser = torch.optim.SGD(theirs.values(), lr=0.1, momentum=0.7)
    draw = torch.Generator().manual_seed(2)
    for _ in range(3):
        x, y = (torch.randint(0, 257, (3, 7), generator=draw) for _ in range(2))
        for name, w in theirs.items():
            model.params[name].copy_(w.detach())
        model.loss(x, y, n_valid=21)
        grads = model.backward()
        for name, w in theirs.items():
            w.grad = grads[name].clone()
            if clip:
                w.grad *= min(1.0, clip / float(w.grad.norm()))
        optimiser.step()
    for name, w in theirs.items():
        assert far(ours.params[name], w.detach()) < 1e-12, config


def test_clipping_each_is_another_rule_than_clipping_the_whole():
    whole, each = (
        trained("buffer", clip=0.05, clip_by=by, optimiser="sgd")[0].params.flat for by in ("whole", "parameter")
    )
    assert far(whole, each) > 1e-3


def test_clipping_each_inside_takes_one_pass(monkeypatch):
    passes = []
    monkeypatch.setattr("handgrad.train.inside.collected", lambda *a: passes.append(1) or collected(*a))
    trained("inside", steps=1, clip=1.0, clip_by="parameter")
    assert len(passes) == 1
    trained("inside", steps=1, clip=1.0, clip_by="whole")
    assert len(passes) == 3
    assert passing(build(SHAPE), None) is not None


def test_sgd_has_one_moment_and_a_checkpoint_keeps_it(tmp_path):
    model, state = trained("buffer", optimiser="sgd")
    assert state.v.numel() == 0
    from handgrad.data.tokenizers import Bytes

    config = TrainConfig(dtype="float64", optimiser="sgd")
    folder = checkpoint.save(tmp_path, model, state, checkpoint.Progress(step=3), config, Bytes())
    kept = checkpoint.load(folder)
    assert kept.state.v.numel() == 0
    assert kept.state.m.equal(state.m)
    assert kept.state.step == 3
