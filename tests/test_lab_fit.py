"""Training a rung: it learns, equal seeds give equal results, trouble is reported and not raised."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from handgrad.lab.fit import Fit, key_of, measured, train
from handgrad.lab.rung import Sizes, network
from handgrad.lab.rungs import rung
from handgrad.lab.tasks import Patterns, Recall, longer
from handgrad.lab.text import Text

EASY = Recall(pairs=1, n_keys=4, n_values=4, n_fillers=1)
SIZES = Sizes(width=16, context=8, functions=1)
QUICK = Fit(steps=400, batch=32, every=20, sequences=64, lr=1e-2)


def without_time(result):
    return {name: value for name, value in result.items() if name != "seconds"}


def test_it_learns_and_stops_when_solved():
    said = []
    other = {"more": longer(EASY, pairs=4), "as trained": EASY}
    model, result = train(rung("softmax"), EASY, SIZES, QUICK, lambda what, part: said.append((what, part)), other)
    assert result["solved"]
    assert result["accuracy"] >= 0.999
    assert result["steps"] == 20 * len(result["curve"]) < 400
    assert len(said) == len(result["curve"])
    assert "16 tokens do not fit the context of 8" in result["elsewhere"]["more"]["refused"]
    assert result["elsewhere"]["as trained"]["accuracy"] == result["accuracy"]
    assert measured(model, EASY, QUICK) == (result["loss_nats"], result["accuracy"])


def test_equal_seeds_give_equal_results():
    results = [train(rung("rnn"), EASY, SIZES, replace(QUICK, steps=20, seed=seed))[1] for seed in (1, 1, 2)]
    assert without_time(results[0]) == without_time(results[1])
    assert results[0]["curve"] != results[2]["curve"]


def test_chance_before_training():
    loss, accuracy = measured(network(rung("rnn"), 71, Sizes(width=8)), Recall(n_fillers=7), Fit())
    assert accuracy < 0.1
    assert loss == pytest.approx(4.26, abs=0.5)  # ln 71


def test_trouble_is_reported():
    huge = replace(QUICK, lr=1e12, clip=0.0, steps=60)
    result = train(rung("bilinear"), EASY, SIZES, huge, elsewhere={"same": EASY})[1]
    assert "step" in result["diverged"]
    assert result["elsewhere"] == {}
    assert not result["solved"]
    brief = train(rung("rnn"), EASY, SIZES, replace(QUICK, minutes=1e-9))[1]
    assert brief["steps"] == 20
    assert "at step 20 of 400" in brief["stopped"]


def test_tasks_that_are_one_batch_and_tasks_that_hold_out():
    result = train(rung("w_2"), Patterns(side=3, n_answers=3), Sizes(width=8, context=2, functions=1), QUICK)[1]
    assert result["accuracy"] == 1.0
    text = train(rung("rnn"), Text(length=8), SIZES, replace(QUICK, steps=20))[1]
    assert text["curve"][-1][1] < 4.6
    assert not text["held_out"]


def test_a_key_names_what_the_result_depends_on():
    keys = {
        key_of(rung(name), task, sizes, fit)
        for name in ("rnn", "lstm")
        for task in (EASY, longer(EASY, pairs=2))
        for sizes in (SIZES, replace(SIZES, width=8))
        for fit in (QUICK, replace(QUICK, seed=1))
    }
    assert len(keys) == 16


def test_the_step_is_the_products():
    """One step by hand: gradient, clipping, AdamW with the rate of the first step."""
    from handgrad.lab.tasks import TRAIN, batch_of
    from handgrad.train.optimiser import State, clip, update_all
    from handgrad.train.schedule import lr_at

    fit = replace(QUICK, steps=1)
    model = network(rung("rnn"), EASY.vocabulary, SIZES, fit.seed)
    ids, targets = batch_of(EASY, fit.batch, fit.seed, TRAIN, 1)
    model.loss(ids, targets)
    g = model.backward()
    clip(g.flat, fit.clip)
    state = State.zeros(model.params.flat)
    update_all(model.params.flat, g.flat, state, lr_at(1, fit.config), fit.config, model.params.layout.n_decayed)
    trained = train(rung("rnn"), EASY, SIZES, fit)[0]
    assert torch.allclose(trained.params.flat, model.params.flat, atol=1e-5)
