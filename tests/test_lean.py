"""What saves memory or time changes no number: recomputing, chunks, tiles, updates inside backward, bfloat16."""

from dataclasses import replace

import pytest
import torch

import handgrad as hg
from handgrad.core import Accumulate, Chain, Layout, Run, Scan, Slot, gradients, roomy
from handgrad.core.collect import Collect, Room
from handgrad.core.compiler import no_compiler
from handgrad.core.errors import ConfigError, NumericError, ShapeError
from handgrad.layers.linear import Linear
from handgrad.layers.mask import CAUSAL, EVERYONE, Bound, Window
from handgrad.rules.attend import ATTEND, TILED
from handgrad.rules.fused import attend_tiled, headloss_chunked
from handgrad.train.config import MASTER, TrainConfig
from handgrad.train.optimiser import State, clip, norm_of
from handgrad.train.prepare import prepared
from handgrad.train.step import step_on

SHAPE = hg.GPT2Config(vocabulary=211, context=13, n_layers=2, n_heads=3, d_model=21, d_mlp=37)


def batch(seed=0, B=3, T=13):
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 211, (B, T), generator=draw) for _ in range(2))


def trained(steps=3, dtype=None, shape=SHAPE, **settings):
    """Losses and weights after some steps."""
    config = TrainConfig(dtype="float64" if dtype is None else dtype, lr=1e-2, **settings)
    model = prepared(hg.build(shape, 1, MASTER[config.dtype]), config)
    state, g = State.zeros(model.params.flat), None
    if config.update == "after":
        g = model.params.layout.zeros(model.params.flat.dtype)
    done = [step_on(model, [batch(i)], g, state, 1e-2, config, i + 1) for i in range(steps)]
    return [(d.loss_nats, d.grad_norm) for d in done], model.params.flat, model


def close(a, b, tolerance=1e-12):
    assert float((a - b).norm()) <= tolerance * float(b.norm())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    "settings",
    [
        {"recompute": "cheap"},
        {"recompute": "blocks"},
        {"implementation": "fused"},
        {"update": "inside", "clip": 0.0},
        {"update": "inside", "clip": 0.1},
        {"update": "inside", "clip": 0.1, "recompute": "blocks"},
    ],
    ids=lambda s: " ".join(f"{k} {v}" for k, v in s.items()),
)
def test_the_same_weights_after_three_steps(settings, tied):
    shape = replace(SHAPE, tied=tied)
    plain = {"implementation": "explicit", "clip": settings.get("clip", 1.0)}
    right, weights, _ = trained(shape=shape, **plain)
    found, other, _ = trained(shape=shape, **{"implementation": "explicit", **settings})
    close(torch.tensor(found), torch.tensor(right))
    close(other, weights, 1e-11)


@pytest.mark.parametrize("recompute", ["nothing", "cheap", "blocks"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("least", [1, 1 << 30], ids=["memory kept", "memory given back"])
def test_a_gradient_that_is_never_one_buffer_moves_the_weights_to_the_same_bits(recompute, dtype, least):
    config = TrainConfig(dtype=dtype, recompute=recompute, lr=1e-2, clip=0.5)
    shape = hg.GPT2Config(vocabulary=224, context=16, n_layers=2, n_heads=2, d_model=32, d_mlp=48)  # no odd tails: the
    ends = []  # library's AdamW rounds the last few elements of an odd slice in another way
    for room in (None, Room(least)):
        model = prepared(hg.build(shape, 1, MASTER[dtype]), config)
        state = State.zeros(model.params.flat)
        g = model.params.layout.zeros(model.params.flat.dtype) if room is None else room
        done = [step_on(model, [batch(i)], g, state, 1e-2, config, i + 1) for i in range(3)]
        ends.append((done, model.params.flat.clone(), {name: x.clone() for name, x in (model.shadow or {}).items()}))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])
    assert all(torch.equal(x, ends[1][2][name]) for name, x in ends[0][2].items())


def test_a_gradient_that_is_not_finite_moves_nothing_without_a_buffer_either():
    config = TrainConfig()
    model = prepared(hg.build(SHAPE, 1), config)
    model.params["norm.gamma"][0] = float("nan")
    before, state = model.params.flat.clone(), State.zeros(model.params.flat)
    with pytest.raises(NumericError, match="nothing was updated"):
        step_on(model, [batch()], Room(), state, 1e-2, config, 1)
    assert torch.equal(model.params.flat.nan_to_num(), before.nan_to_num())
    assert state.step == 0


def test_blocks_that_round_their_own_parameters_are_those_on_a_shadow():
    models = [prepared(hg.build(SHAPE, 1), TrainConfig(dtype="bfloat16", recompute=r)) for r in ("nothing", "blocks")]
    assert models[1].shadow.flat.numel() < models[0].shadow.flat.numel()
    losses = [m.loss(batch()[0]) for m in models]
    assert torch.equal(*losses)
    assert torch.equal(*(m.backward().flat for m in models))


