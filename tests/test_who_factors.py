"""Factors kept instead of multiplied: their sum is the gradient, for every kind, tied, in pieces, handed over twice."""

from __future__ import annotations

import pytest
import torch
from who_models import TOKENS, B, T, close, gpt, gradient_of, llama

import handgrad as hg
from handgrad.core import Accumulate, Layout, Run, Scan
from handgrad.core.errors import ConfigError, UnknownName
from handgrad.layers.recurrent import LSTMCell
from handgrad.rules.fused import headloss_chunked
from handgrad.who.factors import Factors

MODELS = {"gpt2": gpt, "gpt2 untied": lambda: gpt(tied=False), "llama": llama, "llama tied": lambda: llama(tied=True)}


def factors_of(model: hg.Model, *patterns: str, **how) -> Factors:
    factors = Factors(model.params.layout, patterns or ("*",), **how)
    model.loss(TOKENS)
    model.backward(factors)
    return factors


@pytest.mark.parametrize("kind", MODELS)
def test_the_sum_of_all_terms_is_the_gradient(kind: str) -> None:
    model = MODELS[kind]()
    right, factors = gradient_of(model), factors_of(model)
    assert set(factors) == set(right)
    for name in right:
        if name.endswith("key.b"):  # it has none but rounding
            assert (factors.gradient(name) - right[name]).norm() < 1e-12 * right.flat.norm()
        else:
            close(factors.gradient(name), right[name])


def test_each_kind_of_pair_is_kept_as_it_came() -> None:
    factors = factors_of(gpt())
    kinds = {name: [(pair.place, pair.kind) for pair in pairs] for name, pairs in factors.items()}
    tied = "embedding.token.w_emb"
    assert kinds[tied] == [("head.w_emb", "outer"), (tied, "rows")]
    assert kinds["embedding.position.w_pos"] == [("embedding.position.w_pos", "rows")]
    assert kinds["norm.gamma"] == [("norm.gamma", "scaled")]
    assert kinds["norm.beta"] == [("norm.beta", "total")]
    (positions,) = factors["embedding.position.w_pos"]
    assert positions.factor.shape == (T,)
    assert positions.Delta.shape == (B, T, 15)
    assert factors["head.w_emb"] == factors[tied]


def test_by_hand() -> None:
    layout = Layout({"w": hg.Slot((2, 1)), "e": hg.Slot((3, 1)), "b": hg.Slot((1,)), "c": hg.Slot((1,))})
    factors, Delta = Factors(layout), torch.tensor([[[1.0], [10.0]]])
    factors.outer("w", torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), Delta)
    factors.rows("e", torch.tensor([2, 2]), Delta)
    factors.total("b", Delta)
    factors.scaled("c", torch.tensor([[[5.0], [7.0]]]), Delta)
    assert factors.gradient("w").tolist() == [[31.0], [42.0]]
    assert factors.gradient("e").tolist() == [[0.0], [0.0], [11.0]]
    assert factors.gradient("b").tolist() == [11.0]
    assert factors.gradient("c").tolist() == [75.0]
    (w,), (e,) = factors["w"], factors["e"]
    assert w.along(factors.gradient("w")).tolist() == [[115.0, 2610.0]]  # 1·31 + 2·42, 10 (3·31 + 4·42)
    assert w.with_same(w).tolist() == [[5.0, 2500.0]]
    assert e.along(factors.gradient("e")).tolist() == [[11.0, 110.0]]
    other = e._replace(a=torch.tensor([[2, 1]]))
    assert e.with_same(other).tolist() == [[1.0, 0.0]]  # a row of the one, and two rows that do not meet


def test_the_error_and_the_input_give_the_gradient_in_case_v09() -> None:
    """Σ_i x_iᵗ δ_i = dL/dw, and going against it makes the loss fall."""
    model, name = gpt(), "blocks.1.mlp.up.w"
    with hg.watch(model, "blocks.1.norm_2", "blocks.1.mlp.Delta_up") as signals:
        right = gradient_of(model)
    x, delta = signals["blocks.1.norm_2"], signals["blocks.1.mlp.Delta_up"]
    (pair,) = factors_of(model, name)[name]
    assert torch.equal(pair.factor, x)
    assert torch.equal(pair.Delta, delta)
    close(sum(x[b, t][:, None] * delta[b, t] for b in range(B) for t in range(T)), right[name])
    before = model.loss(TOKENS)
    model.params[name].sub_(1e-4 * factors_of(model, name).gradient(name))
    assert model.loss(TOKENS) < before


