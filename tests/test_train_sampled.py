"""Clipping sample by sample against samples taken alone, however the step is cut and updated; norms and noise."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import handgrad as hg
from handgrad.cli import main
from handgrad.core.collect import Room
from handgrad.core.compiler import no_compiler
from handgrad.core.errors import ConfigError, NumericError
from handgrad.core.gradients import Accumulate
from handgrad.core.params import Slot
from handgrad.data import prepare
from handgrad.data.corpus import Corpus
from handgrad.models.model import Model
from handgrad.plan.plan import plan
from handgrad.receivers import sample_norms
from handgrad.receivers.sample_norms import SampleNorms
from handgrad.receivers.several import Measured
from handgrad.train import sampled
from handgrad.train.config import TrainConfig
from handgrad.train.loop import train
from handgrad.train.optimiser import State
from handgrad.train.prepare import prepared
from handgrad.train.step import Stepped, step_on

SHAPE = hg.GPT2Config(vocabulary=11, context=5, n_layers=2, n_heads=2, d_model=8, std=0.2)
CONFIG = TrainConfig(clip=0.0, dtype="float64", sample_clip=4.2, lr=1e-2, recompute="nothing")
WAYS: dict[str, dict[str, Any]] = {
    "after, in a buffer": {},
    "after, piece by piece": {"room": True},
    "inside": {"update": "inside"},
    "inside, clipped as a whole": {"update": "inside", "clip": 0.3},
    "clipped as a whole": {"clip": 0.3},
    "micro-batches": {"accumulate": 3},
    "blocks recomputed": {"recompute": "blocks"},
}


def batch(rows: int = 6, holes: bool = True) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(11, (rows, 6), generator=torch.Generator().manual_seed(4))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    if holes:
        targets[0, 1:], targets[2, 3:], targets[4] = -100, -1, -1
    return inputs, targets


def taken(config: TrainConfig, room: bool = False, shape: hg.GPT2Config = SHAPE) -> tuple[Stepped, Model]:
    torch_dtype = torch.float64 if config.dtype == "float64" else torch.float32
    model = hg.build(shape, seed=3, dtype=torch_dtype)
    state = State.zeros(model.params.flat)
    inside = room or config.update == "inside"
    g = Room() if inside else model.params.layout.zeros(torch_dtype)
    batches = list(zip(*(x.chunk(config.accumulate) for x in batch()), strict=True))
    return step_on(prepared(model, config), batches, g, state, config.lr, config, 1), model


def by_hand(config: TrainConfig) -> tuple[Model, Tensor, Tensor, float]:
    """The same step from the gradient of each sample alone: weights after it, norms, shares, norm of the whole."""
    model = hg.build(SHAPE, seed=3, dtype=torch.float64)
    inputs, targets = batch()
    g, norms, shares = torch.zeros_like(model.params.flat), [], (targets >= 0).sum(1).double() / (targets >= 0).sum()
    for b in range(len(inputs)):
        model.loss(inputs[b : b + 1], targets[b : b + 1], n_valid=max(1, int((targets[b] >= 0).sum())))
        own = model.backward().flat
        norms.append(own.norm())
        g += shares[b] * min(1.0, config.sample_clip / max(float(own.norm()), 1e-30)) * own
    whole = float(g.norm())
    if config.clip:
        g *= min(1.0, config.clip / whole)
    flat = model.params.flat
    flat[: model.params.layout.n_decayed] *= 1 - config.lr * config.weight_decay
    flat -= config.lr * g / (g.abs() + 1e-8)  # the first step of AdamW
    return model, torch.stack(norms), shares, whole


@pytest.mark.parametrize("keep", [True, False], ids=["one pass", "two passes"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_a_step_adds_up_the_clipped_gradients_of_samples_alone(
    way: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = dict(WAYS[way])
    room = how.pop("room", False)
    config = replace(CONFIG, **how)
    monkeypatch.setattr(sampled, "worth_keeping", lambda *_: keep)
    did, model = taken(config, room)
    right, norms, shares, whole = by_hand(config)
    counted = norms[shares > 0]
    assert 0 < float((counted > config.sample_clip).double().mean()) < 1, "some are clipped, and some are not"
    assert did.grad_norm == pytest.approx(whole, rel=1e-12)
    assert float((model.params.flat - right.params.flat).norm() / right.params.flat.norm()) < 1e-11
    assert did.samples is not None
    assert did.samples.norm_max == pytest.approx(float(counted.max()), rel=1e-12)
    assert did.samples.norm_median == pytest.approx(float(counted.median()), rel=1e-12)
    assert did.samples.clipped == pytest.approx(float((counted > config.sample_clip).double().mean()))


@pytest.mark.parametrize("traffic", [0, 1 << 60], ids=["samples' products add up", "Gram products"])
@pytest.mark.parametrize("how", [{}, {"room": True}, {"accumulate": 3}, {"recompute": "blocks"}, {"update": "inside"}])
def test_measuring_alone_changes_no_weight(how: dict[str, Any], traffic: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_norms, "TRAFFIC", traffic)
    how = dict(how)
    room = how.pop("room", False)
    right, norms, shares, _ = by_hand(replace(CONFIG, sample_clip=1e6))
    did, model = taken(replace(CONFIG, sample_clip=0.0, sample_norms=True, **how), room)
    assert float((model.params.flat - right.params.flat).norm() / right.params.flat.norm()) < 1e-11
    assert did.samples.norm_max == pytest.approx(float(norms[shares > 0].max()), rel=1e-12)
    assert did.samples.norm_median == pytest.approx(float(norms[shares > 0].median()), rel=1e-12)


def test_products_of_samples_are_formed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight used at every token is not alone: its products wait, and are multiplied together."""
    seen, direct_with_sum = [], sample_norms.direct_with_sum
    monkeypatch.setattr(sample_norms, "direct_with_sum", lambda x, D: seen.append(len(x)) or direct_with_sum(x, D))
    monkeypatch.setattr(sample_norms, "TRAFFIC", 0)
    draw = torch.Generator().manual_seed(1)
    x, D = (torch.randn(2, 4, 5, n, generator=draw, dtype=torch.float64) for n in (3, 7))
    for calls in (1, 2):
        g = hg.Layout({"w": Slot((3, 7))}).zeros(torch.float64)
        norms = SampleNorms.of(g.layout)
        measured = Measured(norms, Accumulate.over(g))
        for i in range(calls):
            measured.outer("w", x[i], D[i])
        measured.finished()
        each = (x[:calls].mT @ D[:calls]).sum(0)
        assert float((g["w"] - each.sum(0)).norm() / g["w"].norm()) < 1e-12
        assert float((norms.norms() - each.flatten(1).norm(dim=1)).norm()) < 1e-12
    assert seen == [4], "once, by the name that came alone"


