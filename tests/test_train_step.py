"""One step: micro-batches add up to the global batch, empty ones do nothing, and a NaN is found where it began."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import handgrad as hg
from handgrad.core.errors import DataError, NumericError
from handgrad.models.model import Model
from handgrad.train.config import TrainConfig
from handgrad.train.evaluate import evaluate
from handgrad.train.optimiser import State
from handgrad.train.step import Stepped, dropout_seed, step_on

SHAPE = hg.GPT2Config(vocabulary=11, context=5, n_layers=2, n_heads=2, d_model=8, std=0.2)
CONFIG = TrainConfig(clip=0.05, weight_decay=0.1, dtype="float64")


def fresh(dtype: torch.dtype = torch.float64, shape: hg.GPT2Config = SHAPE) -> tuple[Model, State, hg.Buffer]:
    model = hg.build(shape, seed=3, dtype=dtype)
    return model, State.zeros(model.params.flat), model.params.layout.zeros(dtype)


def batch(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(11, (rows, 6), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def trained(n_micro: int, steps: int = 3, holes: bool = False) -> tuple[list[Stepped], torch.Tensor]:
    model, state, g = fresh()
    seen = []
    for step in range(1, steps + 1):
        inputs, targets = batch(8, seed=step)
        if holes:
            targets[torch.rand(targets.shape, generator=torch.Generator().manual_seed(step)) < 0.5] = -100
            targets[2] = -1
        batches = list(zip(inputs.chunk(n_micro), targets.chunk(n_micro), strict=True))
        seen.append(step_on(model, batches, g, state, 1e-2, CONFIG, step))
    return seen, model.params.flat


@pytest.mark.parametrize("holes", [False, True], ids=["all count", "holes"])
def test_accumulation_changes_nothing(holes: bool) -> None:
    whole, weights = trained(1, holes=holes)
    assert all(step.grad_norm > CONFIG.clip for step in whole), "clipping has to take part"
    for n_micro in (2, 8):
        cut, cut_weights = trained(n_micro, holes=holes)
        for a, b in zip(whole, cut, strict=True):
            assert b.n_targets == a.n_targets
            assert b.loss_nats == pytest.approx(a.loss_nats, rel=1e-12)
            assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-12)
        # The gradient agrees to 1e-12; Adam's division by √v̂ spreads the rounding of near-zero entries.
        assert float((cut_weights - weights).norm() / weights.norm()) < 1e-11


def test_one_and_three_valid_tokens_are_four_equal_tokens() -> None:
    inputs, targets = batch(2, seed=5)
    targets[0, 1:], targets[1, 3:] = -100, -100
    model, state, g = fresh()
    stepped = step_on(model, [(inputs[:1], targets[:1]), (inputs[1:], targets[1:])], g, state, 0.0, CONFIG, 1)
    log_p = model(inputs).log_softmax(-1)
    terms = [-log_p[0, 0, targets[0, 0]], *(-log_p[1, t, targets[1, t]] for t in range(3))]
    assert stepped.n_targets == 4
    assert stepped.loss_nats == pytest.approx(float(sum(terms)) / 4, rel=1e-12)
    assert stepped.loss_nats != pytest.approx(float(terms[0] + sum(terms[1:]) / 3) / 2, rel=1e-3)


def test_the_norm_is_that_of_the_applied_gradient_before_clipping() -> None:
    model, state, g = fresh()
    stepped = step_on(model, [batch(2), batch(2, seed=1)], g, state, 1e-3, CONFIG, 1)
    both = [torch.cat(parts) for parts in zip(batch(2), batch(2, seed=1), strict=True)]
    other, _, _ = fresh()
    other.loss(*both)
    assert stepped.grad_norm == pytest.approx(float(other.backward().flat.norm()), rel=1e-12)
    assert float(g.flat.norm()) == pytest.approx(CONFIG.clip, rel=1e-12)


def test_no_valid_target_changes_no_bit() -> None:
    model, state, g = fresh()
    step_on(model, [batch(2)], g, state, 1e-2, CONFIG, 1)
    kept = [x.clone() for x in (model.params.flat, state.m, state.v)]
    inputs, targets = batch(2)
    stepped = step_on(model, [(inputs, torch.full_like(targets, -100))] * 2, g, state, 1e-2, CONFIG, 2)
    assert stepped == (0.0, 0.0, 0, None)
    assert not g.flat.any()
    assert state.step == 1
    assert all(torch.equal(a, b) for a, b in zip(kept, (model.params.flat, state.m, state.v), strict=True))


def test_an_empty_micro_batch_does_not_poison_the_others() -> None:
    inputs, targets = batch(2)
    ends = []
    for batches in ([(inputs, targets)], [(inputs, torch.full_like(targets, -1)), (inputs, targets)]):
        model, state, g = fresh()
        ends.append((step_on(model, batches, g, state, 1e-2, CONFIG, 1), model.params.flat))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])


def test_the_gradient_buffer_is_emptied_before_each_step() -> None:
    model, state, g = fresh()
    for old in g.values():
        old.fill_(5.0)
    again, state_again, g_again = fresh()
    assert step_on(model, [batch(2)], g, state, 0.0, CONFIG, 1) == step_on(
        again, [batch(2)], g_again, state_again, 0.0, CONFIG, 1
    )


def test_dropout_depends_on_seed_step_and_micro_batch_alone() -> None:
    seeds = {dropout_seed(seed, step, micro) for seed in (0, 1) for step in (1, 2, 11) for micro in (0, 1, 10)}
    assert len(seeds) == 18
    shape = hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=8, dropout=0.5)
    losses = []
    for step in (1, 1, 2):
        model, state, g = fresh(shape=shape)
        losses.append(step_on(model, [batch(2)], g, state, 1e-2, CONFIG, step).loss_nats)
    assert losses[0] == losses[1] != losses[2]


def test_every_tensor_moves_but_rows_never_used() -> None:
    model, state, g = fresh(torch.float32)
    before = {name: p.clone() for name, p in model.params.items()}
    step_on(model, [batch(8)], g, state, 1e-2, TrainConfig(), 1)
    still = [name for name, p in model.params.items() if torch.equal(p, before[name])]
    assert still == []


# Where a NaN began.


def broken(spoil, n_micro: int = 1, **how) -> str:
    model, state, g = fresh(torch.float32)
    spoil(model)
    kept = [x.clone() for x in (model.params.flat, state.m, state.v)]
    with pytest.raises(NumericError) as caught:
        step_on(model, [batch(2, seed=i) for i in range(n_micro)], g, state, 1e-2, TrainConfig(**how), 7)
    after = (model.params.flat, state.m, state.v)
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(kept, after, strict=True))
    assert state.step == 0
    assert model.pending is None
    return str(caught.value)


def test_a_nan_weight_is_named_with_its_layer() -> None:
    def spoil(model: Model) -> None:
        model.params["blocks.1.mlp.up.w"][3, 4] = float("nan")

    assert broken(spoil) == (
        "step 7: the loss is nan and the gradient's norm nan; nothing was updated: "
        "blocks.1.mlp.up is the first signal to hold NaN, in the forward pass. "
        "The parameter blocks.1.mlp.up.w (NaN) was already not finite before this step"
    )


@pytest.mark.parametrize("micro", [0, 1])
def test_the_micro_batch_is_named(micro: int) -> None:
    inputs, _ = batch(2, seed=micro)
    other, _ = batch(2, seed=1 - micro)
    token = next(t for t in inputs.unique().tolist() if t not in other)
    shape = hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=8, tied=False)
    model, state, g = fresh(torch.float32, shape)
    model.params["embedding.token.w_emb"][token] = float("inf")
    with pytest.raises(NumericError) as caught:
        step_on(model, [batch(2, seed=i) for i in range(2)], g, state, 1e-2, TrainConfig(), 7)
    where = "embedding.token is the first signal to hold infinity, in the forward pass"
    assert f"{where} of micro-batch {micro + 1}" in str(caught.value)


def test_a_masked_agreement_is_no_fault_but_one_that_overflows_is() -> None:
    def spoil(model: Model) -> None:
        for part in ("query", "key"):
            model.params[f"blocks.0.attention.{part}.w"].mul_(1e25)

    assert "blocks.0.attention.raw is the first signal to hold" in broken(spoil)


def test_a_backward_pass_that_overflows_is_told_from_forward() -> None:
    # A norm divides its error by σ, here 1e-15: what is small going up grows beyond the type coming down.
    shape = hg.GPT2Config(11, context=5, n_layers=0, n_heads=1, d_model=8, tied=False, epsilon=1e-30, std=1e-18)
    model, state, g = fresh(torch.float32, shape)
    model.params["norm.gamma"].fill_(1e-10)
    model.params["head.w_emb"].mul_(1e37).mul_(1e18)
    with pytest.raises(NumericError) as caught:
        step_on(model, [batch(2)], g, state, 1e-2, TrainConfig(), 7)
    assert "Delta_blocks is the first signal to hold infinity, in the backward pass" in str(caught.value)
    assert "already not finite" not in str(caught.value)


def test_a_loss_that_overflows_by_itself_is_named() -> None:
    shape = hg.GPT2Config(vocabulary=11, context=5, n_layers=0, n_heads=1, d_model=8, tied=False)
    model, state, g = fresh(torch.float32, shape)
    model.params["norm.gamma"].zero_()
    model.params["norm.beta"].fill_(1.0)
    model.params["head.w_emb"].fill_(-4e37).index_fill_(0, torch.tensor([0]), 4e37)  # logits ∓3.2e38, two thirds apart
    with pytest.raises(NumericError, match="the loss itself is the first to hold infinity, in the forward pass"):
        step_on(model, [batch(2)], g, state, 1e-2, TrainConfig(), 7)
    assert model.pending is None


def test_a_norm_beyond_the_type_is_said_as_such() -> None:
    shape = hg.GPT2Config(vocabulary=11, context=5, n_layers=0, n_heads=1, d_model=8, tied=False)
    model, state, g = fresh(torch.float32, shape)
    model.params["norm.gamma"].fill_(1e-25)
    model.params["head.w_emb"].normal_(generator=torch.Generator().manual_seed(0)).mul_(1e25)
    with pytest.raises(NumericError, match="a sum grew beyond the range of the type"):
        step_on(model, [batch(2)], g, state, 1e-2, TrainConfig(), 7)


# The loss over a whole piece of data.


def test_evaluation_is_the_mean_over_every_target_without_dropout() -> None:
    shape = hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=8, dropout=0.5, std=0.5)
    model, _, _ = fresh(shape=shape)
    tokens = np.random.default_rng(0).integers(11, size=5 * 4 + 3 + 1).astype(np.uint8)
    terms = []
    for first in range(0, 23, 5):
        window = torch.from_numpy(tokens[first : first + 6].astype(np.int64))
        log_p = model(window[None, :-1])[0].log_softmax(-1)
        terms += (-log_p.gather(-1, window[1:, None])).flatten().tolist()
    for batch_size in (1, 3, 50):
        loss, n = evaluate(model, tokens, 5, batch_size)
        assert n == 23 == len(terms)
        assert loss == pytest.approx(math.fsum(terms) / 23, rel=1e-12)
    assert model.pending is None


def test_evaluation_of_what_cannot_be() -> None:
    model, _, _ = fresh()
    with pytest.raises(DataError, match="at least 2 tokens"):
        evaluate(model, np.zeros(1, np.uint8), 5, 2)
    model.params["norm.gamma"].fill_(float("nan"))
    with pytest.raises(NumericError, match="the validation loss is nan: norm is the first signal to hold NaN"):
        evaluate(model, np.zeros(9, np.uint8), 5, 2)
