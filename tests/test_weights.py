"""Checks that compare several rungs hold, and fail where they must."""

import inspect

import pytest
import torch

from handgrad.check import numeric_recurrent, numeric_weights
from handgrad.check.plant import Mistake, planted
from handgrad.check.report import LawBroken
from handgrad.core import Chain
from handgrad.layers import mixing, multihead, rungs
from handgrad.rules import additive, weights_mix, weights_normalise, weights_product


def checks(module):
    for name, f in inspect.getmembers(module, inspect.isfunction):
        if f.__module__ == module.__name__ and f.__annotations__["return"] == "None" and not f.__code__.co_argcount:
            yield pytest.param(f, id=name)


CHECKS = [*checks(numeric_recurrent), *checks(numeric_weights)]


@pytest.mark.parametrize("check", CHECKS)
def test_check_holds(check):
    check()


def test_all_checks_are_found():
    assert len(CHECKS) == 20


@pytest.mark.parametrize(
    ("check", "function", "line", "wrong"),
    [
        ("chunked", additive.chunked_backward, "Delta_k += below_k", "Delta_k = below_k"),
        ("chunked", additive.chunked_backward, "Saved(pair, w)", "Saved(pair * 0.9, w)"),
        ("chunked", additive.chunked_backward, "Delta_q.append(below_q)", "Delta_q.append(0 * below_q)"),
        ("chunked", additive.chunked_forward, "torch.cat(scores, 2)", "torch.cat(scores[::-1], 2)"),
        ("memory", additive.chunked_forward, "rows = max(1, chunk //", "rows = max(1, 9999 * chunk //"),
        (
            "longer_is_refused",
            mixing.FixedWeights.forward,
            "last = a.shape[-2]",
            "last = (a := a[:, : self.length]).shape[-2]",
        ),
        ("symmetric_without_the_end", rungs.source_only, "SOURCE", "END"),
        ("neighbours_are_alike", weights_normalise.kept, "score.where(allowed, 0.0)", "score"),
        ("alone", mixing.Itself.__call__, "key == query", "key <= query"),
        ("unique_weights", additive.forward, "q.unsqueeze(2) + k", "0 * q.unsqueeze(2) + k"),
        ("parameter_counts", rungs.diagonal, "hidden, width, std", "hidden, width + 1, std"),
        ("one_hot_sum", rungs.diagonal, "normalise=KEEP", "normalise=SOFTMAX"),
        ("interaction", numeric_weights.mixed_difference, "- f(a2, b) -", "+ f(a2, b) -"),
        ("removable", rungs.terms, "functions, END", "functions, SOURCE"),
        ("identity", weights_product.forward, "q @ k.mT", "2 * q @ k.mT @ k @ k.mT"),
        ("caches", numeric_weights.cache_bytes, "* itemsize", ""),
        ("normalised", weights_normalise.softened_forward, "score / tau", "score * tau"),
        ("normalised", weights_normalise.divide_forward, "wide / over", "wide"),
        ("heads", weights_mix.forward, "rho @ v)", "rho @ v.abs())"),
        ("absorbed", rungs.pieces, '{"up": w_1}', '{"activation": Pointwise(activation), "up": w_1}'),
        ("patterns", rungs.pieces, '{"down": w_2}', '{"down": Pointwise(activation)}'),
        ("key_value_store", rungs.pieces, "Pointwise(activation)", "SAME"),
    ],
)
def test_check_can_fail(check, function, line, wrong):
    f = getattr(numeric_weights, check, None) or getattr(numeric_recurrent, check)
    with planted(Mistake("", function, line, wrong, "", "")), pytest.raises(LawBroken):
        f()


def test_steps_that_wait_for_each_other_are_counted():
    """Attention upon a recurrent layer: T states, then one step more; the other way round as well."""
    from handgrad.check.steps import steps
    from handgrad.layers.recurrent import rnn

    for parts in (("one", "two"), ("two", "one")):
        layers = {"one": rnn(7, 7), "two": multihead.MultiHead(7, 1)}
        chain = Chain({name: layers[name] for name in parts})
        assert steps(chain, 7, 6, ("*.h", "two")).units == 7


def test_the_carried_check_can_fail():
    from handgrad.rules import rnn

    with planted(Mistake("", rnn.backward, "Delta + carried", "Delta", "", "")), pytest.raises(LawBroken, match="rnn"):
        numeric_recurrent.carried()


def test_mixed_difference_of_a_sum_is_nothing():
    a, b = torch.tensor(1.0), torch.tensor(2.0)
    assert numeric_weights.mixed_difference(lambda x, y: x + y, a, b, a, b) == 0
    assert numeric_weights.mixed_difference(lambda x, y: x * y, a, b, a, b) == 1


def test_figures_of_the_page():
    """The numbers that docs/rules/weights.md quotes beside those of tests/test_by_hand_weights.py."""
    from handgrad.check.steps import Steps
    from handgrad.core import Layout

    n = numeric_weights
    assert [n.of_rnn(T) for T in (1, 4, 16)] == [Steps(2, 14), Steps(5, 26), Steps(17, 74)]
    assert {n.of_attention(T).units for T in (1, 4, 16)} == {2}
    assert len({n.of_attention(T).operations for T in (2, 4, 16)}) == 1
    source, both = rungs.source_only(n.W, n.FUNCTIONS), rungs.matrix_sum(n.Additive(n.W, n.INNER, 2), n.W, 2)
    found = [n.likeness(n.run(layer, n.drawn(layer), n.tokens())) for layer in (source, both)]
    assert found == pytest.approx([0.91, 0.44], abs=0.005)
    large = [rungs.full_matrix(512, 64), rungs.diagonal(512, 64), rungs.matrix_sum(n.Additive(512, 64, 8), 512, 8)]
    assert [Layout(layer.slots()).count for layer in large] == [16_842_816, 98_368, 2_163_264]
    rests = n.rests()
    assert [rests[name] for name in ("second skip", "norm", "both")] == pytest.approx([0.48, 0.79, 0.83], abs=0.005)
    one = torch.tensor(1.0)
    assert n.mixed_difference(lambda x, y: (x + y).tanh(), one, -one, one, -one) == 0
    assert n.mixed_difference(lambda x, y: x * y, one, -one, one, -one) == 4
    assert numeric_recurrent.largest_bytes(1024, 64, None) == 268_435_456
    assert numeric_recurrent.largest_bytes(1024, 64, 1 << 20) == 4_194_304
