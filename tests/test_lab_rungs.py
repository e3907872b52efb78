"""Every rung: its derivatives by the oracle, what it reads, its difference to the rung before it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from handgrad.check import laws
from handgrad.check.case import Case
from handgrad.check.plant import Mistake, planted
from handgrad.check.report import LawBroken
from handgrad.core.errors import UnknownName
from handgrad.core.params import Layout
from handgrad.core.run import Run
from handgrad.lab import rung as lab_rung
from handgrad.lab.parts import OneHot, Waves
from handgrad.lab.rung import LabConfig, Ladder, Sizes, network, parameters, width_for
from handgrad.lab.rungs import RUNGS, difference, in_order, rung
from handgrad.layers.linear import Linear

SMALL = Sizes(width=6, context=5, functions=2, hidden=3, inner=7, window=2)
SOME = ((3, 1, 3, 0, 10), (1, 1, 9, 2, 3))  # a token twice


def case(name: str) -> Case:
    one = RUNGS[name]
    zeros = tuple(n for n in LabConfig(one, SMALL, 11).layers().slots() if n.endswith("attention.key.b"))
    return Case(name, LabConfig(one, SMALL, 11).layers(), ids=SOME, causal=one.causal, zeros=zeros)


@pytest.mark.parametrize("name", RUNGS)
def test_every_derivative_is_autograds(name):
    """Each shown error and each gradient of the whole model at 1e-12; `divide` where its sums are not near 0."""
    laws.oracle(case(name))


@pytest.mark.parametrize("name", RUNGS)
def test_no_rung_reads_later_tokens(name):
    laws.causality(case(name))


@pytest.mark.parametrize("name", RUNGS)
def test_only_self_only_reads_nobody_else(name):
    layer, s = RUNGS[name].build(SMALL), SMALL
    p = Layout(layer.slots()).draw(1, torch.float64)
    a = torch.randn(1, 5, s.width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    other = a.clone()
    other[:, [0, 3], 0] += 1  # one feature: a norm does not see what is added to all
    last, last_other = (layer.forward(p.tree, x, Run())[0][:, 4] for x in (a, other))
    assert torch.equal(last, last_other) == (not RUNGS[name].reads)


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_differs_from_the_one_before_in_few_lines(name):
    one, lines = RUNGS[name], difference(name)
    assert 2 <= len(lines) <= 15
    assert len(one.source.splitlines()) <= 12
    assert (one.before == "") == (name == "rnn")
    if one.before:
        assert list(RUNGS).index(one.before) < list(RUNGS).index(name)


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_says_what_it_is(name):
    one = RUNGS[name]
    assert one.title
    assert one.question.endswith("?")
    assert one.formula


def test_a_wrong_line_is_caught():
    mistake = Mistake("", OneHot.backward, "Delta @ one_hot", "2 * Delta @ one_hot", "", "")
    with planted(mistake), pytest.raises(LawBroken):
        laws.oracle(case("one_hot"))


def test_the_diagonal_is_the_sum_of_one_hot_matrices_and_of_learned_ones_that_are_one_hot():
    s = SMALL
    a = torch.randn(2, 5, s.width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    outputs = []
    for name in ("diagonal", "one_hot"):
        layer = RUNGS[name].build(s)
        outputs.append(layer.forward(Layout(layer.slots()).draw(1, torch.float64).tree, a, Run())[0])
    assert outputs[0].norm() > 0
    assert (outputs[0] - outputs[1]).norm() <= 1e-12 * outputs[0].norm()
    V = {"w": torch.cat([torch.diag(row) for row in torch.eye(3, dtype=torch.float64)])}
    pieces = torch.randn(2, 9, dtype=torch.float64)
    learned = Linear(9, 3, False).forward(V, pieces, Run())[0]
    assert torch.equal(learned, OneHot(3).forward({}, pieces, Run())[0])


def test_waves_have_the_size_of_the_tokens():
    S = Waves(64, 0.5).forward({}, torch.zeros(1, 300, 64), Run())[0]
    assert float(S.square().mean().sqrt()) == pytest.approx(0.5, rel=1e-6)


def test_numbers_of_parameters_and_bytes():
    s = Sizes(width=8, context=6, functions=2, hidden=3, layers=2)
    count = {name: parameters(one, s) // 2 for name, one in RUNGS.items() if name != "transformer"}
    assert count["rnn"] == 8 * 8 + 8 * 8 + 8
    assert count["lstm"] == 4 * count["rnn"]
    assert count["fixed"] == 8 * 8 * (6 * 7 // 2)
    assert count["full_matrix"] == 8 * 3 + 8 * 3 + 3 + 3 * 8 * 8
    assert count["diagonal"] == 8 * 3 + 8 * 3 + 3 + 3 * 8
    assert count["bilinear"] == 2 * 8 * 8 + 2 * 8 * 8
    assert count["low_rank"] == 2 * 8 * 8 + 2 * 8 * 8
    assert parameters(rung("rnn"), s, 11) == 2 * count["rnn"] + 2 * 11 * 8
    assert rung("lstm").state_bytes(s, 100) == 2 * 2 * 8 * 4
    assert rung("transformer").state_bytes(s, 100) == 2 * 100 * 2 * 8 * 4


def test_a_width_is_found_for_a_number_of_parameters():
    s = Sizes(width=32, functions=1)
    wide = width_for(rung("rnn"), s, parameters(rung("transformer"), s))
    near, wanted = parameters(rung("rnn"), wide), parameters(rung("transformer"), s)
    for other in (wide.width - 4, wide.width + 4):
        assert abs(near - wanted) <= abs(parameters(rung("rnn"), replace(s, width=other)) - wanted)


def test_a_model_of_a_rung_learns_and_is_drawn_from_its_seed():
    tokens = torch.tensor(SOME)
    for name in RUNGS:
        model, again, other = (network(rung(name), 11, SMALL, seed) for seed in (1, 1, 2))
        assert torch.equal(model.params.flat, again.params.flat)
        assert not torch.equal(model.params.flat, other.params.flat)
        loss, g = model.loss(tokens), model.backward()
        model.params.flat.sub_(g.flat, alpha=1e-4 / float(g.flat.norm()))
        assert model.loss(tokens) < loss


def test_rungs_by_name():
    assert [one.name for one in in_order(["transformer", "rnn"])] == ["rnn", "transformer"]
    with pytest.raises(UnknownName, match="no rung named 'lstmm'; did you mean 'lstm'"):
        rung("lstmm")


def test_two_rungs_of_one_name_are_refused():
    ladder = Ladder()
    words = {"title": "", "question": "", "before": "", "formula": ""}
    ladder.rung("a", **words)(lab_rung.nothing)
    with pytest.raises(ValueError, match="two rungs named 'a'"):
        ladder.rung("a", **words)(lab_rung.nothing)
