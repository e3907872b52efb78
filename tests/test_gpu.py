"""The same numbers on a CUDA device. Skipped, by name, where there is none."""

import pytest
import torch

import handgrad as hg
from handgrad.train.config import MASTER, TrainConfig
from handgrad.train.optimiser import State
from handgrad.train.prepare import prepared
from handgrad.train.step import step_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: this machine has no CUDA device"),
]
SHAPE = hg.GPT2Config(vocabulary=211, context=150, n_layers=2, n_heads=3, d_model=48)


def trained(device, **settings):
    config = TrainConfig(device=device, **settings)
    model = prepared(hg.build(SHAPE, 1, MASTER[config.dtype], device), config)
    state = State.zeros(model.params.flat)
    g = model.params.layout.zeros(model.params.flat.dtype, device) if config.update == "after" else None
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randint(0, 211, (3, 150), generator=draw).to(device) for _ in range(2))
    losses = [step_on(model, [(x, y)], g, state, 1e-3, config, step).loss_nats for step in (1, 2, 3)]
    return losses, model.params.flat.cpu()


@pytest.mark.parametrize("settings", [{}, {"implementation": "explicit"}, {"update": "inside"}, {"recompute": "cheap"}])
def test_three_steps_are_those_of_the_processor(settings):
    right, weights = trained("cpu", dtype="float64")
    found, other = trained("cuda", dtype="float64", **settings)
    assert found == pytest.approx(right, rel=1e-12)
    assert float((other - weights).norm()) <= 1e-11 * float(weights.norm())


@pytest.mark.parametrize("compile", [False, True])
def test_bfloat16_learns_the_same(compile):
    right, _ = trained("cpu", dtype="float32")
    found, _ = trained("cuda", dtype="bfloat16", compile=compile)
    assert found == pytest.approx(right, rel=0.02)


def test_the_same_text_is_written():
    here, there = (hg.build(SHAPE, 1, torch.float64, device) for device in ("cpu", "cuda"))
    prompt = torch.tensor([1, 2, 3])
    assert torch.equal(hg.complete(here, prompt, 20), hg.complete(there, prompt, 20).cpu())
