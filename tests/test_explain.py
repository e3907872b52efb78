"""What is said about a model is what the model does: layers, forms, equations, and the formula of every gradient."""

from dataclasses import replace

import pytest
import torch

import handgrad as hg
from handgrad.check.cases import CASES, case
from handgrad.check.explain import Log, alike, chosen, explain, folded, layer_rows
from handgrad.check.registry import EQUATIONS
from handgrad.core import Run
from handgrad.core.rule import Pair, Rule
from handgrad.core.signals import Watch
from handgrad.models.gpt2 import GPT2Config

config = GPT2Config(vocabulary=11, context=5, n_layers=3, n_heads=2, d_model=6, d_mlp=7)


@pytest.fixture(scope="module")
def model():
    return hg.build(config, seed=0)


def test_every_gradient_has_its_shape_formula_and_count(model):
    found = explain(model)
    formulas = {row.name: row.formula for row in found.gradients}
    assert formulas == {
        "embedding.token.w_emb": "OHE(t)ᵗ Δ_token + Δ_headᵗ norm",
        "embedding.position.w_pos": "OHE(position)ᵗ Δ_position",
        **{f"blocks.{i}.{name}": formula for i in range(3) for name, formula in BLOCK.items()},
        "norm.gamma": "1ᵗ(x ∘ Δ_norm)",
        "norm.beta": "1ᵗ Δ_norm",
        "head.w_emb": "the same tensor as embedding.token.w_emb",
    }
    assert {row.name: row.shape for row in found.gradients} == {
        name: slot.shape for name, slot in model.params.layout.slots.items()
    }
    counts = {row.name: row.count for row in found.gradients}
    assert counts["blocks.1.mlp.up.w"] == 42
    assert counts["head.w_emb"] == 0
    assert found.total == sum(counts.values()) == model.params.layout.count


BLOCK = {
    "norm_1.gamma": "1ᵗ(x ∘ Δ_norm_1)",
    "norm_1.beta": "1ᵗ Δ_norm_1",
    **{f"attention.{part}.w": f"norm_1ᵗ Δ_{part}" for part in ("query", "key", "value")},
    **{f"attention.{part}.b": f"1ᵗ Δ_{part}" for part in ("query", "key", "value")},
    "attention.out.w": "concat_h(out)ᵗ Δ_attention",
    "attention.out.b": "1ᵗ Δ_attention",
    "norm_2.gamma": "1ᵗ(x ∘ Δ_norm_2)",
    "norm_2.beta": "1ᵗ Δ_norm_2",
    "mlp.up.w": "norm_2ᵗ Δ_up",
    "mlp.up.b": "1ᵗ Δ_up",
    "mlp.down.w": "activationᵗ Δ_down",
    "mlp.down.b": "1ᵗ Δ_down",
}


def test_the_formulas_are_true(model):
    """A formula of the table, computed with the signals that it names, is the gradient."""
    with hg.watch(model, "*") as signals:
        model.loss(torch.tensor([[1, 2, 3, 4], [0, 7, 7, 9]]))
        g = model.backward()

    def near(path, name):
        """The signal of that name at the path, or at the nearest folder above it."""
        while f"{path}{name}" not in signals:
            assert path, name
            path = path.rstrip(".").rpartition(".")[0]
            path = f"{path}." if path else ""
        return signals[f"{path}{name}"].flatten(0, 1)

    checked = 0
    for row in explain(model).gradients:
        a, _, Delta = row.formula.partition("ᵗ Δ_")
        if a in ("norm_1", "norm_2", "activation"):
            path = row.name.rpartition(".")[0] + "."
            torch.testing.assert_close(g[row.name], near(path, a).mT @ near(path, f"Delta_{Delta}"))
            checked += 1
    assert checked == 3 * 5  # query, key, value, up and down of each block


