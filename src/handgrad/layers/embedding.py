"""Token ids in, feature maps out; and the way back to logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from handgrad.core.errors import ShapeError
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.rules import embed, unembed


@dataclass(frozen=True)
class TokenEmbedding:
    """a = OHE(ids) w_emb, for ids ~ (B, T) below `vocabulary`."""

    vocabulary: int
    width: int
    std: float = 0.02

    def slots(self) -> dict[str, Slot]:
        return {"w_emb": Slot((self.vocabulary, self.width), self.std)}

    def forward(self, p: Tree, ids: Tensor, run: Run) -> tuple[Tensor, embed.Saved]:
        return embed.forward(ids, p["w_emb"])

    def backward(self, p: Tree, Delta: Tensor, saved: embed.Saved, grads: Gradients, run: Run) -> None:
        embed.backward("w_emb", Delta, saved, grads)


@dataclass(frozen=True)
class PositionEmbedding:
    """a = rows of w_pos for the positions of ids ~ (B, T), counted from `run.position`.

    Padding on the left stands at negative positions; it is given row 0, and no mask lets anybody read it.
    """

    context: int
    width: int
    std: float = 0.02

    def slots(self) -> dict[str, Slot]:
        return {"w_pos": Slot((self.context, self.width), self.std)}

    def forward(self, p: Tree, ids: Tensor, run: Run) -> tuple[Tensor, embed.Saved]:
        first, last = run.position, run.position + ids.shape[-1]
        if not isinstance(first, int) and first.ndim == 0:  # whoever holds such a position knows that it fits
            a, saved = embed.forward(first + torch.arange(ids.shape[-1], device=first.device), p["w_pos"])
            return a.expand(*ids.shape, self.width), saved
        if (most := int(torch.as_tensor(last).max())) > self.context:
            raise ShapeError(
                f"{most} tokens do not fit the context of {self.context} positions that this model has learned; "
                "give fewer tokens, or train with a longer context"
            )
        if isinstance(first, int) and first < 0:
            raise ShapeError(f"the first token stands at position {first}; positions count from 0")
        if isinstance(first, int):
            where = torch.arange(first, last, device=ids.device)
        else:
            where = (first[:, None] + torch.arange(ids.shape[-1], device=first.device)).clamp(min=0).to(ids.device)
        a, saved = embed.forward(where, p["w_pos"])
        return a.expand(*ids.shape, self.width), saved

    def backward(self, p: Tree, Delta: Tensor, saved: embed.Saved, grads: Gradients, run: Run) -> None:
        embed.backward("w_pos", Delta, saved, grads)


@dataclass(frozen=True)
class Unembedding:
    """logits = a w_embᵗ, for a ~ (..., width). Tie `w_emb` to the embedding's in the `Layout`."""

    vocabulary: int
    width: int
    std: float = 0.02

    def slots(self) -> dict[str, Slot]:
        return {"w_emb": Slot((self.vocabulary, self.width), self.std)}

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, unembed.Saved]:
        return unembed.forward(a, p["w_emb"])

    def backward(self, p: Tree, Delta: Tensor, saved: unembed.Saved, grads: Gradients, run: Run) -> Tensor:
        return unembed.backward(Delta, saved, p["w_emb"], grads)
