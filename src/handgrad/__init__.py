"""handgrad: Transformers whose every gradient is written out by hand, in matrices, and proved.

Names are loaded when they are first used, so that `handgrad --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from handgrad.bridge.module import as_module  # noqa: F401
    from handgrad.check.explain import explain  # noqa: F401
    from handgrad.core import (  # noqa: F401
        Accumulate,
        Buffer,
        Chain,
        Fork,
        Layer,
        Layout,
        Recompute,
        Residual,
        Run,
        Sequence,
        Slot,
        Sum,
    )
    from handgrad.generate.generate import generate  # noqa: F401
    from handgrad.generate.sample import Sampling  # noqa: F401
    from handgrad.generate.score import Evaluation, evaluate  # noqa: F401
    from handgrad.layers.linear import Linear  # noqa: F401
    from handgrad.models.export import export  # noqa: F401
    from handgrad.models.gpt2 import GPT2Config  # noqa: F401
    from handgrad.models.llama import LlamaConfig  # noqa: F401
    from handgrad.models.load import load  # noqa: F401
    from handgrad.models.model import Model, build, watch  # noqa: F401
    from handgrad.models.samples import sample_gradients, sample_norms  # noqa: F401
    from handgrad.who.ranked import who  # noqa: F401

__version__ = "0.1.0"

_HOME = {
    "handgrad.bridge.module": "as_module",
    "handgrad.check.explain": "explain",
    "handgrad.core": "Accumulate Buffer Chain Fork Layer Layout Recompute Residual Run Sequence Slot Sum",
    "handgrad.layers.linear": "Linear",
    "handgrad.models.export": "export",
    "handgrad.models.gpt2": "GPT2Config",
    "handgrad.models.llama": "LlamaConfig",
    "handgrad.models.load": "load",
    "handgrad.models.model": "Model build watch",
    "handgrad.models.samples": "sample_gradients sample_norms",
    "handgrad.generate.generate": "generate",
    "handgrad.generate.sample": "Sampling",
    "handgrad.generate.score": "Evaluation evaluate",
    "handgrad.who.ranked": "who",
}
_NEAR = {"TrainConfig": "train", "resume": "train", "train": "train", "prepare": "data"}  # not here, but near
_NEAR |= {"Factors": "who.factors", "influence": "who.influence", "kfac": "who.kfac", "split_block": "who.block"}
_WHERE = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_WHERE)


def __getattr__(name: str):
    if name not in _WHERE:
        near = f"; it is one import away: from handgrad.{_NEAR[name]} import {name}" if name in _NEAR else ""
        raise AttributeError(f"module 'handgrad' has no attribute '{name}'{near}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(globals().keys() | _WHERE.keys())