def test_a_large_clip_changes_no_weight() -> None:
    plain, model = taken(replace(CONFIG, sample_clip=0.0))
    assert plain.samples is None
    unclipped, third = taken(replace(CONFIG, sample_clip=1e6))
    assert unclipped.grad_norm == pytest.approx(plain.grad_norm, rel=1e-12)
    assert float((model.params.flat - third.params.flat).norm() / model.params.flat.norm()) < 1e-12


def test_dropout_draws_the_same_in_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(SHAPE, dropout=0.3)
    ends = []
    for keep in (True, False):
        monkeypatch.setattr(sampled, "worth_keeping", lambda *_, keep=keep: keep)
        ends.append(taken(CONFIG, shape=shape)[1].params.flat)
    assert float((ends[0] - ends[1]).norm() / ends[0].norm()) < 1e-12


def test_the_noise_is_estimated_without_bias() -> None:
    """Over all batches that can be drawn, the estimates' means are the scatter and the square of the expectation."""
    draw = torch.Generator().manual_seed(1)
    gradients = torch.randn(4, 3, generator=draw, dtype=torch.float64) + 0.5
    mean = gradients.mean(0)
    right_trace = float((gradients - mean).square().sum(1).mean())
    for w in (torch.tensor([0.5, 0.5]).double(), torch.tensor([0.25, 0.75]).double()):
        traces, squares = [], []
        for i in range(4):
            for j in range(4):
                pair = gradients[[i, j]]
                whole = float((w @ pair).norm())
                found = sampled.Sampled(norms=[pair.norm(dim=1)], weights=[w]).figures(whole)
                traces.append(found.noise_trace)
                squares.append(found.signal_square)
        assert statistics.fmean(traces) == pytest.approx(right_trace, rel=1e-12)
        assert statistics.fmean(squares) == pytest.approx(float(mean.square().sum()), rel=1e-12)


