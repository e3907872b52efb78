"""Low-rank updates beside a frozen model: the oracle's gradients, a base that stays as it is, merging, stacking."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import handgrad as hg
from handgrad.adapt.lora import LoRA, adapted, base_of, linears, merge
from handgrad.check.verify import by_autograd, by_hand
from handgrad.core.errors import ConfigError, UnknownName
from handgrad.core.run import Run
from handgrad.generate.generate import generate
from handgrad.generate.sample import Sampling
from handgrad.models.export import export
from handgrad.models.model import Model, watch
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State
from handgrad.train.prepare import gradient_of, prepared
from handgrad.train.step import step_on

SHAPES = {
    "gpt2": hg.GPT2Config(vocabulary=23, context=13, n_layers=3, n_heads=2, d_model=14),
    "llama": hg.LlamaConfig(vocabulary=23, context=13, n_layers=2, n_heads=4, n_kv_heads=2, d_model=24, d_mlp=22),
}
EVERYWHERE = LoRA(rank=3, alpha=7, targets=("attention.*", "mlp.*"))
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])


def drawn(kind: str = "gpt2", dtype: torch.dtype = torch.float64) -> Model:
    return randomised(hg.build(SHAPES[kind], seed=0, dtype=dtype))


def randomised(model: Model, seed: int = 5) -> Model:
    for i, x in enumerate(model.params.values()):
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(100 * seed + i), dtype=torch.float64)
        x.copy_(noise * 0.3)
    return model


def relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x - y).norm() / y.norm())


@pytest.mark.parametrize("kind", SHAPES)
def test_a_fresh_adapter_changes_nothing_and_only_B_has_a_gradient(kind) -> None:
    base = drawn(kind)
    model = adapted(base, EVERYWHERE)
    assert torch.equal(model(TOKENS), base(TOKENS))
    model.loss(TOKENS)
    for name, g in model.backward().items():
        assert (float(g.norm()) == 0) == name.endswith("A"), name
    assert all(float(x.norm()) > 0 for name, x in model.params.items() if name.endswith("A"))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("form", ["explicit", "fused"])
def test_every_gradient_is_the_oracles(kind, form) -> None:
    model = randomised(
        adapted(randomised(adapted(drawn(kind), EVERYWHERE), seed=2), LoRA(rank=2, targets=("query", "down")))
    )
    right, found = by_autograd(model, model.params.flat, TOKENS), by_hand(model, model.params.flat, TOKENS, form)
    assert found.gradients.keys() == right.gradients.keys()
    for name, g in found.gradients.items():
        assert relative(g, right.gradients[name]) < 1e-12, name


@pytest.mark.parametrize("rslora", [False, True])
def test_the_update_is_scaled_alike_in_both_directions_and_in_merging(rslora) -> None:
    base = drawn()
    model = randomised(adapted(base, LoRA(rank=8, alpha=16, targets=("blocks.1.mlp.up",), rslora=rslora)))
    A, B = model.params.values()
    s = 16 / 8**0.5 if rslora else 2.0
    w = base.params["blocks.1.mlp.up.w"]
    assert relative(merge(model).params["blocks.1.mlp.up.w"] - w, s * A @ B) < 1e-12
    plain = drawn()
    plain.params["blocks.1.mlp.up.w"].add_(s * A @ B)
    assert relative(model(TOKENS), plain(TOKENS)) < 1e-12
    plain.loss(TOKENS)
    model.loss(TOKENS)
    whole, small = plain.backward()["blocks.1.mlp.up.w"], model.backward()
    assert relative(small["blocks.1.mlp.up.lora.B"], s * A.mT @ whole) < 1e-12
    assert relative(small["blocks.1.mlp.up.lora.A"], s * whole @ B.mT) < 1e-12


@pytest.mark.parametrize("recompute", ["nothing", "cheap", "blocks"])
@pytest.mark.parametrize("update", ["after", "inside"])
def test_training_moves_the_adapter_alone(recompute, update) -> None:
    base = drawn(dtype=torch.float32)
    before = base.params.flat.clone()
    config = TrainConfig(steps=50, recompute=recompute, update=update, weight_decay=0.1, lr=3e-3)
    model = prepared(adapted(base, LoRA(rank=2, targets=("attention.*", "mlp.*"), dropout=0.2)), config)
    g, state = gradient_of(model, config), State.zeros(model.params.flat)
    assert state.m.numel() == model.params.layout.size < base.params.layout.size
    losses = [
        step_on(model, [(TOKENS[:, :-1], TOKENS[:, 1:])], g, state, 1e-2, config, i).loss_nats for i in range(1, 51)
    ]
    assert losses[-1] < 0.9 * losses[0]
    assert torch.equal(base.params.flat, before)
    assert torch.equal(base_of(model).params.flat, before)


@pytest.mark.parametrize("recompute", ["nothing", "cheap", "blocks"])
@pytest.mark.parametrize("targets", [("attention.*", "mlp.*"), ("blocks.1.mlp.down", "blocks.2.attention.query")])
def test_what_training_leaves_out_changes_no_gradient(recompute, targets) -> None:
    model = randomised(adapted(drawn(), LoRA(rank=2, targets=targets, dropout=0.3)))
    run = Run(seed=3, implementation="auto")
    right_loss, right = model.loss(TOKENS, run=run), model.backward()
    lean = prepared(model, TrainConfig(dtype="float64", recompute=recompute))
    loss, found = lean.loss(TOKENS, run=run), lean.backward()
    assert float(loss) == pytest.approx(float(right_loss), rel=1e-13)
    assert relative(found.flat, right.flat) < 1e-12
    kinds = {name: type(f).__name__ for name, f in lean.layer.parts.items()}
    assert kinds["embedding"] == "Still"
    assert [type(f).__name__ == "Still" for f in lean.layer.parts["blocks"].parts.values()] == [
        not any(name.startswith(f"blocks.{i}.") for name in model.params) and i == 0 for i in range(3)
    ]


def test_frozen_layers_keep_no_factors_in_training() -> None:
    from torch.utils._pytree import tree_leaves

    def kept(model: Model) -> int:
        model.loss(TOKENS)
        leaves = [x for x in tree_leaves(model.pending.saved) if isinstance(x, torch.Tensor)]
        return sum({x.data_ptr(): x.nbytes for x in leaves}.values())

    model = adapted(drawn(), LoRA(rank=2, targets=("blocks.2.attention.query",)))
    assert kept(prepared(model, TrainConfig(dtype="float64"))) < 0.5 * kept(model)


def test_bfloat16_holds_the_frozen_numbers_once() -> None:
    base = drawn(dtype=torch.float32)
    model = randomised(adapted(base, LoRA(rank=2)))
    lean = prepared(model, TrainConfig(dtype="bfloat16"))
    assert [b.flat.dtype for b in lean.frozen] == [torch.bfloat16]
    assert (lean.params.flat.dtype, lean.shadow.flat.dtype) == (torch.float32, torch.bfloat16)
    assert lean.params.flat.data_ptr() == model.params.flat.data_ptr()
    assert 0 < relative(lean(TOKENS).float(), model(TOKENS)) < 0.05
    with pytest.raises(ConfigError, match="rounded for training"):
        merge(lean)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_merged_computes_the_same_and_the_base_comes_back(kind, dtype, tolerance) -> None:
    base = drawn(kind, dtype)
    model = randomised(
        adapted(randomised(adapted(base, EVERYWHERE)), LoRA(rank=2, targets=("key", "up")), seed=1), seed=3
    )
    plain = merge(model)
    assert (plain.frozen, type(plain.layer)) == ((), type(base.layer))
    assert plain.params.layout == base.params.layout
    assert relative(plain(TOKENS), model(TOKENS)) < tolerance
    assert relative(base(TOKENS), model(TOKENS)) > 0.1
    assert torch.equal(base_of(model)(TOKENS), base(TOKENS))
    assert base_of(model).params.flat.data_ptr() == base.params.flat.data_ptr()


def test_merging_keeps_the_embedding_tied(tmp_path) -> None:
    plain = merge(randomised(adapted(drawn(), EVERYWHERE)))
    assert plain.params["head.w_emb"].data_ptr() == plain.params["embedding.token.w_emb"].data_ptr()
    export(plain, tmp_path / "there")
    assert torch.equal(hg.load(tmp_path / "there")(TOKENS), plain(TOKENS))


def test_a_stack_adds_up_and_trains_its_newest() -> None:
    base = drawn()
    one = randomised(adapted(base, LoRA(rank=2, alpha=3, targets=("mlp.up",))), seed=1)
    two = randomised(adapted(one, LoRA(rank=5, alpha=4, targets=("mlp.up", "mlp.down"))), seed=2)
    assert [len(list(b)) for b in two.frozen] == [len(list(base.params)), 6]
    name, w = "blocks.0.mlp.up", base.params["blocks.0.mlp.up.w"]
    first = one.params[f"{name}.lora.A"] @ one.params[f"{name}.lora.B"]
    second = two.params[f"{name}.lora.A"] @ two.params[f"{name}.lora.B"]
    assert relative(merge(two).params[f"{name}.w"], w + 3 / 2 * first + 4 / 5 * second) < 1e-12
    assert relative(merge(two)(TOKENS), two(TOKENS)) < 1e-10
    assert torch.equal(base_of(two)(TOKENS), base(TOKENS))


def test_dropout_is_of_the_update_alone_and_off_in_evaluation() -> None:
    base = drawn()
    fresh = adapted(base, replace(EVERYWHERE, dropout=0.5))
    run = Run(seed=3, implementation="auto")
    assert float(fresh.loss(TOKENS, run=run)) == float(base.loss(TOKENS))  # B = 0: what is dropped is multiplied by 0
    model = randomised(fresh)
    assert torch.equal(model(TOKENS), model(TOKENS))
    assert relative(merge(model)(TOKENS), model(TOKENS)) < 1e-10
    first = float(model.loss(TOKENS, run=run))
    assert first == float(model.loss(TOKENS, run=run)) != float(model.loss(TOKENS))
    with watch(model, "blocks.1.mlp.up.lora.low") as seen:
        assert float(model.loss(TOKENS, run=replace(run, signals=model.run.signals))) == pytest.approx(first, rel=1e-12)
    assert "blocks.1.mlp.up.lora.low" in seen


def test_a_compiled_block_cannot_draw_anew() -> None:
    model = adapted(drawn(dtype=torch.float32), LoRA(rank=2, dropout=0.1))
    with pytest.raises(ConfigError, match="--compile cannot go with --dropout"):
        prepared(model, TrainConfig(compile=True))


def test_patterns_choose_layers_ranks_and_alphas() -> None:
    config = LoRA(
        rank=3, alpha=6, targets=("blocks.[02].*",), rank_pattern={"mlp.*": 2, "up": 1}, alpha_pattern={"key": 9}
    )
    layers = linears(adapted(drawn(), config).layer)
    sizes = {name: (f.rank, f.alpha) for name, f in layers.items() if hasattr(f, "rank")}
    assert {name.split(".")[1] for name in sizes} == {"0", "2"}
    assert sizes["blocks.0.mlp.up"] == (1, 6)
    assert sizes["blocks.2.mlp.down"] == (2, 6)
    assert sizes["blocks.2.attention.key"] == (3, 9)
    assert len(sizes) == 12


def test_gpt2s_branches_share_A_and_llamas_do_not() -> None:
    A = adapted(drawn("gpt2"), LoRA(rank=2)).params
    assert A["blocks.0.attention.key.lora.A"].data_ptr() == A["blocks.0.attention.query.lora.A"].data_ptr()
    assert A["blocks.1.attention.key.lora.A"].data_ptr() != A["blocks.0.attention.query.lora.A"].data_ptr()
    apart = adapted(drawn("gpt2"), LoRA(rank=2, rank_pattern={"key": 3})).params
    assert apart["blocks.0.attention.key.lora.A"].shape == (14, 3)
    assert not adapted(drawn("llama"), LoRA(rank=2)).params.layout.tied


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"targets": ("attention.qury",)}, UnknownName, "fits no linear layer; did you mean 'attention.query'"),
        ({"targets": ("q_proj",)}, UnknownName, r"fits no linear layer.*attention\.query"),
        ({"targets": ("head",)}, ConfigError, "logits' matrix, which stays as it is, and it is tied"),
        ({"rank_pattern": {"conv": 2}}, UnknownName, "rank_pattern 'conv' fits no linear layer"),
        ({"alpha_pattern": {"conv": 2}}, UnknownName, "alpha_pattern 'conv' fits no linear layer"),
        ({"targets": ()}, ConfigError, "no targets are named"),
        ({"rank": 0}, ConfigError, "rank of a low-rank update is 0"),
        ({"alpha": 0}, ConfigError, "alpha of a low-rank update is 0"),
        ({"dropout": 1.0}, ConfigError, "dropout of a low-rank update is 1.0"),
        ({"rank_pattern": {"up": 0}}, ConfigError, "rank of a low-rank update is 0"),
    ],
)
def test_what_cannot_be_is_refused(config, error, message) -> None:
    with pytest.raises(error, match=message):
        adapted(drawn(), LoRA(**config))


def test_an_adapted_model_writes_and_is_not_exported_without_its_updates(tmp_path) -> None:
    model = randomised(adapted(drawn(dtype=torch.float32), EVERYWHERE))
    greedy = Sampling(temperature=0)
    ids = [int(i) for i in generate(model, TOKENS[0, :3], 6, greedy)]
    assert ids == [int(i) for i in generate(merge(model), TOKENS[0, :3], 6, greedy)]
    assert ids != [int(i) for i in generate(base_of(model), TOKENS[0, :3], 6, greedy)]
    with pytest.raises(ConfigError, match="merge them first"):
        export(model, tmp_path / "there")


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (3, 4)])
def test_a_transposed_matrix_of_one_row_or_column_is_written(tmp_path, shape):
    """torch calls a (1, n) view of a (n, 1) matrix contiguous, whatever its strides, and cannot show its bytes."""
    from handgrad.models.tensors import write_tensors

    x = torch.arange(15.0)[: shape[0] * shape[1]].view(shape[1], shape[0]).mT
    with open(tmp_path / "x.safetensors", "wb") as file:
        write_tensors(file, {"x": shape}, torch.float32, lambda name: x, {})
    assert load_file(tmp_path / "x.safetensors")["x"].equal(x)


def test_a_dot_in_a_pattern_is_any_character_as_in_peft():
    from handgrad.adapt.peft_config import fits

    assert fits("model.layers.0.self_attn.q_proj", "q.proj")
    assert not fits("model.layers.0.self_attn.q_proj", "proj")


@pytest.mark.parametrize("alpha", [float("inf"), 1e308, "16", 10**400])
def test_an_alpha_that_is_no_size_is_refused(alpha):
    with pytest.raises(ConfigError, match="alpha of a low-rank update"):
        LoRA(alpha=alpha)


def test_a_merge_in_half_precision_is_rounded_once():
    from handgrad.rules.lowrank import merged

    g = torch.Generator().manual_seed(0)
    w, A, B = (torch.randn(s, generator=g).bfloat16() for s in ((7, 5), (7, 3), (3, 5)))
    assert merged(w, A, B, 0.3).equal((w.float() + 0.3 * (A.float() @ B.float())).bfloat16())
