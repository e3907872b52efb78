"""The suite catches what it is there to catch, and says where."""

import pkgutil
from collections import Counter

import pytest

import handgrad.rules
import handgrad.rules.fused
from handgrad.check.cases import CASES
from handgrad.check.mistakes import MISTAKES
from handgrad.check.plant import Mistake, found, planted, seen
from handgrad.check.report import LawBroken
from handgrad.rules import linear


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.rule}: {m.what}")
def test_planted_mistake_is_caught_and_located(mistake):
    assert found(mistake) == mistake.where


@pytest.mark.parametrize("name", sorted({m.on for m in MISTAKES}))
def test_nothing_is_seen_where_nothing_is_planted(name):
    assert seen(name) is None


def test_every_rule_has_three_mistakes():
    planted_in = Counter(m.rule for m in MISTAKES)
    folders = (handgrad.rules.__path__, handgrad.rules.fused.__path__)
    rules = {m.name for folder in folders for m in pkgutil.iter_modules(folder) if not m.ispkg}
    assert {rule: planted_in[rule] for rule in rules if planted_in[rule] < 3} == {}
    assert {m.on for m in MISTAKES} <= {c.name for c in CASES}


def test_the_code_is_right_again_afterwards():
    before = linear.backward.__code__
    with planted(MISTAKES[0]):
        assert linear.backward.__code__ is not before
    assert linear.backward.__code__ is before


def test_a_mistake_whose_line_is_gone_is_reported():
    with (
        pytest.raises(LawBroken, match=r"'a @ u' stands 0 times in backward, not once"),
        planted(Mistake("stale", linear.backward, "a @ u", "a", "linear", "w")),
    ):
        pass