def test_memory_with_slack_holds_the_same_products():
    a, w = torch.randn(3, 101, 67), torch.randn(67, 1009)
    with torch.no_grad():
        y = roomy.mm(a, w)
    assert y.untyped_storage().nbytes() > y.nbytes
    assert torch.equal(y, a @ w)
    assert torch.equal(roomy.moved(y), y)


def test_dropout_is_drawn_again_the_same():
    shape = replace(SHAPE, dropout=0.3)
    right = trained(shape=shape)[1]
    for recompute in ("cheap", "blocks"):
        assert torch.equal(trained(shape=shape, recompute=recompute)[1], right)


def test_bfloat16_keeps_master_weights_and_learns_the_same():
    losses, weights, model = trained(20, dtype="bfloat16")
    right, exact, _ = trained(20, dtype="float32")
    assert weights.dtype == torch.float32
    assert torch.equal(model.shadow.flat, weights.bfloat16())
    assert abs(losses[-1][0] - right[-1][0]) < 0.02 * right[-1][0]
    assert float((weights - exact).norm() / exact.norm()) < 0.2
    assert not torch.equal(weights, weights.bfloat16().float())  # small steps are not lost


def test_a_pass_in_bfloat16_hands_its_factors_to_a_float32_gradient():
    _, _, model = trained(1, dtype="bfloat16")
    grads = []
    for m in (model, replace(model, shadow=None)):
        m.loss(batch()[0])
        grads.append(m.backward())
    assert grads[0].flat.dtype == torch.float32
    close(grads[0].flat, grads[1].flat, 0.05)


@pytest.mark.parametrize("piece", [7, 1 << 22], ids=["cut", "whole"])
@pytest.mark.parametrize("fresh", [True, False], ids=["over an old gradient", "from zero"])
def test_half_precision_factors_that_are_handed_over_twice_add_up(monkeypatch, piece, fresh):
    monkeypatch.setattr(gradients, "PIECE", piece)
    buffer = Layout({"w": Slot((5, 3))}).zeros()
    buffer.flat.fill_(9.0 if fresh else 0.0)
    receiver = Accumulate.over(buffer) if fresh else Accumulate(buffer.tree)
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(2, 11, 5, generator=draw), torch.randn(2, 11, 3, generator=draw)) for _ in range(2)]
    for a, Delta in pairs:
        receiver.outer("w", a.bfloat16(), Delta.bfloat16())
    close(buffer["w"], sum(a.flatten(0, 1).mT @ Delta.flatten(0, 1) for a, Delta in pairs), 0.02)


@pytest.mark.parametrize("rows", [1, 2, 5, 128])
@pytest.mark.parametrize("mask", [CAUSAL, Window(3), EVERYONE], ids=["causal", "window", "everyone"])
@pytest.mark.parametrize("first", [0, 4])
def test_tiles_of_any_height_are_the_explicit_pair(monkeypatch, rows, mask, first):
    monkeypatch.setattr(attend_tiled, "ROWS", rows)
    draw = torch.Generator().manual_seed(rows)
    q, Delta = (torch.randn(2, 3, 11, n, generator=draw).double() for n in (7, 5))
    k, v = (torch.randn(2, 3, 11 + first, n, generator=draw).double() for n in (7, 5))
    allowed = Bound(mask, 11, 11 + first, first)
    (right, saved), (out, kept) = (pair.forward(q, k, v, allowed, Run()) for pair in (ATTEND.explicit, TILED))
    close(out, right)
    for found, true in zip(
        TILED.backward(Delta, kept, Run()), ATTEND.explicit.backward(Delta, saved, Run()), strict=True
    ):
        close(found, true)


def test_a_window_multiplies_with_no_key_outside_of_it():
    tile = Bound(Window(3), 100, 100, 0).tile(50, 60)
    assert (tile.first, tile.end) == (48, 60)


@pytest.mark.parametrize("chunk", [1, 3, 4, 1 << 30])
def test_chunks_of_any_size_are_the_explicit_loss(monkeypatch, chunk):
    monkeypatch.setattr(headloss_chunked, "CHUNK", chunk * 211 * 8)
    monkeypatch.setattr(headloss_chunked, "WIDE", 211 * 2)
    model = hg.build(SHAPE, 1, torch.float64)
    ids, targets = batch()
    targets[0, :5] = -1
    explicit = replace(model, run=Run(implementation="explicit"))
    loss, right = explicit.loss(ids, targets), explicit.backward()
    assert float(model.loss(ids, targets)) == pytest.approx(float(loss), rel=1e-13)
    close(model.backward().flat, right.flat)
    g = model.params.layout.zeros(torch.float64)
    at_once = model.loss_and_backward(ids, targets, Accumulate(g.tree), n_valid=int((targets >= 0).sum()))
    assert float(at_once) == pytest.approx(float(loss), rel=1e-13)
    close(g.flat, right.flat)


def test_logits_far_out_are_as_good_as_any():
    a, w = torch.tensor([[1000.0], [-1000.0]]), torch.tensor([[1.0], [-1.0], [0.5]])
    y = torch.tensor([0, 1])
    loss, Delta = headloss_chunked.both(a, w, y, y >= 0, 2, torch.ones(()), Accumulate({}))
    assert float(loss) == 0.0
    assert torch.equal(Delta, torch.zeros(2, 1))


