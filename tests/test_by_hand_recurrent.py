"""Recurrent steps and the additive score in numbers that a reader can redo; docs/rules/recurrent.md shows the same."""

from math import tanh

import torch

from handgrad.core import Accumulate, Layout, Run
from handgrad.layers.recurrent import growing_memory, rnn
from handgrad.rules import additive, lstm
from handgrad.rules import rnn as rnn_rule


def close(found, right, tolerance=1e-12):
    right = torch.as_tensor(right, dtype=torch.float64)
    assert found.shape == right.shape
    assert (found - right).abs().max() <= tolerance, found


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1)


def passed(layer, x, Delta, **given):
    """Output, error below and gradient of a layer with the parameters given (dots as `__`), the rest 0."""
    p, g = (Layout(layer.slots()).zeros(torch.float64) for _ in range(2))
    for name, value in given.items():
        p[name.replace("__", ".")].copy_(torch.as_tensor(value, dtype=torch.float64))
    y, saved = layer.forward(p.tree, x, Run())
    return y, layer.backward(p.tree, Delta, saved, Accumulate(g.tree), Run()), g


def test_two_steps_of_an_rnn():
    y, below, g = passed(rnn(1, 1), column(1, 0), column(0, 1), w_x=[[1]], w_h=[[2]])
    h_0, h_1 = tanh(1), tanh(2 * tanh(1))
    close(y, column(h_0, h_1))
    close(y, column(0.7616, 0.9093), 5e-5)
    D_1 = 1 - h_1**2  # Δ_1 = 1, nothing later
    D_0 = (0 + D_1 * 2) * (1 - h_0**2)  # Δ_0 = 0: all of it came back through w_h
    close(below, column(D_0, D_1))
    close(below, column(0.1455, 0.1733), 5e-5)
    close(g["w_h"], [[h_0 * D_1]])  # h_{-1} = 0 adds nothing
    close(g["w_h"], [[0.1320]], 5e-5)
    close(g["w_x"], [[D_0]])
    close(g["b"], [D_0 + D_1])


def test_one_step_of_a_wide_rnn():
    x, h = torch.tensor([[1.0, 0.0, 2.0]]).double(), torch.zeros(1, 2).double()
    w_x, w_h = torch.tensor([[1.0, 2.0], [3.0, 4.0], [-0.5, -1.0]]).double(), torch.eye(2).double()
    y, saved = rnn_rule.forward(x, h, w_x, w_h, torch.zeros(2).double(), Run())
    close(y, [[0, 0]])  # 1·1 - 0.5·2 = 0 and 2·1 - 1·2 = 0: the slope of tanh is 1 there
    g = {"w_x": torch.zeros_like(w_x)}
    Delta_x, Delta_h = rnn_rule.backward(torch.ones(1, 2).double(), y + 1, saved, w_x, w_h, Accumulate(g), Run())
    close(Delta_h, [[2, 2]])  # Δ + carried = 1 + 1
    close(Delta_x, [[6, 14, -3]])  # (2, 2) w_xᵗ
    close(g["w_x"], [[2, 2], [0, 0], [4, 4]])  # xᵗ (2, 2)


def test_one_step_of_an_lstm_at_open_half_gates():
    one, zero = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    w, b = torch.zeros(1, 4).double(), torch.zeros(4).double()
    h, c, saved = lstm.forward(one, zero, 2 * one, w, w, b, Run())
    close(saved.gates, [[0.5, 0.5, 0.5, 0]])
    close(c, [[1]])  # ½·2 + ½·0
    close(h, [[tanh(1) / 2]])
    g = {"w_x": torch.zeros(1, 4).double(), "b": torch.zeros(4).double()}
    _, Delta_h, Delta_c = lstm.backward(one, zero, zero, saved, w, w, Accumulate(g), Run())
    through = (1 - tanh(1) ** 2) / 2  # Δ_c = Δ_h o (1 - tanh²(c)) = 0.2100
    right = [0, 2 * through / 4, tanh(1) / 4, through / 2]  # Δ_i = 0, Δ_f = 2 Δ_c, Δ_o = tanh(c), Δ_g = ½ Δ_c
    close(g["b"], right)
    close(g["b"], [0, 0.1050, 0.1904, 0.1050], 5e-5)
    close(g["w_x"], [right])
    close(Delta_c, [[through / 2]])  # f = ½
    close(Delta_h, [[0]])  # w_h = 0


def test_additive_score_of_two_tokens():
    q = k = column(0, 1)
    w = torch.tensor([[2.0]]).double()
    score, saved = additive.forward(q, k, w, Run())
    close(score[0, 0], [[0, 2 * tanh(1)], [2 * tanh(1), 2 * tanh(2)]])
    close(score[0, 0], [[0, 1.5232], [1.5232, 1.9281]], 5e-5)
    g = {"w": torch.zeros(1, 1).double()}
    Delta = torch.eye(2).double().view(1, 1, 2, 2)
    Delta_q, Delta_k = additive.backward(Delta, saved, Accumulate(g), Run())
    D = 2 * (1 - tanh(2) ** 2)
    close(Delta_q, column(2, D))  # row sums of [[2, 0], [0, D]]
    close(Delta_k, column(2, D))  # its column sums
    close(Delta_q, column(2, 0.1413), 5e-5)
    close(g["w"], [[tanh(2)]])  # pairs (0, 0) and (1, 1): tanh 0 + tanh 2


def test_additive_score_sums_rows_and_columns():
    q, k, w = column(0, 0), column(0, 0, 0), torch.tensor([[1.0]]).double()
    _, saved = additive.forward(q, k, w, Run())
    Delta = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).double().view(1, 1, 2, 3)
    Delta_q, Delta_k = additive.backward(Delta, saved, Accumulate({}), Run())
    close(Delta_q, column(6, 15), 0)
    close(Delta_k, column(5, 7, 9), 0)


def test_three_steps_with_a_growing_memory():
    """Scores are all 0 here, so that each step reads the plain mean of the states before it."""
    y, below, g = passed(growing_memory(1, 1, 1), column(1, 0, 0), column(0, 0, 1), w_x=[[1], [1]])
    h_0 = tanh(1)
    h_1 = tanh(h_0)
    h_2 = tanh((h_0 + h_1) / 2)
    close(y, column(h_0, h_1, h_2))
    close(y, column(0.7616, 0.6420, 0.6055), 5e-5)
    D_2 = 1 - h_2**2
    D_1 = D_2 / 2 * (1 - h_1**2)  # half of step 2's context is h_1
    D_0 = (D_2 / 2 + D_1) * (1 - h_0**2)  # h_0 was read by step 2, and by step 1
    close(below, column(D_0, D_1, D_2))
    close(below, column(0.2112, 0.1861, 0.6334), 5e-5)
    close(g["w_x"], [[D_0], [h_0 * D_1 + (h_0 + h_1) / 2 * D_2]])
