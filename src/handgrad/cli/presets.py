"""Named settings, one dial wide. What a preset leaves open is as in the dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Fields of the model's and the training's configuration; the vocabulary comes from the tokenizer."""

    about: str
    model: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)


_SMALL = {"n_layers": 4, "n_heads": 4, "d_model": 128, "context": 64, "bias": False}
_QUICK = {"batch_size": 12, "lr": 1e-3, "lr_floor": 1e-4, "warmup": 100, "beta2": 0.99}

PRESETS: Mapping[str, Preset] = {
    "tiny": Preset(
        "2 layers, 2 heads, width 64, context 32: for trying things out",
        {"n_layers": 2, "n_heads": 2, "d_model": 64, "context": 32},
    ),
    "demo": Preset("4 layers, 4 heads, width 128, context 64, no biases: as in handgrad demo", _SMALL, _QUICK),
    "shakespeare": Preset("the same for 2,000 steps: the figures of the benchmark", _SMALL, {**_QUICK, "steps": 2000}),
    "gpt2-small": Preset(
        "12 layers, 12 heads, width 768, context 1024: the smallest GPT-2",
        {"n_layers": 12, "n_heads": 12, "d_model": 768, "context": 1024},
    ),
}