def test_a_gradient_is_handed_over_once_complete_and_the_tied_one_last():
    model = hg.build(SHAPE, 1, torch.float64)
    model.loss(batch()[0])
    right = model.backward()
    model.loss(batch()[0])
    order = {}
    receiver = Collect.into(model.params.layout, order.__setitem__, torch.float64)
    model.backward(receiver)
    receiver.finished()
    assert next(iter(order)).startswith("norm.")
    assert "embedding.token.w_emb" in list(order)[-2:]
    assert set(order) == set(right)
    for name, g in order.items():
        close(g, right[name]) if right[name].any() else None


def test_an_overwritten_buffer_is_the_gradient_alone():
    model = hg.build(SHAPE, 1, torch.float64)
    model.loss(batch()[0])
    right = model.backward()
    g = model.params.layout.zeros(torch.float64)
    for old in g.values():
        old.fill_(float("nan"))
    model.loss(batch()[0])
    receiver = Accumulate.over(g)
    model.backward(receiver)
    receiver.settle()
    assert torch.equal(g.flat, right.flat)


def test_a_loss_that_is_not_finite_moves_nothing():
    config = TrainConfig(dtype="float64", update="inside", clip=1.0)
    model = prepared(hg.build(SHAPE, 1, torch.float64), config)
    model.params["norm.gamma"][3] = float("inf")
    before, state = model.params.flat.clone(), State.zeros(model.params.flat)
    with pytest.raises(NumericError, match=r"nothing was updated"):
        step_on(model, [batch()], None, state, 1e-2, config, 1)
    assert torch.equal(model.params.flat, before)
    assert state.step == 0


def test_what_would_save_nothing_or_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"--update inside cannot go with --accumulate 2: .* it would save nothing"):
        TrainConfig(update="inside", accumulate=2)
    with pytest.raises(ConfigError, match="dropout"):
        prepared(hg.build(replace(SHAPE, dropout=0.1)), TrainConfig(compile=True))


def test_the_norm_of_a_long_vector_is_exact():
    x = torch.full((30_000_000,), 1e-3)
    assert norm_of(x) == pytest.approx(1e-3 * 30_000_000**0.5, rel=1e-5)
    assert clip(x, 1.0) == pytest.approx(5.477226, rel=1e-5)


@pytest.mark.long
@pytest.mark.skipif(bool(no_compiler()), reason=no_compiler() or "there is a C++ compiler")
@pytest.mark.parametrize("recompute", ["nothing", "cheap"])
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_compiled_blocks_are_the_blocks(recompute):
    right, weights, _ = trained(2, recompute=recompute)
    found, other, _ = trained(2, recompute=recompute, compile=True)
    assert found[0] == pytest.approx(right[0], rel=1e-12)
    close(other, weights, 1e-11)


def test_a_cell_made_of_layers_is_collected_once_all_tokens_have_gone_by():
    cell = OneLinear()
    layer = Scan(cell)
    p = Layout(layer.slots()).draw(0, torch.float64)
    a, g, order = torch.ones(2, 3, 4, dtype=torch.float64), p.layout.zeros(torch.float64), {}
    for receiver in (Accumulate(g.tree), Collect.into(p.layout, order.__setitem__, torch.float64)):
        y, saved = layer.forward(p.tree, a, Run())
        layer.backward(p.tree, torch.ones_like(y), saved, receiver, Run())
        receiver.finished()
    close(order["up.w"], g["up.w"])


class OneLinear:
    """A cell without a state, whose output is a chain's."""

    chain = Chain({"up": Linear(4, 5)})

    def slots(self):
        return self.chain.slots()

    def start(self, a):
        return ()

    def forward(self, p, x, state, run):
        y, saved = self.chain.forward(p, x, run)
        return y, state, saved

    def backward(self, p, Delta, Delta_state, saved, grads, run):
        return self.chain.backward(p, Delta, saved, grads, run), Delta_state


def test_a_model_without_blocks_is_left_as_it_is():
    shape = replace(SHAPE, n_layers=0)
    for recompute in ("cheap", "blocks"):
        assert trained(1, shape=shape, recompute=recompute)[0] == trained(1, shape=shape)[0]


def test_rows_without_a_target_get_no_error_even_where_their_logits_are_infinite():
    a, w = torch.ones(2, 3), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    a[0, 0] = float("inf")
    y = torch.tensor([-1, 2])
    Delta = headloss_chunked.both(a, w, y, y >= 0, 1, torch.ones(()), Accumulate({}))[1]
    assert not Delta[0].any()
    assert Delta[1].isfinite().all()


def test_a_count_of_nothing_is_refused_however_the_loss_is_formed():
    model = hg.build(SHAPE, 1)
    with pytest.raises(ShapeError, match="n_valid is 0"):
        model.loss_and_backward(*batch(), Accumulate({}), n_valid=0)
