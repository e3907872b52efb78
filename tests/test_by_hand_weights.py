"""Scores, normalisations and sums in numbers that a reader can redo; docs/rules/weights.md shows the same."""

from math import log

import pytest
import torch

from handgrad.core import Accumulate, Run
from handgrad.core.errors import ConfigError, ShapeError
from handgrad.layers.mixing import FixedWeights
from handgrad.rules import weights_fixed, weights_matrix, weights_mix, weights_product, weights_spread
from handgrad.rules.weights_normalise import DIVIDE, KEEP, softened

LOWER = torch.tensor([[True, False], [True, True]])
X = [[1, 0, 2], [0, 1, 1]]


def close(found, right, tolerance=1e-12):
    right = torch.as_tensor(right, dtype=torch.float64)
    assert found.shape == right.shape
    assert (found - right).abs().max() <= tolerance, found


def f64(rows):
    return torch.as_tensor(rows, dtype=torch.float64)


def one(rows):
    """One sample, one set of weights."""
    return f64(rows)[None, None]


def test_fixed_weights_of_two_positions():
    w = [f64([[2]]), f64([[3], [4]])]
    out, saved = weights_fixed.forward(f64([[[1], [2]]]), w)
    close(out, [[[2], [11]]])  # 1·2, and 1·3 + 2·4
    g = {"0": {"w": f64([[0]])}, "1": {"w": f64([[0], [0]])}}
    below = weights_fixed.backward(f64([[[1], [10]]]), saved, w, Accumulate(g))
    close(below, [[[32], [40]]])  # 1·2 + 10·3, and 10·4
    close(g["0"]["w"], [[1]])
    close(g["1"]["w"], [[10], [20]])


def test_fixed_weights_refuse_a_longer_input():
    layer = FixedWeights(2, 3)
    with pytest.raises(ShapeError, match=r"5 tokens do not fit fixed weights learned for 2.*give at most 2 tokens"):
        layer.forward({}, torch.zeros(1, 5, 3), Run())


def test_one_function_along_rows_and_columns():
    y, Delta = f64([[[1], [2]]]), one([[1, 2], [3, 4]])
    close(weights_spread.source_forward(y, Run())[0], [[[[1, 2], [1, 2]]]])
    close(weights_spread.end_forward(y, Run())[0], [[[[1, 1], [2, 2]]]])
    nothing = weights_spread.Saved()
    close(weights_spread.source_backward(Delta, nothing, Run()), [[[4], [6]]])
    close(weights_spread.end_backward(Delta, nothing, Run()), [[[3], [7]]])


def test_a_matrix_for_a_pair():
    W = f64([1, 2, 3, 4]).view(1, 4, 1, 1)
    out, saved = weights_matrix.forward(W, f64([[[1, 2]]]), Run())
    close(out, [[[7, 10]]])  # (1, 2) [[1, 2], [3, 4]]
    Delta_W, Delta_x = weights_matrix.backward(f64([[[1, 1]]]), saved, Run())
    close(Delta_W.view(2, 2), [[1, 1], [2, 2]])  # xᵗ Δ
    close(Delta_x, [[[3, 7]]])  # Δ Wᵗ


def test_dot_product_of_two_tokens():
    x = one(X)
    score, saved = weights_product.forward(x, x, Run())
    close(score, [[[[5, 2], [2, 2]]]])
    Delta_q, Delta_k = weights_product.backward(one([[1, 0], [1, 1]]), saved, Run())
    close(Delta_q, one([[1, 0, 2], [1, 1, 3]]))  # Δ x
    close(Delta_k, one([[1, 1, 3], [0, 1, 1]]))  # Δᵗ x


def test_kept_divided_and_softened():
    Delta = one([[1, 1], [1, 2]])
    kept, saved = KEEP.forward(one([[1, 5], [1, 3]]), LOWER, run=Run())
    close(kept, one([[1, 0], [1, 3]]))
    close(KEEP.backward(Delta, saved, Run()), one([[1, 0], [1, 2]]))
    rho, saved = DIVIDE.forward(one([[1, 5], [1, 3]]), LOWER, run=Run())
    close(rho, one([[1, 0], [0.25, 0.75]]))
    close(DIVIDE.backward(Delta, saved, Run()), one([[0, 0], [-0.1875, 0.0625]]))
    rho, saved = softened(1.0).forward(one([[0, 5], [0, log(3)]]), LOWER, run=Run())
    close(rho, one([[1, 0], [0.25, 0.75]]))
    close(softened(1.0).backward(Delta, saved, Run()), one([[0, 0], [-0.1875, 0.1875]]))
    rho, saved = softened(0.5).forward(one([[0, 5], [0, log(3) / 2]]), LOWER, run=Run())
    close(rho, one([[1, 0], [0.25, 0.75]]))
    close(softened(0.5).backward(Delta, saved, Run()), one([[0, 0], [-0.375, 0.375]]))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"a temperature of 0\.0 cannot be"):
        softened(0.0)


def test_mixing_two_tokens_of_three_features():
    rho, x = one([[1, 0], [0.25, 0.75]]), one(X)
    mixed, saved = weights_mix.forward(rho, x, Run())
    close(mixed, one([[1, 0, 2], [0.25, 0.75, 1.25]]))
    Delta_rho, Delta_x = weights_mix.backward(one([[1, 0, 0], [0, 1, 1]]), saved, Run())
    close(Delta_rho, one([[1, 0], [2, 2]]))  # Δ xᵗ
    close(Delta_x, one([[1, 0.25, 0.25], [0, 0.75, 0.75]]))  # ρᵗ Δ


def test_a_diagonal_is_one_set_of_weights_for_each_feature():
    f = f64([[1, 2, 3]]).view(1, 3, 1, 1)  # W = diag(1, 2, 3)
    x = f64(X)[:1].T.view(1, 3, 1, 1)  # the features of (1, 0, 2), each a head of its own
    mixed, _ = weights_mix.forward(f, x, Run())
    close(mixed.flatten(), [1, 0, 6])
