"""Products of gradients from their factors: against plain gradients, and against what a step of SGD really does."""

from __future__ import annotations

import pytest
import torch
from who_models import TOKENS, close, gpt, gradient_of, llama

import handgrad as hg
from handgrad.core import Layout
from handgrad.core.errors import ConfigError, ShapeError, UnknownName
from handgrad.who import influence as module
from handgrad.who.factors import Factors, Pair
from handgrad.who.influence import backward, gathered, influence, inner, product

SHORT = torch.tensor([1, 5, 1, 1, 2])


def plain(model: hg.Model, tokens: torch.Tensor, names: list[str] | None = None) -> torch.Tensor:
    model.loss(tokens)
    gradient = model.backward()
    return torch.cat([gradient[name].flatten() for name in names or gradient])


@pytest.mark.parametrize("make", [gpt, lambda: gpt(tied=False), llama, lambda: llama(tied=True)])
def test_products_and_cosines_are_those_of_plain_gradients(make) -> None:
    model, test = make(), SHORT[None]
    found = influence(model, TOKENS, test)
    g_test = plain(model, test)
    each = torch.stack([plain(model, sequence[None]) for sequence in TOKENS])
    close(found.products, each @ g_test)
    close(found.cosines, each @ g_test / (each.norm(dim=1) * g_test.norm()))
    close(found.losses, torch.stack([model.loss(sequence[None]) for sequence in TOKENS]))
    assert found.test_loss == pytest.approx(float(model.loss(test)), rel=1e-14)
    assert [i for i, _, _ in found.top(3)] == found.products.argsort(descending=True).tolist()


def test_the_most_helpful_come_first_in_a_table() -> None:
    found = influence(gpt(), TOKENS, SHORT)
    order = found.products.argsort(descending=True).tolist()
    assert [row["sequence"] for row in found.table(2)] == [str(i) for i in order[:2]]
    assert str(found).endswith("changes the loss of the test by -lr times its product, to first order in lr")
    assert found._repr_html_().startswith("<table>")


@pytest.mark.parametrize("name", ["head.w_emb", "embedding.position.w_pos", "norm.gamma", "blocks.1.mlp.down.w"])
def test_each_kind_of_weight_by_itself(name: str) -> None:
    model = gpt()
    found = influence(model, [TOKENS[0], SHORT], TOKENS[1:], [name])
    owner = [model.params.layout.owner(name)]
    right = torch.stack([plain(model, x[None], owner) for x in (TOKENS[0], SHORT)]) @ plain(model, TOKENS[1:], owner)
    close(found.products, right)


@pytest.mark.parametrize("rows", [2, 40])
def test_either_way_of_multiplying_is_taken_where_it_is_shorter(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    n, m = 5, 7
    generator = torch.Generator().manual_seed(rows)
    x, y = (
        Pair("w", "outer", *(torch.randn(rows, k, dtype=torch.float64, generator=generator) for k in (n, m)))
        for _ in range(2)
    )
    formed = []
    whole = Pair.product
    monkeypatch.setattr(Pair, "product", lambda self, shape: formed.append(shape) or whole(self, shape))
    found = product(x, y, (n, m))
    assert len(formed) == (1 if rows == 40 else 0)
    close(found, (whole(x, (n, m)) * whole(y, (n, m))).sum())


def test_what_came_in_several_hand_overs_is_one_pair_for_each_kind() -> None:
    model = gpt()
    factors = Factors(model.params.layout)
    for tokens in (TOKENS, SHORT[None]):
        model.loss(tokens)
        model.backward(factors)
    once = [backward(model, tokens, ("*",), 1 << 30)[1] for tokens in (TOKENS, SHORT[None])]
    assert [pair.kind for pair in gathered(factors["head.w_emb"])] == ["outer", "rows"]
    together = sum(inner(x, y) for x in once for y in once)
    close(inner(factors, factors), together)


def test_it_predicts_what_a_step_of_sgd_does_to_the_test() -> None:
    """The error of the prediction falls as lr², so half the step has a quarter of it."""
    model, test = gpt(std=0.1), SHORT[None]
    start, found = model.params.flat.clone(), influence(model, TOKENS, test)
    for i, sequence in enumerate(TOKENS):
        gradient, off = gradient_of_one(model, sequence), []
        for lr in (4e-5, 2e-5):
            model.params.flat.copy_(start - lr * gradient)
            change = float(model.loss(test)) - found.test_loss
            model.params.flat.copy_(start)
            off.append(abs(change - float(found.predicted(lr)[i])))
            assert off[-1] < 0.02 * abs(change), (i, lr, change)
        assert off[0] / off[1] == pytest.approx(4, rel=0.1)


def gradient_of_one(model: hg.Model, sequence: torch.Tensor) -> torch.Tensor:
    model.loss(sequence[None])
    return model.backward().flat


def test_the_model_is_left_as_it_was() -> None:
    model = llama()
    before = model.params.flat.clone()
    influence(model, TOKENS, SHORT)
    assert torch.equal(model.params.flat, before)
    assert model.pending is None
    assert gradient_of(model).flat.isfinite().all()


def test_no_gradient_has_no_direction() -> None:
    layout = Layout({"w": hg.Slot((2, 3))})
    none, some = Factors(layout), Factors(layout)
    some.outer("w", torch.ones(1, 2), torch.ones(1, 3))
    none.outer("w", torch.zeros(1, 2), torch.ones(1, 3))
    assert inner(none, some) == 0
    assert inner(some, some) == 6


def test_a_sequence_whose_gradient_is_zero_has_cosine_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "inner", lambda one, other: torch.zeros((), dtype=torch.float64))
    assert influence(gpt(), TOKENS, SHORT).cosines.tolist() == [0.0] * len(TOKENS)


def test_what_cannot_be_is_refused() -> None:
    model = gpt()
    with pytest.raises(ConfigError, match="no training sequence was given"):
        influence(model, [], SHORT)
    with pytest.raises(ShapeError, match="a sequence of 1 tokens predicts nothing"):
        influence(model, TOKENS, SHORT[:1])
    with pytest.raises(UnknownName, match="no parameter named"):
        influence(model, TOKENS, SHORT, ["nothing"])
    with pytest.raises(ConfigError, match="keeping the factors of"):
        influence(model, TOKENS, SHORT, most_bytes=100)
