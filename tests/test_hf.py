"""Hugging Face folders, as transformers writes them: the same logits and the same gradients, in float64."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_llama import CASES, peer
from test_llama import theirs as llama_name
from test_model import batch, randomised, relative

import handgrad as hg
from handgrad.core.errors import FileError
from handgrad.layers.frequencies import LinearScaling, Llama3, Plain
from handgrad.models.hf_config import config_of

transformers = pytest.importorskip("transformers")

GPT2 = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "inner width, relu": {"n_inner": 13, "activation_function": "relu"},
    "erf": {"activation_function": "gelu", "layer_norm_epsilon": 1e-3},
}
PARTS = {"attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj", "norm_1": "ln_1"}
PARTS |= {"norm_2": "ln_2"}


def gpt2(tmp_path: Path, **more) -> torch.nn.Module:
    """A small GPT-2 of transformers with random numbers everywhere, in float64."""
    config = transformers.GPT2Config(vocab_size=11, n_positions=29, n_embd=8, n_layer=2, n_head=2, **more)
    return scattered(transformers.GPT2LMHeadModel(config).double().eval())


def scattered(other: torch.nn.Module) -> torch.nn.Module:
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for w in other.parameters():
            w.copy_(torch.randn(w.shape, generator=g, dtype=w.dtype) * 0.3 + (1.0 if w.ndim == 1 else 0.0))
    return other


def gpt2_gradient(name: str, grads: dict[str, torch.Tensor]) -> torch.Tensor:
    """Their gradient of our parameter, by names written out here."""
    whole = {
        "embedding.token.w_emb": "transformer.wte.weight",
        "embedding.position.w_pos": "transformer.wpe.weight",
        "norm.gamma": "transformer.ln_f.weight",
        "norm.beta": "transformer.ln_f.bias",
        "head.w_emb": "lm_head.weight",
    }
    if name in whole:
        return grads[whole[name]]
    _, i, rest = name.split(".", 2)
    part, _, leaf = rest.rpartition(".")
    leaf = {"w": "weight", "gamma": "weight", "b": "bias", "beta": "bias"}[leaf]
    branch = part.split(".")[-1]
    if branch in ("query", "key", "value"):
        first = 8 * ("query", "key", "value").index(branch)
        return grads[f"transformer.h.{i}.attn.c_attn.{leaf}"][..., first : first + 8]
    return grads[f"transformer.h.{i}.{PARTS[part]}.{leaf}"]


def compare(model: hg.Model, other: torch.nn.Module, gradient) -> None:
    tokens = batch(1, length=19)
    logits = other(tokens).logits
    assert relative(model(tokens), logits) < 1e-10
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    model.loss(tokens)
    named = {name: w.grad for name, w in other.named_parameters()}
    for name, g in model.backward().items():
        right = gradient(name, named)
        if name.endswith("key.b") and isinstance(model.config, hg.GPT2Config):
            assert max(g.norm(), right.norm()) < 1e-14, name  # an offset of all keys changes no attention
            continue
        assert right.norm() > 0, name
        assert relative(g, right) < 1e-10, name


@pytest.mark.parametrize("name", GPT2)
@pytest.mark.parametrize("shards", ["50GB", "3KB"])
def test_gpt2(tmp_path: Path, name: str, shards: str) -> None:
    other = gpt2(tmp_path, **GPT2[name])
    other.save_pretrained(tmp_path, max_shard_size=shards)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards == "3KB")
    model = hg.load(tmp_path)
    assert model.params.flat.dtype == torch.float64
    assert model.config.tied == (name != "untied")
    compare(model, other, gpt2_gradient)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shards", ["50GB", "3KB"])
def test_the_llama_family(tmp_path: Path, name: str, shards: str) -> None:
    other = scattered(peer(CASES[name]))
    other.save_pretrained(tmp_path, max_shard_size=shards)
    model = hg.load(tmp_path)
    assert model.config == CASES[name]
    compare(model, other, lambda n, grads: grads[llama_name(n)].mT if n.endswith(".w") else grads[llama_name(n)])


def test_a_square_matrix_is_not_turned_around(tmp_path: Path) -> None:
    """attn.c_proj is square, so a transposed one would load without a word."""
    other = gpt2(tmp_path)
    other.save_pretrained(tmp_path)
    model, c_proj = hg.load(tmp_path), other.transformer.h[0].attn.c_proj
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    p = model.params
    ours = x @ p["blocks.0.attention.out.w"] + p["blocks.0.attention.out.b"]
    assert relative(ours, c_proj(x)) < 1e-12
    assert relative(x @ p["blocks.0.attention.out.w"].mT, x @ p["blocks.0.attention.out.w"]) > 0.1


def test_names_without_prefix_and_the_masks_of_older_files(tmp_path: Path) -> None:
    other = gpt2(tmp_path)
    other.transformer.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda t: t | {"h.0.attn.bias": torch.ones(1, 1, 29, 29), "h.1.attn.masked_bias": torch.ones(1)})
    assert "wte.weight" in load_file(tmp_path / "model.safetensors")
    tokens = batch(1, length=19)
    assert relative(hg.load(tmp_path)(tokens), other(tokens).logits) < 1e-10


def rewrite(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    save_file({n: t.contiguous() for n, t in change(load_file(path)).items()}, path, {"format": "pt"})


def edit(folder: Path, **fields) -> None:
    path = folder / "config.json"
    table = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in table.items() if value is not ...}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_short_numbers_become_float32_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    other = gpt2(tmp_path).to(dtype)
    other.save_pretrained(tmp_path)
    model = hg.load(tmp_path)
    assert model.params.flat.dtype == torch.float32
    assert torch.equal(model.params["embedding.token.w_emb"], other.transformer.wte.weight.detach().float())
    assert hg.load(tmp_path, dtype=torch.float64).params.flat.dtype == torch.float64


def test_tying_is_as_the_configuration_says(tmp_path: Path) -> None:
    other = gpt2(tmp_path)
    other.save_pretrained(tmp_path)
    model = hg.load(tmp_path)
    model.params["embedding.token.w_emb"][1, 2] = 42.0
    assert model.params["head.w_emb"][1, 2] == 42.0
    edit(tmp_path, tie_word_embeddings=False)
    with pytest.raises(FileError, match=r"lm_head.weight expected, and missing"):
        hg.load(tmp_path)
    rewrite(tmp_path, lambda t: t | {"lm_head.weight": t["transformer.wte.weight"].clone()})
    assert not hg.load(tmp_path).config.tied
    edit(tmp_path, tie_word_embeddings=True)
    assert hg.load(tmp_path).config.tied  # stored twice, and equal
    rewrite(tmp_path, lambda t: t | {"lm_head.weight": t["lm_head.weight"] + 1})
    with pytest.raises(FileError, match=r"ties lm_head.weight to transformer.wte.weight, and the file holds two"):
        hg.load(tmp_path)


LLAMA = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
THREE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({}, Plain()),
        ({"rope_theta": 5e5}, Plain(5e5)),
        ({"rope_theta": 5e5, "rope_scaling": None}, Plain(5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, Plain(5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, LinearScaling(4.0)),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4}, "rope_theta": 100}, LinearScaling(4.0, 100.0)),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}}, LinearScaling(4.0, 100.0)),
        ({"rope_scaling": {"rope_type": "llama3", **THREE}, "rope_theta": 5e5}, Llama3(8.0, 1.0, 4.0, 32, 5e5)),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **THREE}}, Llama3(8.0, 1.0, 4.0, 32, 5e5)),
    ],
)
def test_rotary_scaling_in_both_spellings(fields: dict, rope: object) -> None:
    assert config_of(LLAMA | fields, "config.json").rope == rope


SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


def test_a_published_configuration_with_all_it_has() -> None:
    assert config_of(SMOLLM2, "config.json") == hg.LlamaConfig(
        vocabulary=49152,
        context=8192,
        n_layers=30,
        n_heads=9,
        n_kv_heads=3,
        d_model=576,
        d_mlp=1536,
        tied=True,
        rope=Plain(100_000.0),
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "bert"}, "no model_type named 'bert'"),
        ({"model_type": ...}, "has no model_type"),
        ({"hidden_size": "8"}, "hidden_size is the text '8', and must be a whole number"),
        ({"vocab_size": ...}, "has no vocab_size"),
        ({"num_attention_heads": 0}, "n_heads is 0"),
        ({"num_key_value_heads": 3}, "n_kv_heads 3 does not divide"),
        ({"hidden_size": 10**30}, "d_model is 1000"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "quick_gelu"}, "hidden_act: no activation named 'quick_gelu'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, and must be a number"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, and must be a number"),
        ({"rope_theta": -1}, "base is -1.0"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "no rotary scaling named 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "no rotary scaling named 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "no rotary scaling named 'longrope'"),
        ({"rope_parameters": {"full_attention": {}}}, "full_attention is .*no such setting"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "mscale": 1}}, "mscale is 1"),
        ({"rope_scaling": "linear"}, "rope_scaling is the text 'linear', and must be a table"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is .*several places"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        ({"layer_types": ["full_attention"]}, "layer_types is .*list of 2"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is .*original"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map is .*code from files is never run"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, "max_window_layers is 1"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0, and no token could see any; null is"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": -3}, "sliding_window is -3, and no"),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2},
            r"layer_types is \['sliding_attention'\], and here all layers are of one kind, in this model without a win",
        ),
        ({"rope_parameters": False}, "rope_parameters is False, and must be a table"),
        ({"rope_parameters": []}, r"rope_parameters is \[\], and must be a table"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is the text 'yes', and must be true or false"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(fields: dict, message: str) -> None:
    table = {name: value for name, value in (LLAMA | fields).items() if value is not ...}
    with pytest.raises(FileError, match=message) as found:
        config_of(table, "config.json")
    assert "config.json" in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True), ("add_cross_attention", True)],
)
def test_forms_of_gpt2_that_are_not_ours(field: str, value: bool) -> None:
    table = {"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1}
    assert config_of(table | {field: not value}, "config.json").context == 4
    with pytest.raises(FileError, match=f"{field} is {value}"):
        config_of(table | {field: value}, "config.json")


SLIDING = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3}


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "mistral", "sliding_window": 5}, 5),
        ({"model_type": "qwen2", "sliding_window": 5}, 0),
        ({"model_type": "qwen2", "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 0}, 5),
        ({"model_type": "qwen2", "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 2}, 0),
        ({"model_type": "qwen2", "layer_types": ["full_attention"] * 2}, 0),
        ({**SLIDING, "layer_types": ["sliding_attention"] * 2}, 3),  # max_window_layers, 28, makes layer_types only
        ({**SLIDING, "layer_types": ["full_attention"] * 2}, 0),
        ({**SLIDING, "sliding_window": None, "max_window_layers": 0}, 0),
    ],
)
def test_windows(fields: dict, window: int) -> None:
    assert config_of(LLAMA | fields, "config.json").window == window


def test_layer_types_alone_say_which_layers_of_a_qwen2_have_a_window(tmp_path: Path) -> None:
    """As in transformers, where max_window_layers is read only to make them."""
    more = {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention"] * 2}
    other = scattered(peer(CASES["offsets (Qwen2)"], **more))
    assert other.config.max_window_layers == 28
    other.save_pretrained(tmp_path)
    model = hg.load(tmp_path)
    assert model.config.window == 3
    compare(model, other, lambda n, grads: grads[llama_name(n)].mT if n.endswith(".w") else grads[llama_name(n)])


@pytest.mark.parametrize("value", [None, False, [], {}])
def test_no_scaling(value: object) -> None:
    """What transformers takes for none in rope_scaling."""
    assert config_of(LLAMA | {"rope_scaling": value}, "config.json").rope == Plain(10_000.0)


@pytest.mark.parametrize("name", CASES)
def test_a_text_of_one_token(name: str) -> None:
    """Heads that share their keys are then rows of one query."""
    model, tokens = randomised(CASES[name]), batch(1, length=5)
    assert relative(model(tokens[:, :1]), model(tokens)[:, :1]) < 1e-12
