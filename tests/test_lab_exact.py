"""Steps without training: what they measure on the real layers, and that each can be refuted."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict, dataclass

import pytest
import torch

from handgrad.check.steps import steps as on_graph
from handgrad.core.errors import HandgradError
from handgrad.core.run import Run
from handgrad.lab import record
from handgrad.lab.chapters import CHAPTERS
from handgrad.lab.exact import (
    STEPS,
    absorbed,
    alone,
    common,
    cost,
    explosion,
    fixed,
    heads,
    interaction,
    kept,
    keys,
    normalisation,
    patterns,
    source,
)
from handgrad.lab.exact import steps as dependent
from handgrad.lab.formula import mathml
from handgrad.lab.run import plain
from handgrad.lab.rung import Sizes
from handgrad.lab.rungs import RUNGS, rung
from handgrad.lab.steps import FAILS, HOLDS, OPEN
from handgrad.models.load import load

BY_NAME = {step.name: step for step in STEPS}
MADE_UP = {  # trials of time, and one that takes seconds and has tests of its own: what they could give
    "steps: time": {name: [1.0, 4.0, 16.0, 64.0 * (2 if "memory" in name else 1)] for name in dependent.TIMED},
    "cost: time": {"all pairs, by tiles": [1.0, 4.0, 16.0, 64.0], "window, by tiles": [1.0, 2.0, 4.0, 8.0]},
    "cache: the example": {
        "full A": {"keys": 10**10, "values": 10**10},
        "A of rank 200": {"keys": 2 * 10**9, "values": 10**10},
        "V of rank 200 and W_o": {"keys": 2 * 10**9, "values": 2 * 10**9},
    },
}


def say(what, part):
    assert 0 <= part <= 1


@pytest.fixture(scope="module")
def results():
    """Of every step: key -> result, as it comes back from the disk."""
    found = {}
    for step in STEPS:
        for trial in step.trials():
            given = next((x for start, x in MADE_UP.items() if trial.key.startswith(start)), None)
            result = trial.work(say) if given is None else given
            found.setdefault(step.name, {})[trial.key] = json.loads(json.dumps(plain(result), allow_nan=False))
    return found


@pytest.mark.parametrize("name", BY_NAME)
def test_every_claim_holds_here_and_can_be_shown(name, results):
    step = BY_NAME[name]
    finding = step.judge(results[name])
    assert finding.verdict == HOLDS, finding.because
    assert finding.numbers
    assert finding.drawings
    record.check_finding(record.plain(asdict(finding)), name)
    assert "  " not in finding.because + step.claim + "".join(finding.notes[:1])


@pytest.mark.parametrize("name", BY_NAME)
def test_every_step_says_what_it_asks(name):
    step = BY_NAME[name]
    assert step.question.endswith("?")
    assert step.claim.endswith(".")
    assert set(step.rungs) <= set(RUNGS)
    assert mathml(step.formula, display=True)
    assert step.judge({}).verdict == OPEN
    assert sum(name in chapter.steps for chapter in CHAPTERS) == 1
    assert len({trial.key for trial in step.trials()}) == len(step.trials())


def refuted(results, name, change):
    """The verdict after `change` has been made to a copy of the results, which are given in the trials' order."""
    step = BY_NAME[name]
    changed = deepcopy([results[name][trial.key] for trial in step.trials()])
    change(*changed)
    return step.judge({trial.key: x for trial, x in zip(step.trials(), changed, strict=True)}).verdict


