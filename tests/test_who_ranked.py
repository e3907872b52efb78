"""Who taught this weight: shares of tokens, checked against gradients of one token at a time."""

from __future__ import annotations

import re

import pytest
import torch
from who_models import TOKENS, B, T, close, gpt, gradient_of, llama

import handgrad as hg
from handgrad.core import Chain, Layout
from handgrad.core.errors import ConfigError, NumericError, ShapeError, UnknownName
from handgrad.data.tokenizers import Chars
from handgrad.layers.linear import Linear
from handgrad.layers.lowrank import LowRank
from handgrad.layers.multihead import MultiHead
from handgrad.models.llama import LlamaConfig
from handgrad.rules.fused import headloss_chunked
from handgrad.who.factors import Factors
from handgrad.who.heads import attentions, head_of
from handgrad.who.ranked import Ranked, terms_of, who
from handgrad.who.words import percent

NAMES = (
    "blocks.0.attention.query.w",
    "blocks.1.attention.out.w",
    "blocks.0.mlp.up.w",
    "blocks.1.attention.value.b",
    "blocks.1.norm_1.gamma",
    "blocks.0.norm_2.beta",
    "embedding.position.w_pos",
    "head.w_emb",
)


def one_by_one(model: hg.Model, name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Place -> (B, T, n, m): each token's own term, made of signals that were watched and of nothing kept."""
    with hg.watch(model, "*") as signals:
        whole = gradient_of(model)[name]
    path, _, leaf = name.rpartition(".")
    folder, _, last = path.rpartition(".")
    above = f"{folder}.Delta_{last}" if folder else f"Delta_{last}"
    Delta = signals[above]
    outer = {
        "blocks.0.attention.query.w": "blocks.0.norm_1",
        "blocks.0.mlp.up.w": "blocks.0.norm_2",
    }
    if name in outer:
        return {name: torch.einsum("btn,btm->btnm", signals[outer[name]], Delta)}, whole
    if name.endswith("out.w"):
        heads = signals["blocks.1.attention.out"].transpose(1, 2).flatten(-2)
        return {name: torch.einsum("btn,btm->btnm", heads, signals["blocks.1.Delta_attention"])}, whole
    if leaf == "gamma":
        return {name: signals[f"{path}.x"] * Delta}, whole
    if leaf in ("b", "beta"):
        return {name: Delta}, whole
    terms = torch.zeros(B, T, *whole.shape, dtype=torch.float64)
    if name.endswith("w_pos"):
        for t in range(T):
            terms[:, t, t] = Delta[:, t]
        return {name: terms}, whole
    read = "embedding.token.w_emb"
    Delta = signals["embedding.Delta_token"]
    for b in range(B):
        for t in range(T):
            terms[b, t, TOKENS[b, t]] = Delta[b, t]
    return {name: torch.einsum("btv,btd->btvd", signals["Delta_head"], signals["norm"]), read: terms}, whole


@pytest.mark.parametrize("name", NAMES)
def test_shares_and_norms_are_those_of_terms_formed_one_by_one(name: str) -> None:
    model = gpt()
    terms, whole = one_by_one(model, name)
    close(sum(term.sum((0, 1)) for term in terms.values()), whole)
    found = who(model, TOKENS, name)
    close(found.gradient, whole)
    assert set(found.shares) == set(terms)
    for place, term in terms.items():
        flat = term.flatten(2)
        close(found.norms[place], flat.norm(dim=-1))
        close(found.shares[place], flat @ whole.flatten() / whole.square().sum())
    assert abs(sum(float(share.sum()) for share in found.shares.values()) - 1) < 1e-12


@pytest.mark.parametrize("side", ["query", "key", "value", "out"])
@pytest.mark.parametrize("make", [gpt, llama])
def test_a_head_is_a_part_of_the_weight(make, side: str) -> None:
    model, name = make(), f"blocks.1.attention.{side}.w"
    whole, layer = gradient_of(model)[name], attentions(model.layer)["blocks.1.attention"]
    n = layer.groups if side in ("key", "value") else layer.heads
    parts = whole.chunk(n, 0 if side == "out" else 1)
    squares = 0
    for head, part in enumerate(parts):
        found = who(model, TOKENS, name, head=head)
        close(found.gradient, part)
        assert abs(float(found.shares[name].sum()) - 1) < 1e-12
        squares = squares + found.norms[name].square()
    close(squares, who(model, TOKENS, name).norms[name].square())


def test_heads_of_offsets_and_of_what_has_none() -> None:
    model = llama()
    assert head_of(model, "blocks.0.attention.value.b", 1) == (0, slice(6, 12))
    assert head_of(model, "blocks.0.attention.query.w", 3) == (1, slice(18, 24))
    with pytest.raises(ConfigError, match=r"head 2 .*key\.w has heads 0 to 1, each shared by 2 query heads"):
        head_of(model, "blocks.0.attention.key.w", 2)
    with pytest.raises(ConfigError, match=r"head -1 was asked for, and .* has heads 0 to 3"):
        who(model, TOKENS, "blocks.0.attention.query.w", head=-1)
    for name in ("blocks.0.mlp.up.w", "norm.gamma", "blocks.0.attention.out.b"):
        with pytest.raises(ConfigError, match=f"no part of {re.escape(name)} belongs to one head"):
            head_of(model, name, 0)


def test_a_head_of_a_low_rank_update() -> None:
    layer = MultiHead(6, 2, instead={"query": LowRank(Linear(6, 6), 2, 4.0), "out": LowRank(Linear(6, 6), 2, 4.0)})
    model = hg.Model(gpt().config, Chain({"attention": layer}), gpt().params)
    assert head_of(model, "attention.query.lora.B", 1) == (1, slice(3, 6))
    assert head_of(model, "attention.out.lora.A", 1) == (0, slice(3, 6))
    for name in ("attention.query.lora.A", "attention.out.lora.B"):
        with pytest.raises(ConfigError, match="belongs to one head"):
            head_of(model, name, 1)


def test_the_largest_come_first_and_sentences_say_what_they_make() -> None:
    found = who(gpt(), TOKENS, NAMES[0], head=2)
    top = found.top(B * T)
    sizes = [abs(term.share) for term in top]
    assert sizes == sorted(sizes, reverse=True)
    assert len({(term.sample, term.position) for term in top}) == B * T
    for term in top:
        assert term.id == int(TOKENS[term.sample, term.position])
        assert term.share == float(found.shares[NAMES[0]][term.sample, term.position])
    made = sum(term.share for term in top[:5])
    assert found.sentence(5).startswith(f"5 of 21 tokens make {percent(made, '')} of the gradient of")
    assert found.sentence(99).startswith("all 21 tokens make 100 % of")
    assert found.sentence(9, position=4).startswith(f"all {B} tokens of position 4 make")
    assert found.sentence(9, 4, 1).startswith("the token of position 4 of sample 1 makes")
    assert found.sentence(1).startswith("1 of 21 tokens makes")
    assert who(gpt(), TOKENS, "head.w_emb").sentence(3).startswith("3 of 42 terms make")
    assert {term.position for term in found.top(9, position=4)} == {4}
    assert len(found.top(9, position=4)) == B
    assert {term.sample for term in found.top(99, sample=1)} == {1}
    assert list(found.table(1)[0]) == ["share", "norm", "sample", "position", "token"]  # there is no text before it
    text = str(found)
    assert "Delta_x = dL/dx" in text
    assert "descent goes against the gradient" in text
    for what, how in (("position 7", {"position": 7}), ("sample -1", {"sample": -1}), ("the 0 largest", {"n": 0})):
        with pytest.raises(ShapeError, match=what):
            found.top(**how)


def test_the_loss_of_one_target_alone_teaches_through_the_tokens_before_it() -> None:
    model, valid = gpt(), torch.zeros(B, T, dtype=torch.bool)
    valid[1, 3] = True
    found = who(model, TOKENS, NAMES[0], valid=valid)
    share = found.shares[NAMES[0]]
    assert not share[[0, 2]].any()
    assert not share[1, 4:].any()
    assert share[1, 1:4].all()


def test_a_token_that_hands_over_twice_has_one_term() -> None:
    """Two passes into one receiver: the same shares, and norms of the sums."""
    model, name = gpt(), "blocks.0.mlp.down.w"
    factors, one = Factors(model.params.layout, (name,)), who(model, TOKENS, name)
    for _ in range(2):
        model.loss(TOKENS)
        model.backward(factors)
    shares, norms = terms_of(factors[name], factors.gradient(name), TOKENS.shape, name)
    close(shares[name], one.shares[name])
    close(norms[name], 2 * one.norms[name])


def test_rounding_is_no_teacher() -> None:
    for dtype in (torch.float64, torch.float32):
        model = gpt().moved(dtype)
        for head in (None, 1):
            with pytest.raises(NumericError, match=r"gradient of blocks\.1\.attention\.key\.b is .* which is rounding"):
                who(model, TOKENS, "blocks.1.attention.key.b", head=head)
    with pytest.raises(NumericError, match=r"is 0\.0e\+00, which is rounding"):
        who(gpt(), TOKENS, NAMES[0], valid=torch.zeros(B, T, dtype=torch.bool))


def test_wrong_names_and_shapes_are_refused() -> None:
    with pytest.raises(UnknownName, match=r"no trained parameter named 'blocks\.0\.mlp\.up'; did you mean"):
        who(gpt(), TOKENS, "blocks.0.mlp.up")
    factors = Factors(Layout({"w": hg.Slot((2, 2))}))
    factors.outer("w", torch.ones(B, 2), torch.ones(B, 2))
    with pytest.raises(ShapeError, match=r"handed over as \(3, 2\), without an axis of 7 tokens"):
        terms_of(factors["w"], factors.gradient("w"), (B, T), "w")


def test_tokens_are_shown_as_text_that_does_nothing() -> None:
    alphabet = sorted("<b>\x1b[31m\n é")
    model = hg.build(LlamaConfig(len(set(alphabet)), context=9, n_layers=1, n_heads=1, d_model=6), seed=1)
    model.tokenizer = Chars.of("".join(alphabet))
    ids = torch.from_numpy(model.tokenizer.encode("<b>\x1b[31\né"))[None]
    found = hg.who(model, ids, "blocks.0.attention.value.w")
    assert isinstance(found, Ranked)
    cells = {row["position"]: row for row in found.table(9)}
    assert cells["3"]["token"] == r"'\x1b'"
    assert cells["7"]["token"] == r"'\n'"
    assert cells["7"]["before"] == r"<b>\x1b[31"
    shown = found._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "\x1b" not in shown + str(found)
    assert "sample" not in cells["3"]
    assert "place" not in cells["3"]


@pytest.mark.parametrize("samples", [1, 2])
def test_a_head_in_pieces_gives_every_sample_its_own_terms(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    model = gpt()
    right = who(model, TOKENS, "head.w_emb")
    monkeypatch.setattr(headloss_chunked, "CHUNK", samples * T * 11 * 8)
    found = who(model, TOKENS, "head.w_emb")
    for place, share in right.shares.items():
        close(found.shares[place], share)
        close(found.norms[place], right.norms[place])