def test_the_noise_of_a_step_is_that_of_its_gradients() -> None:
    did, _ = taken(CONFIG)
    _, norms, shares, whole = by_hand(CONFIG)
    added, n = norms.clamp(max=CONFIG.sample_clip), shares
    trace = float((n * added.square()).sum() - whole**2) / float(1 - n.square().sum())
    assert did.samples.noise_trace == pytest.approx(trace, rel=1e-10)
    assert did.samples.signal_square == pytest.approx(whole**2 - trace * float(n.square().sum()), rel=1e-10)
    assert did.samples.noise_scale is None or did.samples.noise_scale > 0


def test_one_sample_says_nothing_of_noise() -> None:
    found = sampled.Sampled(norms=[torch.tensor([2.0])], weights=[torch.tensor([1.0])]).figures(2.0)
    assert (found.noise_trace, found.signal_square, found.noise_scale) == (None, None, None)
    assert (found.norm_median, found.norm_max) == (2.0, 2.0)


def test_factors_are_kept_only_where_they_are_smaller_than_the_parameters() -> None:
    model = hg.build(SHAPE, seed=3)
    assert sampled.worth_keeping(model, torch.zeros(1, 1, dtype=torch.int64))
    assert not sampled.worth_keeping(model, torch.zeros(64, 64, dtype=torch.int64))


def test_half_precision_clips_nearly_the_same() -> None:
    single = taken(replace(CONFIG, dtype="float32"))[0]
    half = taken(replace(CONFIG, dtype="bfloat16"))[0]
    assert half.samples.norm_max == pytest.approx(single.samples.norm_max, rel=2**-5)
    assert half.grad_norm == pytest.approx(single.grad_norm, rel=2**-5)


@pytest.mark.skipif(bool(no_compiler()), reason=no_compiler() or "there is a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.long
def test_compiled_blocks_tell_samples_apart() -> None:
    plain = taken(replace(CONFIG, dtype="float32"))[0]
    compiled = taken(replace(CONFIG, dtype="float32", compile=True))[0]
    assert compiled.samples.norm_max == pytest.approx(plain.samples.norm_max, rel=1e-5)
    assert compiled.grad_norm == pytest.approx(plain.grad_norm, rel=1e-5)


def test_a_norm_that_is_not_finite_stops_the_step() -> None:
    model = hg.build(SHAPE, seed=3)
    model.params["blocks.0.mlp.up.w"][0, 0] = float("nan")
    before, g = model.params.flat.clone(), model.params.layout.zeros()
    with pytest.raises(NumericError, match="nothing was updated"):
        step_on(model, [batch()], g, State.zeros(model.params.flat), 1e-2, replace(CONFIG, dtype="float32"), 1)
    assert torch.equal(before.nan_to_num(7.0), model.params.flat.nan_to_num(7.0))


def test_a_run_logs_what_its_samples_say(tmp_path: Path) -> None:
    corpus = prepare(["embedded"], "bytes", tmp_path / "tokens")
    corpus = Corpus(corpus.tokens[:300], corpus.tokenizer, corpus.folder, 300)
    shape = hg.GPT2Config(vocabulary=256, context=8, n_layers=1, n_heads=1, d_model=8)
    config = TrainConfig(steps=2, batch_size=3, sample_clip=0.5, sample_norms=True)
    train(tmp_path / "run", shape, config, corpus)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if "loss_nats" in r]
    assert len(steps) == 2
    for r in steps:
        assert 0 < r["sample_norm_median"] <= r["sample_norm_max"]
        assert 0 <= r["samples_clipped"] <= 1
        assert r["noise_trace"] > 0
        assert {"signal_square", "noise_scale"} <= r.keys()
    assert "sample_clip = 0.5" in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sample_clip": -1.0}, "--sample-clip is -1.0, and must be at least 0"),
        ({"sample_clip": float("nan")}, "--sample-clip is nan, and must be a finite number"),
        ({"sample_norms": 1}, "--sample-norms is 1, and must be true or false"),
    ],
)
def test_values_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**given)


def test_a_plan_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="looks at single samples cannot be planned"):
        plan(SHAPE, TrainConfig(sample_norms=True))
    corpus = prepare(["embedded"], "bytes", tmp_path / "tokens")
    corpus = Corpus(corpus.tokens[:300], corpus.tokenizer, corpus.folder, 300)
    shape = hg.GPT2Config(vocabulary=256, context=8, n_layers=1, n_heads=1, d_model=8)
    train(tmp_path / "run", shape, TrainConfig(steps=1, batch_size=2, sample_clip=0.5), corpus)
    assert main.run(["plan", str(tmp_path / "run"), "--no-time"]) == 0
    assert "may hold up to the size of its parameters more" in " ".join(capsys.readouterr().err.split())
