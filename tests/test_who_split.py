"""The exact split of a block's error, in models: parts add up, and each is what closing all others leaves."""

from __future__ import annotations

import re

import pytest
import torch
from who_models import TOKENS, B, T, close, gpt, llama

import handgrad as hg
from handgrad.core import Chain
from handgrad.core.errors import ConfigError, NumericError, ShapeError
from handgrad.who.block import BlockSplit, split_block


def oracle(model: hg.Model, tokens: torch.Tensor, block: int) -> dict[str, torch.Tensor]:
    """Skip and MLP by automatic differentiation of the block's own forward pass, from the error of its output."""
    with hg.watch(model, "*") as signals:
        model.loss(tokens)
        model.backward()
    below = f"blocks.{block - 1}" if block else next(n for n in ("dropout", "embedding") if n in signals)
    layer = model.layer.parts["blocks"].parts[str(block)]
    tree = model.params.tree["blocks"][str(block)]
    Delta = signals[f"blocks.Delta_{block}"]
    h = signals[f"blocks.{block}.h"].detach().requires_grad_()
    layer.parts[1].f.forward(tree, h, hg.Run())[0].backward(Delta)
    Delta_h = Delta + h.grad
    a = signals[below].detach().requires_grad_()
    layer.parts[0].f.forward(tree, a, hg.Run())[0].backward(Delta_h)
    return {"skip": Delta, "mlp": h.grad, "attention": a.grad}


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("make", [gpt, llama, lambda: gpt(dropout=0.2), lambda: llama(n_kv_heads=1, window=3)])
def test_parts_add_up_and_are_those_of_the_oracle(make, block: int) -> None:
    model = make()
    found = split_block(model, TOKENS, block)
    close(sum(found.parts.values()), found.whole)
    assert found.off < 1e-12
    right, sums = oracle(model, TOKENS, block), found.sums()
    close(sums["skip"], right["skip"])
    close(sums["mlp"], right["mlp"])
    close(sums["query"] + sums["key"] + sums["value"], right["attention"])
    assert len(found.heads) == model.config.n_heads
    assert all(float(part.norm()) > 0 for part in found.parts.values())
    assert abs(sum(found.share(part) for part in found.parts.values()) - 1) < 1e-12
    assert abs(sum(found.share(part, 3) for part in found.parts.values()) - 1) < 1e-12


@pytest.mark.parametrize("make", [gpt, llama])
def test_one_branch_of_one_head_is_what_closing_all_others_leaves(make) -> None:
    """In the model's own backward pass, Delta_q is replaced by one head of it, and Delta_k and Delta_v by 0."""
    model, head = make(), 1

    def only(x: torch.Tensor) -> torch.Tensor:
        kept = torch.zeros_like(x)
        kept[:, head] = x[:, head]
        return kept

    replaced = {"blocks.1.attention.Delta_q": only}
    replaced |= {f"blocks.1.attention.Delta_{x}": torch.zeros_like for x in "kv"}
    with hg.watch(model, "blocks.Delta_0", "blocks.1.Delta_h", replace=replaced) as signals:
        model.loss(TOKENS)
        model.backward()
    part = split_block(model, TOKENS, 1).parts["attention.1.query"]
    close(part, signals["blocks.Delta_0"] - signals["blocks.1.Delta_h"])


def test_dropout_is_the_same_in_the_split() -> None:
    model = gpt(dropout=0.3)
    with model.running(seed=4):
        found = split_block(model, TOKENS, 1)
    close(sum(found.parts.values()), found.whole)
    assert (found.whole - split_block(model, TOKENS, 1).whole).norm() > 0.1 * found.whole.norm()


def test_tables_say_what_the_parts_make() -> None:
    found = split_block(llama(), TOKENS, "blocks.1")
    assert [row["part"] for row in found.table()] == ["skip", "mlp", "query", "key", "value"]
    shares = [float(row["share"].rstrip(" %").replace(",", "")) for row in found.table()]
    assert abs(sum(shares) - 100) < 0.5 * len(shares)
    assert [row["head"] for row in found.head_table(2)] == ["0", "1", "2", "3"]
    largest = max(found.sums(), key=lambda name: abs(found.share(found.sums()[name])))
    assert found.sentence().startswith(f"{largest} makes ")
    assert "of the error at the input of blocks.1; the 14 parts add up" in found.sentence()
    assert "descent goes against it" in str(found)
    assert "<table>" in found._repr_html_()
    with pytest.raises(ShapeError, match="position 7 was asked for, and there are positions 0 to 6"):
        found.table(7)


def test_what_cannot_be_split_is_refused() -> None:
    model = gpt()
    for block in ("blocks.2", "norm", -1, "blocks.01"):
        with pytest.raises(ConfigError, match=f"block {re.escape(str(block))} was asked for, .* has blocks.0 to"):
            split_block(model, TOKENS, block)
    with pytest.raises(ConfigError, match="this model has none"):
        split_block(hg.Model(model.config, Chain({}), model.params), TOKENS, 0)
    nothing = BlockSplit("blocks.0", {"skip": torch.zeros(B, T, 2)}, torch.zeros(B, T, 2))
    with pytest.raises(NumericError, match="nothing that the loss counts depends on it"):
        nothing.table()
