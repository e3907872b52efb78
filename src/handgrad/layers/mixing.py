"""Units that read each other: o_α = Σ_β x_β W_{αβ}, with W made by a score, a normalisation and matrices.

The rungs of docs/rules/weights.md are compositions of what is here; `layers/rungs.py` names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from handgrad.core.combine import Fork, inside
from handgrad.core.errors import ShapeError
from handgrad.core.gradients import Gradients
from handgrad.core.layer import Layer
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.rule import Rule
from handgrad.core.run import Run
from handgrad.layers.mask import CAUSAL, Device, First, Mask, positions
from handgrad.layers.scores import SAME, cut, joined
from handgrad.rules import weights_fixed
from handgrad.rules.weights_matrix import MATRIX
from handgrad.rules.weights_mix import MIX
from handgrad.rules.weights_normalise import KEEP, SOFTMAX


@dataclass(frozen=True)
class Itself:
    """A unit reads its own stream only: no interaction.

    >>> Itself()(2, 3, 1)
    tensor([[False,  True, False],
            [False, False,  True]])
    """

    def __call__(self, n_queries: int, n_keys: int, first: First, device: Device = "cpu") -> Tensor:
        query, key = positions(n_queries, n_keys, first, device)
        return key == query


@dataclass(frozen=True)
class Mixing:
    """out(concat_f(ρ_f v_f)): F sets of weights, each with a value cut from `value`, or the whole of it where `shared`.

    score       (B, T, width) -> (B, F, T, T)
    normalise   KEEP, DIVIDE or softened(τ): score -> ρ
    value       what is read of a source: Same(), or a Linear to fewer features a head
    out         what becomes of the sums side by side, (B, T, F·r): row block f of its matrix is V_f, or W_o's part

    shared, value = Same(), out = Linear(F·width, width)    Σ_f Σ_β ρ_f x_β V_f with whole matrices V_f
    value = Linear(width, F·r), out = Linear(F·r, width)    heads with values of r features, then W_o
    value = Same(), F = width, out = Same()                 a diagonal matrix: one function for each feature
    """

    score: Layer
    functions: int
    value: Layer = SAME
    out: Layer = SAME
    shared: bool = False
    normalise: Rule = SOFTMAX
    mask: Mask = CAUSAL

    @cached_property
    def branches(self) -> Fork:
        return Fork({"score": self.score, "value": self.value})

    def slots(self) -> dict[str, Slot]:
        return self.branches.slots() | prefixed({"out": self.out.slots()})

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        (score, v), saved = self.branches.forward(p, a, run)
        allowed = self.mask(a.shape[-2], a.shape[-2], 0, a.device)
        rho, normalised = self.normalise.forward(score, allowed, run=run)
        mixed, mixing = MIX.forward(rho, cut(v, 1 if self.shared else self.functions), run=run)
        y, saved_out = self.out.forward(inside(p, "out"), joined(mixed), run / "out")
        return y, [saved, normalised, mixing, saved_out]

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        saved, normalised, mixing, saved_out = saved
        Delta_mixed: Any = self.out.backward(inside(p, "out"), Delta, saved_out, grads / "out", run / "out")
        Delta_rho, Delta_v = MIX.backward(cut(Delta_mixed, self.functions), mixing, run)
        Delta_score = self.normalise.backward(Delta_rho, normalised, run)
        return self.branches.backward(p, (Delta_score, joined(Delta_v)), saved, grads, run)


@dataclass(frozen=True)
class MatrixMixing:
    """out_α = Σ_β x_β W_{αβ}, every entry of W_{αβ} ~ (d, m) a function of its own: score ~ (B, d·m, T, T)."""

    score: Layer
    normalise: Rule = KEEP
    mask: Mask = CAUSAL

    @cached_property
    def branches(self) -> Fork:
        return Fork({"score": self.score, "value": SAME})

    def slots(self) -> dict[str, Slot]:
        return self.branches.slots()

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        (score, x), saved = self.branches.forward(p, a, run)
        allowed = self.mask(a.shape[-2], a.shape[-2], 0, a.device)
        rho, normalised = self.normalise.forward(score, allowed, run=run)
        y, mixing = MATRIX.forward(rho, x, run=run)
        return y, [saved, normalised, mixing]

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        saved, normalised, mixing = saved
        Delta_rho, Delta_x = MATRIX.backward(Delta, mixing, run)
        Delta_score = self.normalise.backward(Delta_rho, normalised, run)
        return self.branches.backward(p, (Delta_score, Delta_x), saved, grads, run)


@dataclass(frozen=True)
class FixedWeights:
    """out_α = Σ_{β≤α} x_β W_{αβ}, one learned matrix for each pair of the first `length` positions.

    Parameters `0.w`, `1.w`, …: `α.w ~ ((α+1)·width, width)`, its row blocks are W_{α0} … W_{αα}. A longer input raises
    `ShapeError`: nothing was learned for it.

    >>> FixedWeights(3, 2).slots()["2.w"].shape
    (6, 2)
    """

    length: int
    width: int
    std: float = 0.02

    def slots(self) -> dict[str, Slot]:
        w = self.width
        return {f"{t}.w": Slot(((t + 1) * w, w), self.std) for t in range(self.length)}

    def matrices(self, p: Tree, tokens: int) -> list[Any]:
        return [inside(p, str(t))["w"] for t in range(tokens)]

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, weights_fixed.Saved]:
        last = a.shape[-2]
        if last > self.length:
            raise ShapeError(
                f"{last} tokens do not fit fixed weights learned for {self.length}: the positions after them have no "
                f"matrix; give at most {self.length} tokens, or let the weights be functions of the tokens"
            )
        return weights_fixed.forward(a, self.matrices(p, last))

    def backward(self, p: Tree, Delta: Tensor, saved: weights_fixed.Saved, grads: Gradients, run: Run) -> Tensor:
        return weights_fixed.backward(Delta, saved, self.matrices(p, Delta.shape[-2]), grads)