def test_a_second_pass_into_the_same_factors_doubles_the_gradient_alone_in_case_g08() -> None:
    model = gpt()
    factors = factors_of(model)
    once = {name: factors.gradient(name) for name in factors}
    model.loss(TOKENS)
    with hg.watch(model, "blocks.*.Delta_h") as signals:
        model.loss(TOKENS)
        model.backward(factors)
    second = dict(signals)
    with hg.watch(model, "blocks.*.Delta_h") as signals:
        model.loss(TOKENS)
        model.backward()
    assert all(torch.equal(second[path], x) for path, x in signals.items())
    for name in set(once) - {"blocks.0.attention.key.b", "blocks.1.attention.key.b"}:
        close(factors.gradient(name), 2 * once[name])
    with pytest.raises(ConfigError, match="a backward pass uses up what its forward pass kept"):
        model.backward(factors)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_head_in_pieces_keeps_its_samples(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    model = gpt()
    right = gradient_of(model)["head.w_emb"]
    monkeypatch.setattr(headloss_chunked, "CHUNK", samples * T * 11 * 8)
    factors = Factors(model.params.layout, ("head.w_emb",))
    targets, _ = model.aimed(TOKENS, None, None)
    model.loss_and_backward(TOKENS, targets, factors, n_valid=B * (T - 1))
    heads = [pair for pair in factors["head.w_emb"] if pair.place == "head.w_emb"]
    assert [pair.first for pair in heads] == list(range(0, B, samples))
    close(factors.gradient("head.w_emb"), right)


def test_a_block_that_is_computed_again_hands_over_once() -> None:
    model = gpt()
    right = factors_of(model)
    parts = {name: hg.Recompute(block) for name, block in model.layer.parts["blocks"].parts.items()}
    again = hg.Model(model.config, hg.Chain({**model.layer.parts, "blocks": hg.Chain(parts)}), model.params)
    found = factors_of(again)
    for name, pairs in right.items():
        assert len(found[name]) == len(pairs)
        assert torch.equal(found.gradient(name), right.gradient(name))


def test_a_cell_that_hands_over_once_a_token_adds_up() -> None:
    layer = Scan(LSTMCell(3, 5))
    p = hg.Layout(layer.slots()).draw(3, torch.float64)
    a = torch.randn(B, T, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    right, factors = p.layout.zeros(torch.float64), Factors(p.layout)
    for grads in (Accumulate(right.tree), factors):
        y, saved = layer.forward(p.tree, a, Run())
        layer.backward(p.tree, torch.ones_like(y), saved, grads, Run())
    for name in right:
        assert len(factors[name]) >= T
        close(factors.gradient(name), right[name])


def test_half_precision_factors_are_multiplied_in_float32() -> None:
    model = gpt().moved(torch.float32)
    factors = factors_of(model.shadowed(torch.bfloat16), "*.query.w")
    (pair,) = factors["blocks.0.attention.query.w"]
    assert pair.Delta.dtype == torch.bfloat16
    a, Delta = pair.factor.double().flatten(0, 1), pair.Delta.double().flatten(0, 1)
    close(factors.gradient("blocks.0.attention.query.w").double(), a.mT @ Delta, 1e-6)


def test_memory_is_counted_once_and_bounded() -> None:
    model = gpt()
    one, three = factors_of(model, "*.0.*.query.w"), factors_of(model, "*.0.*.query.w", "*.0.*.key.w", "*.0.*.value.w")
    size = B * T * 15 * 8
    assert one.nbytes == 2 * size
    assert three.nbytes == 4 * size  # the three read one input
    assert len(factors_of(model, "*.0.*.query.w", "*.0.*.key.w", "*.0.*.value.w", most_bytes=4 * size)) == 3
    with pytest.raises(ConfigError, match=r"keeping the factors of \*\.w needs at least .* and the limit is 0\.0 MB"):
        factors_of(model, "*.w", most_bytes=3 * size)


def test_what_is_not_there_is_refused() -> None:
    layout = gpt().params.layout
    with pytest.raises(UnknownName, match=r"no parameter named 'blocks\.0\.attention\.qery\.w'; did you mean"):
        Factors(layout, ("blocks.0.attention.qery.w",))
    factors = Factors(layout, ("norm.gamma",))
    with pytest.raises(ConfigError, match=r"nothing was handed over for norm\.gamma"):
        factors.gradient("norm.gamma")
    with pytest.raises(UnknownName, match=r"pairs of norm\.beta were not kept"):
        factors.gradient("norm.beta")
