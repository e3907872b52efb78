"""Steps of labelled trainings: what is compared is equal where it is said to be, and every verdict can go both ways."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from handgrad.lab.fit import Fit
from handgrad.lab.formula import mathml
from handgrad.lab.plots import drawn
from handgrad.lab.run import plain
from handgrad.lab.rung import Sizes, parameters
from handgrad.lab.rungs import RUNGS, rung
from handgrad.lab.steps import FAILS, HOLDS, OPEN
from handgrad.lab.tasks import Pocket
from handgrad.lab.trained import ladder, memory, mlp, normalise, pocket, positions, reading, values
from handgrad.lab.trained.labelled import paired

STEPS = {
    step.name: step
    for step in (
        pocket.AMOUNTS,
        values.VALUES,
        reading.RANK,
        reading.OUTPUT,
        normalise.NORMALISE,
        mlp.MLP,
        positions.POSITIONS,
        positions.SPARSE,
        ladder.WHOLE,
        ladder.PRICE,
    )
}
QUIET = Fit(steps=3, batch=8, sequences=8)


def made(step, says, **common):
    """Results of all trials of a step, made up: label -> what differs. Seeds differ by nothing but their number."""
    results = {}
    for label, training in step.cases:
        for one in training.seeds():
            results[one.key] = {
                "seed": one.fit.seed,
                "accuracy": 0.5,
                "loss_nats": 2.0,
                "diverged": "",
                "steps": 600,
                "seconds": 3.0,
                "chance": one.task.chance,
                "sizes": asdict(one.sizes),
                "stack_parameters": 1000,
                "state_bytes": 256,
                "side": 16,
                "entropy_before": 2.0,
                "entropy_after": 1.5,
                "top_before": 0.2,
                "top_after": 0.6,
                "pairs_read": 90 if label == positions.FITTING else 100,
                **common,
                **says.get(label, {}),
            }
    return results


def accuracy(**by):
    return {label: {"accuracy": x} for label, x in by.items()}


VERDICTS = [
    (pocket.AMOUNTS, accuracy(transformer=0.9, memory=0.6), HOLDS),
    (pocket.AMOUNTS, accuracy(transformer=0.9, memory=0.54), FAILS),
    (pocket.AMOUNTS, accuracy(transformer=0.9, memory=0.9, lstm=1.0), FAILS),
    (values.VALUES, {values.FEW: {"accuracy": 0.95}, values.FULL: {"accuracy": 0.99}}, HOLDS),
    (values.VALUES, {values.FEW: {"accuracy": 0.9}, values.FULL: {"accuracy": 0.99}}, FAILS),
    (values.VALUES, {values.ROW: {"accuracy": 0.6}}, FAILS),
    (values.VALUES, {label: {"accuracy": 0.1} for label in values.FUNCTIONS}, OPEN),
    (reading.RANK, {"text, r = 8": {"loss_nats": 2.01}, "text, r = 1": {"loss_nats": 2.3}}, HOLDS),
    (reading.RANK, {"text, r = 8": {"loss_nats": 2.03}, "text, r = 1": {"loss_nats": 2.3}}, FAILS),
    (reading.OUTPUT, {"4": {"loss_nats": 1.9}}, HOLDS),
    (reading.OUTPUT, {"4": {"loss_nats": 2.0}}, FAILS),
    (reading.OUTPUT, {"4": {"loss_nats": 2.1}, "16": {"loss_nats": 1.0}}, FAILS),
    (normalise.NORMALISE, {normalise.SOFTMAX: {"accuracy": 0.9, "entropy_after": 1.0}}, HOLDS),
    (normalise.NORMALISE, {normalise.SOFTMAX: {"accuracy": 0.9, "entropy_after": 1.6}}, FAILS),
    (normalise.NORMALISE, {normalise.SOFTMAX: {"accuracy": 0.54, "entropy_after": 1.0}}, FAILS),
    (mlp.MLP, {mlp.NONE: {"accuracy": 0.08}, mlp.ALONE: {"accuracy": 0.09}}, HOLDS),
    (mlp.MLP, {mlp.NONE: {"accuracy": 0.08}, mlp.ALONE: {"accuracy": 0.15}}, FAILS),
    (mlp.MLP, {mlp.NONE: {"accuracy": 0.08}, mlp.ALONE: {"accuracy": 0.08}, "W_2": {"accuracy": 0.09}}, FAILS),
    (positions.POSITIONS, {x: {"accuracy": 0.6} for x in (positions.WITH, positions.POCKET_WITH)}, HOLDS),
    (positions.POSITIONS, {positions.WITH: {"accuracy": 0.6}}, FAILS),
    (positions.POSITIONS, {positions.WITH: {"accuracy": 0.54}}, FAILS),
    (positions.SPARSE, {positions.FITTING: {"accuracy": 0.97}, positions.ALL: {"accuracy": 1.0}}, HOLDS),
    (positions.SPARSE, {positions.FITTING: {"accuracy": 0.9}, positions.ALL: {"accuracy": 1.0}}, FAILS),
    (positions.SPARSE, {x: {"accuracy": 1.0} for x in (positions.FITTING, positions.SMALL)}, FAILS),
    (positions.SPARSE, {x: {"accuracy": 1.0} for x in (positions.FITTING, positions.NEAR)}, FAILS),
    (ladder.WHOLE, accuracy(transformer=0.95, lstm=0.6, heads=0.99), HOLDS),
    (ladder.WHOLE, accuracy(transformer=0.9, lstm=0.6, heads=0.99), FAILS),
    (ladder.WHOLE, accuracy(transformer=0.9, lstm=0.87), FAILS),
    (ladder.PRICE, accuracy(transformer=0.9), HOLDS),
    (ladder.PRICE, accuracy(transformer=0.9, lstm=0.9), FAILS),
]


@pytest.mark.parametrize(("step", "says", "verdict"), VERDICTS, ids=lambda x: getattr(x, "name", ""))
def test_the_verdict_follows_the_numbers(step, says, verdict):
    got = step.judge(made(step, says))
    assert got.verdict == verdict, got.because
    assert len(got.because) > 40
    assert all(drawn(plain(asdict(one))) for one in got.drawings)
    assert got.numbers[0].label


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_only_what_is_needed_decides_and_what_is_missing_is_said(step):
    whole = made(step, {}, accuracy=0.8)
    for label in step.needed:
        gone = {one.key for one in dict(step.cases)[label].seeds()}
        got = step.judge({key: result for key, result in whole.items() if key not in gone})
        assert got.verdict == OPEN
        assert label in got.because
    needed = {one.key for label in step.needed for one in dict(step.cases)[label].seeds()}
    assert step.judge({key: result for key, result in whole.items() if key in needed}).verdict in (HOLDS, FAILS)
    assert mathml(step.formula, True).startswith("<math")
    assert {*step.rungs} <= {*RUNGS}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_one_seed_is_judged_but_for_a_difference_that_needs_an_interval(step):
    first = {one.seeds((0,))[0].key for _, one in step.cases}
    results = made(step, {}, accuracy=0.8)
    got = step.judge({key: result for key, result in results.items() if key in first})
    assert (got.verdict == OPEN) == (step is reading.OUTPUT)
    assert all(number.low is None for number in got.numbers)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_network_that_diverged_recalls_nothing_and_has_no_loss(step):
    last = dict(step.cases)[step.needed[-1]]
    results = made(step, {}, accuracy=0.8)
    for one in last.seeds():
        results[one.key] |= {"accuracy": None, "loss_nats": None, "diverged": "step 3", "entropy_after": None}
    assert (step.judge(results).verdict == OPEN) == (step.by == "loss_nats")


def test_trials_that_two_steps_share_have_one_key():
    whole = {trial.key for trial in ladder.WHOLE.trials()}
    assert {trial.key for trial in ladder.PRICE.trials()} <= whole
    cases = dict(positions.POSITIONS.cases)
    recall = {one.key for label in (positions.WITH, positions.WITHOUT) for one in cases[label].seeds()}
    assert recall <= whole
    assert {one.key for name in ladder.RECURRENT for one in memory.base(name, 4).seeds()} <= whole
    assert {one.key for one in pocket.training("transformer").seeds()} <= {t.key for t in positions.POSITIONS.trials()}


def test_the_ladder_has_all_rungs_but_one_and_slow_ones_come_last():
    assert {*RUNGS} - {*ladder.NAMES} == {"full_matrix"}
    order = [trial.key.split()[1] for trial in ladder.WHOLE.trials()]
    assert {*order[-3 * len(ladder.SLOW) :]} == {*ladder.SLOW}


def test_all_rungs_of_the_ladder_see_the_same_facts():
    """The recurrent three have one mark more; keys, values and their order are those of all others."""
    tasks = {ladder.training(name).task for name in ladder.NAMES}
    assert {replace(task, pause=0) for task in tasks} == {ladder.FOUR}
    assert {replace(ladder.training(n).fit, lr=0.003) for n in ladder.NAMES} == {ladder.QUICK}


def test_heads_differ_and_parameters_do_not():
    counts = {parameters(rung("transformer"), reading.headed(heads).sizes) for heads in reading.HEADS}
    assert len(counts) == 1
    step = made(reading.OUTPUT, {"4": {"stack_parameters": 1001}})
    assert reading.OUTPUT.judge(step).verdict == OPEN


def test_an_activation_alone_is_given_the_parameters_of_w_2():
    wanted = parameters(rung("w_2"), mlp.SIZES)
    assert parameters(rung("heads"), mlp.wider()) == pytest.approx(wanted, rel=0.1)
    assert mlp.wider().width > mlp.WIDTH


def test_a_rank_is_enough_only_where_all_larger_ones_are():
    says = {"text, r = 16": {"loss_nats": 2.1}, "text, r = 8": {"loss_nats": 2.0}}
    got = reading.RANK.judge(made(reading.RANK, says))
    assert got.numbers[0].value == reading.WIDTH
    assert reading.RANK.judge(made(reading.RANK, {"text, r = 2": {"loss_nats": 2.5}})).numbers[0].value == 4
    assert reading.key_bytes(8) * 4 == reading.key_bytes(32)


def test_the_pause_changes_what_stands_between_and_nothing_else():
    task, plainly = pocket.POCKET, Pocket(3, 2, 1, 16)
    (ids, targets), (old, asked) = (x.draw(5, torch.Generator().manual_seed(3)) for x in (task, plainly))
    assert ids.shape == (5, task.length) == (5, plainly.length + 3)
    many = task.words.index("many")
    marks = torch.zeros(task.length, dtype=torch.bool)
    marks[-10::4] = True
    assert (ids[:, marks] == many).all()
    assert torch.equal(ids[:, ~marks], old)
    assert torch.equal(targets[targets >= 0], asked[asked >= 0])
    assert torch.equal((targets >= 0).nonzero()[:, 1].unique(), marks.nonzero()[:, 0])
    assert torch.equal(ids.roll(-1, 1)[targets >= 0], targets[targets >= 0])


def test_a_difference_is_that_of_equal_seeds():
    old = [{"seed": s, "loss_nats": x} for s, x in ((0, 1.0), (1, 3.0), (2, None))]
    new = [{"seed": s, "loss_nats": x} for s, x in ((1, 2.5), (0, 0.5), (2, 1.0), (3, 9.0))]
    got = paired("less", new, old)
    assert (got.value, got.low, got.high, got.n) == (-0.5, -0.5, -0.5, 2)
    assert paired("less", new, []) is None


def small(training):
    sizes = replace(training.sizes, width=8, hidden=4, inner=8)
    return replace(training, sizes=sizes, fit=replace(QUIET, seed=training.fit.seed), elsewhere=())


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_judgement_of_real_networks_of_three_steps(step):
    """Small ones of every kind, under the keys of the large ones: what is measured is what the judgement reads."""
    results = {}
    for label, training in step.cases:
        if label in step.needed or training.more is not None:
            results[training.key] = plain(small(training).work(lambda what, part: None))
    got = step.judge(results)
    assert (got.verdict == OPEN) == (step in (reading.OUTPUT, values.VALUES))  # one seed; nothing learned
    assert not got.because.startswith("Not measured")


def test_weights_are_looked_at_before_and_after():
    result = small(normalise.training("softmax", 0.1)).work(lambda what, part: None)
    assert 0 < result["entropy_before"] <= torch.tensor(15.0).log() + 1e-5
    assert 1 / 16 < result["top_before"] < 1
    assert result["entropy_before"] != result["entropy_after"]
    sharp = small(normalise.training("softmax", 0.001)).work(lambda what, part: None)
    assert sharp["entropy_before"] < result["entropy_before"]
    assert sharp["top_before"] > result["top_before"]


def test_pairs_are_counted_on_the_computation():
    read = {
        label: small(positions.sparse(*one)).work(lambda what, part: None)["pairs_read"]
        for label, one in positions.SPARSE_RUNGS.items()
    }
    T, b = positions.APART.length, 8
    triangle = b * (b + 1) // 2
    assert read[positions.ALL] == T * (T + 1) // 2
    assert read[positions.FITTING] == 3 * triangle + 2 * b * b
    assert read[positions.NEAR] == triangle + (T - b) * b


def test_bytes_kept_grow_with_the_text_for_one_and_not_for_the_other():
    rows = made(ladder.PRICE, {})
    got = ladder.PRICE.judge(rows)
    s = Sizes(width=32, functions=2)
    assert got.numbers[0].value == 4 * 2 * 2 * 2 * s.r * 4096 / (4 * 2 * 64)
