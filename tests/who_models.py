"""Small models with random parameters in float64, for the tests of `handgrad.who`."""

from __future__ import annotations

import torch
from torch import Tensor

import handgrad as hg
from handgrad.models.llama import LlamaConfig

B, T = 3, 7
TOKENS = torch.randint(11, (B, T), generator=torch.Generator().manual_seed(1))


def close(found: Tensor, right: Tensor, most: float = 1e-12) -> None:
    assert right.norm() > 0
    assert (found - right).norm() <= most * right.norm()


def random(model: hg.Model) -> hg.Model:
    """Parameters that are nowhere at their first values: gains of 1 and offsets of 0 hide what is missing."""
    generator = torch.Generator().manual_seed(5)
    for name in model.params:
        model.params[name].normal_(0, 0.5, generator=generator)
    return model


def gpt(**other) -> hg.Model:
    shape = {"vocabulary": 11, "context": 13, "n_layers": 2, "n_heads": 3, "d_model": 15, "d_mlp": 17} | other
    return random(hg.build(hg.GPT2Config(**shape), dtype=torch.float64))


def llama(**other) -> hg.Model:
    shape = {"vocabulary": 11, "context": 13, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_model": 20, "d_mlp": 17}
    return random(hg.build(LlamaConfig(**(shape | {"d_head": 6, "bias": True} | other)), dtype=torch.float64))


def gradient_of(model: hg.Model) -> hg.Buffer:
    model.loss(TOKENS)
    gradient = model.backward()
    assert gradient is not None
    return gradient
