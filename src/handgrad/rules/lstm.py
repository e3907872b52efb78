"""One step of a long short-term memory: gates decide what enters the cell, what stays in it, and what is shown of it.

forward      pre = x w_x + h_before w_h + b              gates = [i, f, o, g] = [σ, σ, σ, tanh](pre), cut in four
             c = f ∘ c_before + i ∘ g                    h = o ∘ tanh(c)
backward     Δ_h = Δ + carried_h
             Δ_o = Δ_h ∘ tanh(c)                         Δ_c = carried_c + Δ_h ∘ o ∘ (1 - tanh(c)²)
             Δ_i = Δ_c ∘ g     Δ_g = Δ_c ∘ i     Δ_f = Δ_c ∘ c_before     Δ_c_before = Δ_c ∘ f
             Δ_pre = [Δ_i ∘ i(1-i), Δ_f ∘ f(1-f), Δ_o ∘ o(1-o), Δ_g ∘ (1-g²)]
             Δ_x = Δ_pre w_xᵗ     Δ_h_before = Δ_pre w_hᵗ     ∂L/∂w_x = xᵗ Δ_pre     ∂L/∂w_h = h_beforeᵗ Δ_pre
             ∂L/∂b = 1ᵗ Δ_pre
from         dh = do ∘ tanh(c) + o ∘ (1 - tanh(c)²) ∘ dc,   dc = df ∘ c_before + f ∘ dc_before + di ∘ g + i ∘ dg
shapes       x ~ (B, n_in)   h, c, i, f, o, g, Δ, carried_h, carried_c ~ (B, n)   pre, gates ~ (B, 4n)
             w_x ~ (n_in, 4n)   w_h ~ (n, 4n)   b ~ (4n,), blocks in the order i, f, o, g
assumes      the cell's error goes down through f alone, without a matrix and without tanh: that is what keeps it alive
cost         8·B·n·(n_in + n) FLOPs a step forward, twice that backward; saves x, both old states, gates and tanh(c)
source       second source, fixed memory; docs/equations.md, row "LSTM"
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.run import Run


class Saved(NamedTuple):
    x: Tensor  # (B, n_in)  factor of ∂L/∂w_x
    h_before: Tensor  # (B, n)  factor of ∂L/∂w_h
    c_before: Tensor  # (B, n)  factor of Δ_f
    gates: Tensor  # (B, 4n)  i, f, o, g after their activations: their slopes are formed from them
    shown: Tensor  # (B, n)  tanh(c)


def forward(
    x: Tensor, h_before: Tensor, c_before: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, run: Run
) -> tuple[Tensor, Tensor, Saved]:
    pre = run.show("pre", x @ w_x + h_before @ w_h + b)
    i, f, o, g = pre.chunk(4, -1)
    gates = run.show("gates", torch.cat((i.sigmoid(), f.sigmoid(), o.sigmoid(), g.tanh()), -1))
    i, f, o, g = gates.chunk(4, -1)
    c = run.show("c", f * c_before + i * g)
    shown = c.tanh()
    h = run.show("h", o * shown)
    return h, c, Saved(x, h_before, c_before, gates, shown)


def backward(
    Delta: Tensor,
    carried_h: Tensor,
    carried_c: Tensor,
    saved: Saved,
    w_x: Tensor,
    w_h: Tensor,
    grads: Gradients,
    run: Run,
) -> tuple[Tensor, Tensor, Tensor]:
    x, h_before, c_before, gates, shown = saved
    i, f, o, g = gates.chunk(4, -1)
    Delta_h = run.show("Delta_h", Delta + carried_h)  #                       of  h, read above and one step later
    Delta_o = Delta_h * shown  #                                              of  o * tanh(c), by o
    through_h = Delta_h * o * (1 - shown.square())  #                         of  o * tanh(c), by c
    Delta_c = run.show("Delta_c", carried_c + through_h)  #                   of  c, read by h and one step later
    Delta_i, Delta_g = Delta_c * g, Delta_c * i  #                            of  i * g
    Delta_f = Delta_c * c_before  #                                           of  f * c_before, by f
    Delta_c_before = Delta_c * f  #                                           of  f * c_before, by c_before
    Delta_gates = run.show("Delta_gates", torch.cat((Delta_i, Delta_f, Delta_o, Delta_g), -1))
    slopes = torch.cat((i * (1 - i), f * (1 - f), o * (1 - o), 1 - g.square()), -1)
    Delta_pre = run.show("Delta_pre", Delta_gates * slopes)  #                of  sigmoid, sigmoid, sigmoid, tanh
    grads.outer("w_x", x, Delta_pre)  # ∂L/∂w_x = xᵗ Δ_pre                    of  x @ w_x, by w_x
    grads.outer("w_h", h_before, Delta_pre)  # h_beforeᵗ Δ_pre                of  h_before @ w_h, by w_h
    grads.total("b", Delta_pre)  # ∂L/∂b = 1ᵗ Δ_pre                           of  + b
    Delta_x, Delta_h_before = Delta_pre @ w_x.mT, Delta_pre @ w_h.mT  #       of  x @ w_x and h_before @ w_h
    return Delta_x, Delta_h_before, Delta_c_before
