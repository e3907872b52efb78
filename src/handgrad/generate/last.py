"""The logits that follow the last token, and no others: those of a whole prompt would cost as much as many layers."""

from __future__ import annotations

from torch import Tensor

from handgrad.core.combine import inside
from handgrad.core.params import Tree
from handgrad.core.run import Run
from handgrad.models.model import HEAD, Model


def last_logits(model: Model, p: Tree, tokens: Tensor, run: Run) -> Tensor:
    """tokens ~ (B, T) -> logits ~ (B, V) after token T, by the numbers p: those of the model, or a copy of them.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> torch.allclose(last_logits(model, model.numbers, tokens, hg.Run()), model(tokens)[:, -1])
    True
    """
    if model.trunk is None:
        return model.layer.forward(p, tokens, run)[0][:, -1]
    a = model.trunk.forward(p, tokens, run)[0][:, -1:]
    logits, _ = model.layer.parts[HEAD].forward(inside(p, HEAD), a, run / HEAD)  # type: ignore[attr-defined]
    return run.show(HEAD, logits)[:, -1]