# Each change puts what another layer was measured to give in the place of what the claim is about.
REFUTED = {
    "steps": lambda chains, clocks: chains.update(tanh_softmax=chains["rnn"]),
    "fixed": lambda found: found["lengths"].update(fixed=found["lengths"]["softmax"]),
    "source": lambda found: found.update(source_only=found["tanh"]),
    "self": lambda found: found.update(self_only=found["source_only"]),
    "explosion": lambda counts, sums: sums.update(one_hot=sums["others"]),
    "interaction": lambda found: found["by_scale"].update(tanh=found["by_scale"]["dot product"]),
    "cache": lambda real, planned: planned["A of rank 200"].update(keys=10**10),
    "normalisation": lambda grown, sharp, two: grown.update(softmax=grown["low_rank"]),
    "heads": lambda two, kept, lost: two.update(same=two["others"]),
    "patterns": lambda found: found.update(none=found["64"]),
    "absorbed": lambda found: [one.update(norm=one["neither"]) for one in found["rests"]],
    "key-value": lambda found: [one.update(agreement=one["chance"][0]) for one in found["layers"]],
    "cost": lambda counts, clocks: counts.update({"window, by tiles": counts["all pairs, by tiles"]}),
}
ALSO = [
    ("steps", lambda chains, clocks: clocks.update(memory=[0.1] * 4)),
    ("fixed", lambda found: found["lengths"].update(softmax=8)),
    ("fixed", lambda found: found["parameters"].update(fixed=found["parameters"]["softmax"])),
    ("self", lambda found: found["self_only"][3].update(others_backward=1e-30)),
    ("self", lambda found: found["tanh"][0].update(least_earlier=0.0)),
    ("explosion", lambda counts, sums: counts["apart"].update(diagonal=counts["apart"]["v_sum"])),
    ("interaction", lambda found: found["regions"].update(product=1)),
    ("cache", lambda real, planned: real["kinds"]["full A, full V"].update(off=1e-3)),
    ("cache", lambda real, planned: real["by_rank"][1].update(keys=real["by_rank"][0]["keys"])),
    ("normalisation", lambda grown, sharp, two: sharp["largest"].reverse()),
    ("normalisation", lambda grown, sharp, two: two["off"].append(1e-6)),
    ("heads", lambda two, kept, lost: kept.update(narrow=kept["whole"])),
    ("absorbed", lambda found: found["exact"].append(1e-9)),
    ("cost", lambda counts, clocks: counts.update({"all pairs, by tiles": counts["window, by tiles"]})),
]


def test_every_step_has_a_refutation():
    assert set(REFUTED) == set(BY_NAME)


@pytest.mark.parametrize(("name", "change"), [*REFUTED.items(), *ALSO])
def test_other_measurements_refute_the_claim(name, change, results):
    assert refuted(results, name, lambda *found: None) == HOLDS
    assert refuted(results, name, change) == FAILS


@pytest.mark.parametrize("tokens", [1, 4, 7])
@pytest.mark.parametrize(("name", "units"), dependent.UNITS.items())
def test_chains_are_those_of_the_graph(name, units, tokens):
    """Two ways to count: chains beside the numbers, and the longest path in the graph of the computation."""
    layer = rung(name).build(Sizes(width=4, context=tokens, functions=2, hidden=3))
    found = dependent.counted(layer, 4, tokens, units)
    assert found == (tokens + 1 if name in dependent.RECURRENT else 2)
    assert found == on_graph(layer, 4, tokens, units).units


@dataclass(frozen=True)
class Written:
    """A running sum that is written in place, token after token; or something whose chains are not known."""

    how: str

    def slots(self):
        return {}

    def forward(self, p, a, run):
        if self.how == "sorted":
            return a.sort(1).values, None
        out = torch.zeros_like(a)
        for t in range(a.shape[1]):
            part = out[:, t]
            part.copy_(a[:, t] if t == 0 or self.how == "apart" else out[:, t - 1])
            part.add_(a[:, t])
            run.show(f"{t}.h", part)
        return out, None


def test_what_is_written_in_place_is_followed():
    assert dependent.counted(Written("in place"), 3, 5, ("*.h",)) == 5
    assert dependent.counted(Written("apart"), 3, 5, ("*.h",)) == 1
    with pytest.raises(HandgradError, match="gives several tensors"):
        dependent.counted(Written("sorted"), 3, 5, ("*.h",))


def test_weights_of_two_arguments_are_not_one_for_all():
    """The measurements themselves, on layers for which the claim is false."""
    assert source.measured(rung("source_only").build(source.SIZES), 7)["spread"] == 0.0
    assert source.measured(rung("dot").build(source.SIZES), 7)["spread"] > 1
    sees = alone.measured(rung("softmax").build(alone.SIZES), 7)
    assert min(sees["others"], sees["others_backward"], sees["least_earlier"]) > 1e-4
    field = torch.tensor(sees["field"])
    assert field.triu(1).max() == 0 < field.tril(-1)[-1, 0]


def test_a_text_that_is_too_long_is_refused():
    length, said = fixed.lengths(rung("fixed").build(fixed.SIZES))
    assert (length, "learned for 8" in said) == (8, True)
    assert fixed.lengths(rung("tanh").build(fixed.SIZES)) == (fixed.LONGEST, "")


