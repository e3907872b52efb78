"""Cross attention: one sequence asks, another answers. Two inputs, hence two errors that go down.

q = a w_q + b_q from the sequence that asks, a ~ (B, T, width); k, v = b w_k + b_k, b w_v + b_v from the one that
answers, b ~ (B, S, other). a' = concat_h(attend(q_h, k_h, v_h)) w_o + b_o ~ (B, T, width).
Δ_a = Δ_q w_qᵗ, and Δ_b = Δ_k w_kᵗ + Δ_v w_vᵗ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from handgrad.core.combine import Fork, inside
from handgrad.core.errors import ConfigError, ShapeError
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.run import Run
from handgrad.layers.linear import Linear
from handgrad.layers.mask import EVERYONE, Bound, Mask
from handgrad.layers.multihead import cut, joined
from handgrad.rules.attend import ATTEND


@dataclass(frozen=True)
class CrossAttention:
    """Parameters `query`, `key`, `value`, `out`; the input is a pair (a, b), and so is the error below.

    >>> CrossAttention(6, 4, heads=2).slots()["key.w"].shape
    (4, 6)
    """

    width: int
    other: int
    heads: int
    bias: bool = True
    mask: Mask = EVERYONE
    std: float = 0.02
    std_out: float = 0.02

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"a width of {self.width} cannot be cut into {self.heads} heads of equal width; "
                f"choose a width that is a multiple of {self.heads}"
            )

    @cached_property
    def asking(self) -> Fork:
        return Fork({"query": Linear(self.width, self.width, self.bias, self.std)})

    @cached_property
    def answering(self) -> Fork:
        return Fork({name: Linear(self.other, self.width, self.bias, self.std) for name in ("key", "value")})

    @cached_property
    def out(self) -> Linear:
        return Linear(self.width, self.width, self.bias, self.std_out)

    def slots(self) -> dict[str, Slot]:
        return self.asking.slots() | self.answering.slots() | prefixed({"out": self.out.slots()})

    def forward(self, p: Tree, ab: tuple[Tensor, Tensor], run: Run) -> tuple[Tensor, Any]:
        a, b = ab
        (query,), saved_a = self.asking.forward(p, a, run)
        (key, value), saved_b = self.answering.forward(p, b, run)
        allowed = Bound(self.mask, a.shape[-2], b.shape[-2], self.first(run), a.device)
        q, k, v = (cut(y, self.width // self.heads) for y in (query, key, value))
        heads, saved_attend = ATTEND.forward(q, k, v, allowed, run=run)
        y, saved_out = self.out.forward(inside(p, "out"), joined(heads), run / "out")
        return y, [saved_a, saved_b, saved_attend, saved_out]

    def backward(self, p: Tree, Delta: Tensor, saved: list[Any], grads: Gradients, run: Run) -> tuple[Tensor, Tensor]:
        Delta = self.out.backward(inside(p, "out"), Delta, saved.pop(), grads / "out", run / "out")
        Deltas = ATTEND.backward(cut(Delta, self.width // self.heads), saved.pop(), run)
        Delta_query, Delta_key, Delta_value = (joined(D) for D in Deltas)
        Delta_b: Tensor = self.answering.backward(p, (Delta_key, Delta_value), saved.pop(), grads, run)
        Delta_a: Tensor = self.asking.backward(p, (Delta_query,), saved.pop(), grads, run)
        return Delta_a, Delta_b

    def first(self, run: Run) -> int:
        """Padding on the left is of the sequence that asks; where every key answers, it makes no difference here."""
        if isinstance(run.position, int):
            return run.position
        if self.mask != EVERYONE:
            raise ShapeError(
                f"cross attention under {self.mask} cannot tell which keys a left-padded sequence may attend to; "
                "leave out the padding, or give no mask"
            )
        return 0
