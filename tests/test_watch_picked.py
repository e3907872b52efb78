"""`hg.watch` at positions and heads: what is recorded, what is patched, and what is refused."""

import re
from dataclasses import replace

import pytest
import torch
from test_model import SMALL, batch, randomised, relative

import handgrad as hg
from handgrad.check import cases
from handgrad.core import Accumulate, Watch
from handgrad.core.errors import ConfigError, ShapeError
from handgrad.core.picked import Picked, axes

RHO = "blocks.1.attention.rho"


def pass_and_gradient(model, tokens, *patterns, **how):
    with hg.watch(model, *patterns, **how) as signals:
        return signals, model.loss(tokens), model.backward()


@pytest.mark.parametrize("positions", [2, -1, [3, 0], slice(-2, None), range(3), torch.tensor([1, 5]), None])
@pytest.mark.parametrize("heads", [None, 1, [2, 0], slice(1, None)])
def test_picked_parts_are_those_of_the_whole_signal_and_copies(positions, heads):
    model, tokens = randomised(SMALL), batch(7)
    names = (RHO, "blocks.*.attention.Delta_q", "*.v")
    whole, loss, g = pass_and_gradient(model, tokens, *names)
    part, same_loss, same_g = pass_and_gradient(model, tokens, *names, positions=positions, heads=heads)
    assert torch.equal(loss, same_loss)
    assert torch.equal(g.flat, same_g.flat)
    assert list(part) == list(whole)
    number = lambda x: [x] if isinstance(x, int) else slice(None) if x is None else x  # noqa: E731
    for path, x in whole.items():
        right = x[:, number(heads)][:, :, number(positions)]
        assert torch.equal(part[path], right), path
        if positions is not None or heads is not None:
            assert part[path].untyped_storage().nbytes() == right.numel() * 8


def test_positions_of_a_signal_without_heads():
    model, tokens = randomised(SMALL), batch(7)
    whole, *_ = pass_and_gradient(model, tokens, "*norm*", "blocks.*.Delta_mlp", "embedding")
    part, *_ = pass_and_gradient(model, tokens, "*norm*", "blocks.*.Delta_mlp", "embedding", positions=[4, -1])
    assert len(part) > 8
    assert all(torch.equal(part[path], x[:, [4, 6]]) for path, x in whole.items())


def test_the_axes_are_those_of_every_shown_signal():
    """T = 5, and as many heads as the queries were cut into: in every case of the table with one input."""
    n_heads = 0
    for case in cases.CASES:
        p, a, Delta = case.draw(1)
        if isinstance(a, tuple) or a.ndim < 2 or a.shape[:2] != (2, 5):
            continue
        signals = Watch(("*",))
        run = replace(case.run, signals=signals)
        _, saved = case.layer.forward(p.tree, a, run)
        case.layer.backward(p.tree, Delta, saved, Accumulate(p.layout.zeros(p.flat.dtype).tree), run)
        for path, x in signals.items():
            there = axes(path, x.ndim)
            if re.search(r"(^|\.)\d\.(?!mixing|attention|mlp|norm)", path) and x.ndim == 2:
                assert there == {}, path
            elif "positions" in there and 5 in x.shape:
                assert x.shape[there["positions"]] == 5, (case.name, path)
            folder = path.rpartition(".")[0]
            if "heads" in there and f"{folder}.query" in signals:
                n_heads += 1
                n = signals[f"{folder}.query"].shape[-1] // signals[f"{folder}.q"].shape[-1]
                assert x.shape[there["heads"]] == n, (case.name, path)
    assert n_heads > 20


def test_the_hidden_layer_of_every_pair_has_positions_on_its_first_axis_and_no_heads():
    pair = torch.arange(2 * 3 * 5 * 7.0).view(2, 3, 5, 7)
    assert torch.equal(Picked(positions=-1).of("mixing.Delta_pair", pair), pair[:, 2:])
    with pytest.raises(ShapeError, match=r"no axis of heads; such as q, k, v"):
        Picked(heads=0).of("mixing.pair", pair)


