"""Steps that train: their trials, and what they make of results, true to the claim or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handgrad.lab.rungs import RUNGS
from handgrad.lab.steps import FAILS, HOLDS, OPEN, UNSURE, Number, above
from handgrad.lab.trained import arguments, memory
from handgrad.lab.trained.all import TRAINED
from handgrad.lab.trained.compared import PRODUCT, WINDOW
from handgrad.lab.trained.training import number, trials

STEPS = {step.name: step for step in TRAINED}


@pytest.mark.parametrize("name", STEPS)
def test_trials_differ_and_the_first_seed_comes_first(name):
    step = STEPS[name]
    keys = [trial.key for trial in step.trials()]
    assert len(set(keys)) == len(keys) >= 9
    assert set(step.rungs) <= set(RUNGS)
    assert "seed=" not in keys[0]
    assert sum("seed=" not in key for key in keys) * 3 == len(keys)
    assert step.question.endswith("?")
    assert step.judge({}).verdict == OPEN


def answers(step, accuracy):
    """Results of all its trials, made up: rung and task -> accuracy."""
    made = {}
    for trial in step.trials():
        rung = trial.key.split()[1]
        made[trial.key] = {"accuracy": accuracy(rung, trial.key), "diverged": "", "steps": 600, "elsewhere": {}}
    return made


@pytest.mark.parametrize(("lstm", "verdict"), [(0.4, HOLDS), (0.85, FAILS), (1.0, FAILS)])
def test_the_verdict_on_memory_follows_the_numbers(lstm, verdict):
    def says(rung, key):
        return {"rnn": 0.3, "lstm": lstm}.get(rung, 0.9) - 0.01 * ("pairs=" not in key) * (rung in memory.FIXED)

    got = memory.Memory().judge(answers(memory.Memory(), says))
    assert got.verdict == verdict
    assert f"the best fixed memory recalls {lstm:.0%}, the lesser of the two growing ones 90%" in got.because
    assert got.drawings[0].series["LSTM"]["y"] == pytest.approx([lstm, lstm, lstm - 0.01])


def test_a_fixed_memory_that_loses_nothing_as_pairs_are_added_refutes_the_claim():
    got = memory.Memory().judge(answers(memory.Memory(), lambda rung, key: 0.3 if rung in memory.FIXED else 0.9))
    assert got.verdict == FAILS


def test_without_equal_parameters_memory_is_open():
    step = memory.Memory()
    wide = {one.key for name in memory.FIXED for pairs in (4, 8) for one in memory.equal(name, pairs).seeds()}
    results = answers(step, lambda rung, key: 0.3 if rung in memory.FIXED else 0.9)
    assert step.judge({key: value for key, value in results.items() if key not in wide}).verdict == OPEN


def test_seeds_that_overlap_decide_nothing():
    far, near = Number.over("", [0.2, 1.0, 1.0]), Number.over("", [0.2, 0.3, 0.3])
    assert above(far, near, 0.1) == UNSURE
    assert above(far, Number.over("", [0.1, 0.1, 0.19]), 0.1) == HOLDS
    assert above(near, near, 0.1) == FAILS


def test_equal_parameters_take_part_in_the_verdict():
    """A wider LSTM that recalls all of it refutes the claim, though the narrow one fails."""
    step = memory.Memory()
    wide = {one.key for one in memory.equal("lstm", 4).seeds()}
    fixed = {"rnn": 0.3, "lstm": 0.3}
    got = step.judge(answers(step, lambda rung, key: 1.0 if key in wide else fixed.get(rung, 0.9)))
    assert got.verdict == FAILS


def test_two_numbers_of_parameters_are_equal():
    from handgrad.lab.rung import parameters

    wanted = parameters(RUNGS["transformer"], memory.base("transformer", 4).sizes)
    for name in memory.FIXED:
        assert parameters(RUNGS[name], memory.equal(name, 4).sizes) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("step", [PRODUCT, WINDOW], ids=lambda step: step.name)
@pytest.mark.parametrize(("newer", "verdict"), [(0.9, HOLDS), (0.52, FAILS), (0.3, FAILS)])
def test_the_verdict_of_a_comparison_follows_the_numbers(step, newer, verdict):
    more = {name for name, _ in step.more}
    got = step.judge(answers(step, lambda rung, key: newer if rung in more else 0.5))
    assert got.verdict == verdict
    assert f"{newer:.0%}" in got.because


def test_a_missing_rung_leaves_a_comparison_open():
    results = answers(PRODUCT, lambda rung, key: 0.5)
    got = PRODUCT.judge({key: value for key, value in results.items() if " softmax " not in key})
    assert got.verdict == OPEN
    assert "softmax" in got.because


def test_arguments_on_real_networks_of_a_few_steps():
    """Self-only reads nobody, exactly; fixed weights end; and each of the four conditions can refute the claim."""
    step, results = arguments.Arguments(), {}
    for one in arguments.quick(steps=3):
        results[arguments.training(one.name).key] = one.work(lambda what, part: None)
    by = {result["rung"]: result for result in results.values()}
    assert by["self_only"]["influence"] == 0.0
    assert all(by[name]["influence"] > 0 for name in ("source_only", "fixed", "tanh"))
    assert "17 tokens do not fit fixed weights learned for 16" in by["fixed"]["longer"]
    assert all(-1 <= one["likeness_before"] <= 1 for one in by.values())
    by["source_only"] |= {"likeness_after": 0.9, "loss_nats": 2.0}
    by["tanh"] |= {"likeness_after": 0.4, "loss_nats": 1.0}
    assert step.judge(results).verdict == HOLDS
    for name, change in (
        ("source_only", {"likeness_after": 0.3}),
        ("source_only", {"loss_nats": 0.5}),
        ("self_only", {"influence": 1e-9}),
        ("fixed", {"longer": ""}),
    ):
        changed = {key: r | change if r["rung"] == name else r for key, r in results.items()}
        assert step.judge(changed).verdict == FAILS


def test_seeds_come_before_comparisons_and_equal_trials_once():
    one = memory.base("rnn", 2)
    other = replace(one, name="lstm")
    order = [trial.key for trial in trials([*one.seeds(), *other.seeds(), *one.seeds()])]
    assert len(order) == 6
    assert [("seed=" in key) for key in order] == [False, False, True, True, True, True]


def test_a_network_that_diverged_recalls_nothing():
    results = [{"accuracy": None, "diverged": "step 3"}, {"accuracy": 0.5, "diverged": ""}]
    assert number("a", results, "accuracy").value == 0.25
    assert number("a", results[:1], "loss_nats") is None