def test_layers_are_listed_in_their_order_with_their_equations(model):
    rows = explain(model).layers
    assert [(r.path, r.layer) for r in rows if not r.path.startswith("blocks")] == [
        ("embedding.token", "TokenEmbedding"),
        ("embedding.position", "PositionEmbedding"),
        ("norm", "LayerNorm"),
        ("head", "Unembedding"),
        ("loss", "loss"),
    ]
    at = {(r.path, r.layer): r for r in rows}
    attention = at["blocks.2.attention", "MultiHead"]
    assert attention.rule.startswith("attend")
    assert {"raw", "scaled", "causal", "softmax", "mixing", "downstream", "key-bias", "multi-head"} <= set(
        attention.equations
    )
    assert at["blocks.0.mlp.activation", "Pointwise"].rule == "gelu"
    assert [r.path for r in rows if r.path.startswith("blocks.2.attention")] == [
        f"blocks.2.attention{part}" for part in ("", ".query", ".key", ".value", ".out")
    ]
    assert at["blocks.0.h", "Residual"].equations == ("residual",)
    assert at["head", "Unembedding"].equations == ("tying",)
    assert at["loss", "loss"].equations == ("shift", "cross-entropy")
    known = {e.id for e in EQUATIONS}
    assert all(r.equations and set(r.equations) <= known for r in rows)


def test_attention_names_what_it_has():
    def of(name):
        return set(next(iter(layer_rows(case(name).layer, Run()))).equations)

    plain = of("multi-head")
    assert plain - of("multi-head without mask or bias") == {"key-bias", "causal"}
    assert of("grouped queries") - plain == {"grouped-queries"}


def test_an_untied_model_has_a_gradient_for_its_head():
    rows = explain(hg.build(replace(config, tied=False), seed=0))
    assert {r.name: (r.formula, r.count) for r in rows.gradients}["head.w_emb"] == ("Δ_headᵗ norm", 66)
    assert next(r for r in rows.layers if r.layer == "Unembedding").equations == ("linear",)


def test_explaining_leaves_the_model_as_it_was(model):
    tokens = torch.tensor([[1, 2, 3]])
    loss = model.loss(tokens)
    before, pending = model.params.flat.clone(), model.pending
    explain(model)
    assert model.pending is pending
    assert torch.equal(model.params.flat, before)
    assert model.backward() is not None
    assert torch.equal(model.loss(tokens), loss)


def test_alike_blocks_fold(model):
    found = explain(model)
    gradients = folded(found.gradients, "name")
    assert {row.name: n for row, n in gradients}["blocks.*.mlp.up.w"] == 3
    assert sum(row.count * n for row, n in gradients) == found.total
    assert [row.name for row, _ in gradients][:3] == [
        "embedding.token.w_emb",
        "embedding.position.w_pos",
        "blocks.*.norm_1.gamma",
    ]
    assert alike("blocks.12.mlp.0") == "blocks.*.mlp.*"


def test_the_reason_of_a_form_is_the_true_one():
    one = Pair(lambda a, run: (a, None), lambda Delta, saved, run: Delta)
    other = Pair(lambda a, run: (a, None), lambda Delta, saved, run: Delta)
    rule = Rule("some", one, other, inner=("rho",))
    watching = Run("block.", implementation="auto", signals=Watch(("block.rho",)))
    assert chosen([rule], Run(implementation="auto")) == ("fused", "nobody watches what only the explicit form shows")
    assert chosen([rule], watching) == ("explicit", "a signal that only it shows is watched")
    assert chosen([rule], Run(implementation="explicit")) == ("explicit", "asked for")
    assert chosen([Rule("alone", one)], Run()) == ("explicit", "the only form of this rule")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_layer_of_the_cases_is_explained(case):
    """No layer is passed over: where there are parameters or a rule, there is a row."""
    rows = list(layer_rows(case.layer, case.run))
    assert all(row.rule for row in rows)
    paths = {row.path for row in rows}
    for name in case.layer.slots():
        folder = name.rpartition(".")[0]
        assert any(folder == path or folder.startswith(f"{path}.") or not path for path in paths), (name, paths)


def test_a_factor_that_is_no_signal_keeps_its_letter():
    log = Log()
    log.see("one.x", torch.ones(1, 2, 3))
    log.see("one.Delta_x", torch.ones(1, 2, 3))
    assert log.name(log.signals["one.x"], "a") == "x"
    assert log.name(log.errors["one.Delta_x"], "a") == "Δ_x"
    assert log.name(torch.ones(1, 2, 3), "a") == "a"