def test_a_patch_at_a_head_and_a_position_is_the_same_patch_of_the_whole():
    model, tokens = randomised(SMALL), batch(7)

    def by_hand(x):
        x = x.clone()
        x[:, 1, 4:] = 0
        return x

    _, whole_loss, whole = pass_and_gradient(model, tokens, replace={RHO: by_hand})
    how = {"heads": 1, "positions": slice(4, None)}
    signals, loss, g = pass_and_gradient(model, tokens, **how, replace={RHO: torch.zeros_like})
    assert torch.equal(loss, whole_loss)
    assert torch.equal(g.flat, whole.flat)
    assert not signals[RHO].any()
    assert signals[RHO].shape == (3, 1, 3, 7)
    with hg.watch(model, RHO) as outer, hg.watch(model, **how, replace={RHO: torch.zeros_like}):
        model(tokens)
    assert outer[RHO][:, 1, 4:].any()  # the signal itself is not written to
    with hg.watch(model, RHO) as outer, hg.watch(model, heads=1, replace={RHO: torch.zeros_like}):
        model(tokens)
    assert outer[RHO][:, 1].any()
    with model.running(implementation="explicit"):
        assert not torch.equal(model.loss(tokens), loss)
    for how in ({"heads": [1, 2]}, {"positions": -1}):
        index = (slice(None), [1, 2]) if "heads" in how else (slice(None), slice(None), [6])

        def double(x, index=index):
            x = x.clone()
            x[index] *= 2
            return x

        error = RHO.replace("rho", "Delta_rho")
        _, _, whole = pass_and_gradient(model, tokens, replace={error: double})
        _, _, part = pass_and_gradient(model, tokens, **how, replace={error: lambda x: 2 * x})
        assert torch.equal(part.flat, whole.flat)
        assert not torch.equal(part.flat, pass_and_gradient(model, tokens, "*.rho")[2].flat)


def test_activations_of_one_text_are_patched_into_another():
    model, clean, other = randomised(SMALL), batch(1), batch(2)
    with hg.watch(model, "blocks.0", positions=slice(0, 4)) as signals:
        right = model(clean)
    kept = signals["blocks.0"]
    with hg.watch(model, positions=slice(0, 4), replace={"blocks.0": lambda x: kept}):
        patched = model(other)
    assert relative(patched[:, :4], right[:, :4]) <= 1e-12
    assert relative(patched[:, 4:], model(other)[:, 4:]) > 1e-3


def test_a_replacement_may_be_a_glob_and_nested_watches_pick_each_for_itself():
    model, tokens = randomised(SMALL), batch(7)
    with hg.watch(model, replace={"blocks.*.mlp": torch.zeros_like}) as signals:
        loss = model.loss(tokens)
    assert list(signals) == ["blocks.0.mlp", "blocks.1.mlp"]
    by_name = {f"blocks.{i}.mlp": torch.zeros_like for i in range(2)}
    with hg.watch(model, replace=by_name):
        assert torch.equal(model.loss(tokens), loss)
    with hg.watch(model, RHO, heads=0) as one, hg.watch(model, "blocks.1", positions=-1) as two:
        model(tokens)
    assert one[RHO].shape == (3, 1, 7, 7)
    assert two["blocks.1"].shape == (3, 1, 21)


def test_sums_over_tokens_of_what_is_seen_are_the_gradients():
    """Case V09: Σ_t x_tᵗ Δ_t = ∂L/∂w, each position watched by itself, and the step *against* it lowers the loss."""
    model, tokens = randomised(SMALL), batch(7)
    total = 0.0
    for t in range(7):
        signals, loss, g = pass_and_gradient(model, tokens, "*.activation", "*.Delta_down", positions=t)
        x, Delta = signals["blocks.0.mlp.activation"], signals["blocks.0.mlp.Delta_down"]
        total = total + torch.einsum("bti,btj->ij", x, Delta)
    assert relative(total, g["blocks.0.mlp.down.w"]) <= 1e-12
    assert "the loss rises when x rises" in repr(signals)
    model.params.flat.sub_(1e-3 * g.flat)
    assert model.loss(tokens) < loss


@pytest.mark.parametrize(
    ("how", "pattern", "message"),
    [
        (
            {"heads": 1},
            "blocks.0.mlp",
            r"heads were asked for, and the signal blocks\.0\.mlp ~ \(3, 7, 21\) has no axis",
        ),
        ({"heads": 3}, RHO, "heads 3 was asked for, and the signal .* has 3: 0 to 2, or -3 to -1"),
        ({"positions": [0, -8]}, RHO, "positions -8 was asked for, and the signal .* has 7"),
        ({"positions": [0, -7]}, RHO, r"positions \(0, -7\) names one of the 7 .* twice"),
        ({"positions": slice(7, None)}, RHO, "picks nothing of the signal"),
    ],
)
def test_a_part_that_is_not_there_is_refused(how, pattern, message):
    model = randomised(SMALL)
    with pytest.raises(ShapeError, match=message), hg.watch(model, pattern, **how):
        model(batch(0))
    assert model.run.signals is None


@pytest.mark.parametrize("wrong", [True, 1.0, "3", [], [1, True], {0: 1}, torch.tensor([0.5])])
def test_positions_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(ConfigError, match="positions is"):
        Picked(positions=wrong)


def test_a_patch_of_another_shape_is_refused():
    model = randomised(SMALL)
    with (
        pytest.raises(
            ShapeError, match=r"is \(3, 7, 21\) of torch\.float64, what was picked of the signal \(3, 1, 21\)"
        ),
        hg.watch(model, positions=0, replace={"norm": lambda x: x.expand(3, 7, 21)}),
    ):
        model(batch(0))
