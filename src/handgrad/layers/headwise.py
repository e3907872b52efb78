"""Many heads, each a `Head` of its own: they may differ in d_ρ, d_h, mask and offsets.

a' = concat_h(a_h) w_o + b_o = Σ_h a_h w_o^h + b_o, where w_o^h ~ (d_h, width) are the rows of w_o that a_h meets.
Going back each head receives its block's part, Δ_h = Δ' (w_o^h)ᵗ, and the errors of all heads add at the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from handgrad.core.combine import Fork, Sum, inside
from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.run import Run
from handgrad.layers.head import Head
from handgrad.layers.linear import Linear


@dataclass(frozen=True)
class HeadwiseAttention:
    """Parameters `heads.0`, `heads.1`, … and `out`; `heads.Delta_from_0` is what head 0 sends down.

    >>> layer = HeadwiseAttention((Head(6, 3, 2), Head(6, 1, 5)))
    >>> layer.slots()["out.w"].shape
    (7, 6)
    """

    heads: tuple[Head, ...]
    bias: bool = True
    std_out: float = 0.02

    def __post_init__(self) -> None:
        widths = sorted({head.width for head in self.heads})
        if len(widths) != 1:
            raise ConfigError(
                f"heads of one layer read one input, but these expect widths {widths}; give every head the same width"
                if widths
                else "an attention layer needs at least one head, and got none"
            )

    @cached_property
    def fork(self) -> Fork:
        return Fork({str(h): head for h, head in enumerate(self.heads)})

    @cached_property
    def out(self) -> Linear:
        return Linear(sum(head.d_h for head in self.heads), self.heads[0].width, self.bias, self.std_out)

    def slots(self) -> dict[str, Slot]:
        return prefixed({"heads": self.fork.slots(), "out": self.out.slots()})

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        outputs, saved_heads = self.fork.forward(inside(p, "heads"), a, run / "heads")
        concat = run.show("concat", torch.cat(outputs, -1))
        y, saved_out = self.out.forward(inside(p, "out"), concat, run / "out")
        return y, [saved_heads, saved_out]

    def backward(self, p: Tree, Delta: Tensor, saved: list[Any], grads: Gradients, run: Run) -> Tensor:
        Delta = self.out.backward(inside(p, "out"), Delta, saved.pop(), grads / "out", run / "out")
        Delta = run.show("Delta_concat", Delta)
        Deltas = Delta.split([head.d_h for head in self.heads], -1)  # Δ_h = Δ' (w_o^h)ᵗ     of  cat(outputs)
        below: Tensor = self.fork.backward(inside(p, "heads"), Deltas, saved.pop(), grads / "heads", run / "heads")
        return below


def sum_of_heads(heads: tuple[Head, ...]) -> Sum:
    """Σ_h ρ_h (a V_h) with V_h = `value.w` of head h, as wide as the stream: heads that need no w_o.

    Equal to `HeadwiseAttention` where V_h = w_v^h w_o^h; but each head then keeps d numbers a token instead of d_h.

    >>> sorted(sum_of_heads((Head(6, 3, 6), Head(6, 2, 6))).slots())[:2]
    ['0.key.b', '0.key.w']
    """
    narrow = [head.d_h for head in heads if head.d_h != head.width]
    if narrow:
        raise ConfigError(
            f"heads that are added up must be as wide as the stream, {heads[0].width}; found d_h = {narrow[0]}. "
            "Give d_h = width, or use HeadwiseAttention"
        )
    return Sum(Fork({str(h): head for h, head in enumerate(heads)}))