def test_parameters_are_those_of_the_formula():
    """d² (2dh + 2h) and d (2dh + 2h), counted on the layout; H of them and H matrices."""
    one = 2 * 8 * explosion.HIDDEN + 2 * explosion.HIDDEN
    found = [explosion.size(x) for x in (explosion.separate(8, 64), explosion.separate(8, 8))]
    assert found == [64 * one, 8 * one]
    assert explosion.size(explosion.separate(8, 4, True)) == 4 * (one + 64)


def test_interaction_of_tanh_is_small_near_zero_and_a_third_of_a_sign():
    """tanh of a large sum of two equal normal numbers is its sign: 1/3 of its variance is interaction."""
    one = interaction.Additive(interaction.WIDTH, 1, 1, 1.0)
    assert interaction.share(one, 0, 1e-3) < 1e-3
    p = common.drawn(one, 0)
    p["source.w"].copy_(p["end.w"])
    assert interaction.share(one, 0, 1e3) == pytest.approx(1 / 3, abs=0.08)
    ring = torch.ones(4, 4, dtype=torch.bool)
    ring[1:3, 1:3] = False
    assert (interaction.regions(ring), interaction.regions(~ring), interaction.regions(ring & False)) == (1, 1, 0)


def test_the_cache_of_the_example_is_read_from_layers(monkeypatch):
    monkeypatch.setattr(kept, "BIG", {"width": 10, "heads": 2, "layers": 3})
    found = kept.narrow(4)
    assert found.keys == found.values == 5000 * 3 * 2 * 4 * 2


def test_the_sum_written_out_is_causal():
    layer = normalisation.heads(normalisation.low_rank(4, 2, 2, 0.5), 4, 2, 2)
    p, x = common.drawn(layer, 0), common.normal((5, 4), 0)
    other = torch.cat((x[:3], x[3:] + 1))
    found, changed = (normalisation.summed(p, a, 2, 1.0) for a in (x, other))
    assert torch.equal(found[:3], changed[:3])
    assert not torch.equal(found[3:], changed[3:])


def test_best_of_full_rank_is_the_matrix():
    V = common.normal((6, 6), 0)
    assert common.off(heads.best(V, 6), V) < 1e-12
    assert int(torch.linalg.matrix_rank(heads.best(V, 2))) == 2


def test_more_patterns_than_units_are_not_stored():
    assert patterns.without(17, 3) > 1e-3 > patterns.EXACT > patterns.without(16, 3)
    assert patterns.with_values(33, 32, 3) > patterns.EXACT > patterns.with_values(32, 32, 3)


def test_a_rest_is_what_no_matrix_gives():
    c = common.normal((50, 3), 0)
    assert absorbed.rest(c, c @ common.normal((3, 4), 1)) < 1e-14
    assert absorbed.rest(c, torch.ones(50, 1, dtype=torch.float64)) > 0.5


def test_values_that_are_dealt_out_at_random_agree_no_more_than_chance():
    """The whole measurement on the bundled model with the rows of W_2 exchanged: the claim is then refuted."""
    model = load(keys.MODEL)
    ids = keys.texts(model)[:24]
    right = keys.judged(keys.measured(model, ids))
    for i in range(model.config.n_layers):
        values = model.params[f"blocks.{i}.mlp.down.w"]
        values.copy_(values[torch.randperm(len(values), generator=torch.Generator().manual_seed(i))])
    wrong = keys.judged(keys.measured(model, ids))
    assert (right.verdict, wrong.verdict) == (HOLDS, FAILS)


def test_a_value_raises_the_token_that_it_points_at():
    model = load(keys.MODEL)
    values = model.w_head[[65, 97]] / model.params["norm.gamma"]
    a = common.normal((1, 1, model.config.d_model), 0, "stream").float()
    norm = model.layer.parts["norm"]
    before, after = (norm.forward(model.params.tree["norm"], x, Run())[0] @ model.w_head.mT for x in (a, a + values))
    near = (after - before)[0].argmax(-1)
    assert keys.raised(model, values).argmax(-1).tolist() == near.tolist()


def test_multiplications_between_tokens_are_counted():
    """H T² (d_ρ + d_h) for a whole matrix of weights."""
    layer, form = cost.FORMS["all pairs, matrix of weights"]
    found = cost.counted(layer, form, 128)
    assert found["multiplications"] == 128 * 128 * 2 * cost.WIDTH
    assert found["all"] == found["multiplications"] + 4 * 128 * cost.WIDTH**2
    assert found["kept"] >= cost.HEADS * 128 * 128 * 4
