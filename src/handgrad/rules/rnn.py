"""One step of a recurrent network: the state is written over by the input and by itself.

forward      pre = x w_x + h_before w_h + b         h = tanh(pre)
backward     Δ_h   = Δ + carried                    the output's error, and what later steps send back
             Δ_pre = Δ_h ∘ (1 - h²)                 D_t in the textbook's letters
             Δ_x   = Δ_pre w_xᵗ                     Δ_h_before = Δ_pre w_hᵗ: the next `carried`, one step earlier
             ∂L/∂w_x = xᵗ Δ_pre                     ∂L/∂w_h = h_beforeᵗ Δ_pre       ∂L/∂b = 1ᵗ Δ_pre
from         Δ_h·dh = (Δ_h ∘ (1 - h²))·dpre,
             Δ_pre·dpre = Δ_pre·(dx w_x + x dw_x + dh_before w_h + h_before dw_h + 1 db)
shapes       x ~ (B, n_in)   h_before, h, pre, Δ, carried ~ (B, n)   w_x ~ (n_in, n)   w_h ~ (n, n)   b ~ (n,)
assumes      the state is also the output, so h is read twice: above, and one step later
cost         2·B·n·(n_in + n) FLOPs a step forward, twice that backward; saves x, h_before and h. T steps follow one
             another, forward and backward: D_t = (Δ_t + D_{t+1} w_hᵗ) ∘ (1 - h_t²)
source       second source, fixed memory; docs/equations.md, row "RNN"
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.run import Run


class Saved(NamedTuple):
    x: Tensor  # (B, n_in)  factor of ∂L/∂w_x
    h_before: Tensor  # (B, n)  factor of ∂L/∂w_h; the same memory as the step before's h
    h: Tensor  # (B, n)  the derivative of tanh is 1 - h², so pre is not needed


def forward(x: Tensor, h_before: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, run: Run) -> tuple[Tensor, Saved]:
    pre = run.show("pre", x @ w_x + h_before @ w_h + b)
    h = run.show("h", pre.tanh())
    return h, Saved(x, h_before, h)


def backward(
    Delta: Tensor, carried: Tensor, saved: Saved, w_x: Tensor, w_h: Tensor, grads: Gradients, run: Run
) -> tuple[Tensor, Tensor]:
    x, h_before, h = saved
    Delta_h = run.show("Delta_h", Delta + carried)  #                   of  h, read above and one step later
    Delta_pre = run.show("Delta_pre", Delta_h * (1 - h.square()))  #    of  tanh(pre)
    grads.outer("w_x", x, Delta_pre)  # ∂L/∂w_x = xᵗ Δ_pre              of  x @ w_x, by w_x
    grads.outer("w_h", h_before, Delta_pre)  # h_beforeᵗ Δ_pre          of  h_before @ w_h, by w_h
    grads.total("b", Delta_pre)  # ∂L/∂b = 1ᵗ Δ_pre                     of  + b
    Delta_x = Delta_pre @ w_x.mT  #                                     of  x @ w_x, by x
    return Delta_x, Delta_pre @ w_h.mT  #                               of  h_before @ w_h, by h_before
