"""The same model in transformers: the same configuration, the same numbers, its own formulas and autograd."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from handgrad.check.verify_rows import Kept, Row
from handgrad.core.errors import HandgradError
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.hf_config import table_of
from handgrad.models.model import Model
from handgrad.models.names import Piece, gpt2_pieces, llama_pieces

NAME = "transformers"
BUDGET = 1e-10  # other formulas in float64
BUDGET_FLOAT32_PARTS = 2e-5  # its Llamas form norms and the angles of positions in float32, whatever their type


def why_not(model: Model) -> str | None:
    """Why there is no comparison with transformers; None where there is one."""
    if find_spec(NAME) is None:
        return f"{NAME} is not installed, so nothing was compared with it (pip install transformers)"
    if model.frozen:
        return f"not compared with {NAME}: it computes no low-rank updates (handgrad merge makes a plain model)"
    try:
        table_of(model.config, torch.float64, {})
    except HandgradError as error:
        return f"not compared with {NAME}: {error}"
    return None


def against_transformers(model: Model, tokens: Tensor, exact: Kept) -> list[Row]:
    """Our explicit pass in float64, judged by theirs: each block's output, logits, loss, errors and gradients."""
    with torch.enable_grad():
        theirs = by_transformers(model, tokens)
    budget = BUDGET if isinstance(model.config, GPT2Config) else BUDGET_FLOAT32_PARTS
    return exact.against(theirs, NAME, budget)


def by_transformers(model: Model, tokens: Tensor) -> Kept:
    other, pieces = built(model), pieces_of(model)
    kept: dict[str, Tensor] = {}

    def keeping(path: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            x = output[0] if isinstance(output, tuple) else output
            x.retain_grad()
            kept[path] = x

        return hook

    core = other.transformer if hasattr(other, "transformer") else other.model
    blocks = core.h if hasattr(core, "h") else core.layers
    watched = {f"blocks.{i}": block for i, block in enumerate(blocks)}
    watched |= {"norm": core.ln_f if hasattr(core, "ln_f") else core.norm, "head": other.lm_head}
    for path, module in watched.items():
        module.register_forward_hook(keeping(path))
    logits = other(tokens, use_cache=False).logits
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    named = dict(other.named_parameters())
    gradients = {name: piece.ours(named[piece.theirs].grad) for name, piece in pieces.items()}
    errors = {error_of(path): x.grad for path, x in kept.items()}
    return Kept({path: x.detach() for path, x in kept.items()} | {"loss": loss.detach()}, errors, gradients)


def built(model: Model) -> Any:
    """Their model in float64, with our numbers; what ours lacks (offsets of a model without any) is 0."""
    import transformers

    table = {name: value for name, value in table_of(model.config, torch.float64, {}).items() if "dtype" not in name}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.AutoConfig.for_model(table.pop("model_type"), **table, **ends)
    other = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    other.tie_weights()
    named, pieces = dict(other.named_parameters()), pieces_of(model)
    with torch.no_grad():
        for name, w in named.items():
            if name.endswith(".bias"):
                w.zero_()
        for name, piece in pieces.items():
            ours, theirs = model.params[name].double(), named[piece.theirs]
            place = theirs[..., slice(*piece.columns)] if piece.columns else theirs
            place.copy_(piece.back(ours))
    return other


def pieces_of(model: Model) -> dict[str, Piece]:
    shapes = {name: shape for name, (_, shape) in model.params.layout.places.items()}
    if isinstance(model.config, GPT2Config):
        return gpt2_pieces(model.config, shapes)
    return llama_pieces(model.config, shapes)


def error_of(path: str) -> str:
    folder, dot, name = path.rpartition(".")
    return f"{folder}{dot}Delta_{name}"
