"""The Llama family against transformers: the same numbers in both, the same logits and the same gradients, float64."""

from __future__ import annotations

import math

import pytest
import torch
from test_model import batch, randomised, relative

import handgrad as hg
from handgrad.core.errors import ConfigError, UnknownName
from handgrad.layers.frequencies import LinearScaling, Llama3, Plain
from handgrad.models.load import load
from handgrad.models.store import config_from, described

SHAPE = {"vocabulary": 11, "context": 29, "n_layers": 2, "n_heads": 4, "d_model": 20, "d_mlp": 13, "d_head": 6}
SHAPE |= {"epsilon": 1e-6}
BASE = 100.0  # small, so that 19 tokens turn even the slow pairs by angles that matter
CASES = {
    "plain": hg.LlamaConfig(**SHAPE, rope=Plain(BASE)),
    "grouped, tied": hg.LlamaConfig(**SHAPE, n_kv_heads=2, tied=True, rope=Plain(BASE)),
    "one key head": hg.LlamaConfig(**{**SHAPE, "d_head": 0, "d_model": 24}, n_kv_heads=1, rope=Plain(BASE)),
    "window (Mistral)": hg.LlamaConfig(**SHAPE, n_kv_heads=2, window=5, rope=Plain(BASE)),
    "offsets (Qwen2)": hg.LlamaConfig(**SHAPE, n_kv_heads=2, bias=True, tied=True, rope=Plain(BASE)),
    "linear": hg.LlamaConfig(**SHAPE, n_kv_heads=2, rope=LinearScaling(3.0, BASE)),
    "llama3": hg.LlamaConfig(**SHAPE, n_kv_heads=2, rope=Llama3(4.0, 1.0, 3.0, 17, BASE)),
}


def peer(c: hg.LlamaConfig, **more) -> torch.nn.Module:
    """transformers' model of the same shape, in float64; `more` are further fields of its configuration."""
    transformers = pytest.importorskip("transformers")
    rope = {"rope_type": "default", "rope_theta": c.rope.base}
    if isinstance(c.rope, LinearScaling):
        rope |= {"rope_type": "linear", "factor": c.rope.factor}
    if isinstance(c.rope, Llama3):
        rope |= {
            "rope_type": "llama3",
            "factor": c.rope.factor,
            "low_freq_factor": c.rope.low,
            "high_freq_factor": c.rope.high,
            "original_max_position_embeddings": c.rope.original,
        }
    kind = "Mistral" if c.window else "Qwen2" if c.bias else "Llama"
    own = {"sliding_window": c.window} if c.window else {}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=c.vocabulary,
        hidden_size=c.d_model,
        intermediate_size=c.d_inner,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads or c.n_heads,
        head_dim=c.head,
        max_position_embeddings=c.context,
        rms_norm_eps=c.epsilon,
        rope_parameters=rope,
        tie_word_embeddings=c.tied,
        attn_implementation="sdpa",
        **own,
        **more,
    )
    other = getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()
    other.model.rotary_emb = Angles(c, other.model.rotary_emb.inv_freq)
    for layer in other.model.layers:  # their norms round to float32, too
        layer.input_layernorm = torch.nn.RMSNorm(c.d_model, c.epsilon, dtype=torch.float64)
        layer.post_attention_layernorm = torch.nn.RMSNorm(c.d_model, c.epsilon, dtype=torch.float64)
    other.model.norm = torch.nn.RMSNorm(c.d_model, c.epsilon, dtype=torch.float64)
    return other


class Angles(torch.nn.Module):
    """Their cosines and sines without rounding: transformers forms angles in float32, whatever the model's type."""

    def __init__(self, c: hg.LlamaConfig, inv_freq: torch.Tensor) -> None:
        super().__init__()
        self.omega = torch.tensor(c.rope.frequencies(c.head), dtype=torch.float64)
        assert relative(self.omega, inv_freq.double()) < 1e-6

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        phi = (position_ids[..., None] * self.omega).repeat(1, 1, 2)
        return phi.cos(), phi.sin()


PARTS = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
}
WHOLE = {"embedding.token.w_emb": "model.embed_tokens.weight", "norm.gamma": "model.norm.weight"}
LEAVES = {"w": "weight", "b": "bias", "gamma": "weight"}


def theirs(name: str) -> str:
    """blocks.0.attention.query.w -> model.layers.0.self_attn.q_proj.weight"""
    if name == "head.w_emb":
        return "lm_head.weight"
    if name in WHOLE:
        return WHOLE[name]
    _, i, rest = name.split(".", 2)
    part, _, leaf = rest.rpartition(".")
    return f"model.layers.{i}.{PARTS[part]}.{LEAVES[leaf]}"


@pytest.mark.parametrize("name", CASES)
def test_logits_and_all_gradients_are_those_of_transformers(name: str) -> None:
    config = CASES[name]
    model, other, tokens = randomised(config), peer(config), batch(1, length=19)
    named = dict(other.named_parameters())
    assert {theirs(n) for n in model.params} == set(named)
    turned = lambda n, x: x.mT if n.endswith(".w") else x  # noqa: E731
    with torch.no_grad():
        for n, w in model.params.items():
            named[theirs(n)].copy_(turned(n, w))
    logits = other(tokens).logits
    assert relative(model(tokens), logits) < 1e-10
    right = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    right.backward()
    loss, grads = model.loss(tokens), model.backward()
    assert abs(float(loss) - right.item()) < 1e-12 * right.item()
    for n, g in grads.items():
        assert relative(turned(n, g), named[theirs(n)].grad) < 1e-10, n


def test_the_scaling_and_the_window_are_seen_by_these_cases() -> None:
    """Where a part of the configuration left the logits as they are, agreeing on it would prove nothing."""
    tokens, reference = batch(1, length=19), CASES["plain"]
    logits = randomised(reference)(tokens)
    for change in ({"window": 5}, {"rope": LinearScaling(3.0, BASE)}, {"rope": CASES["llama3"].rope}, {"epsilon": 0.1}):
        changed = hg.LlamaConfig(**{**vars(reference), **change})
        assert relative(randomised(changed)(tokens), logits) > 1e-4, change


def test_shapes_that_cannot_be_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError, match=r"n_kv_heads is -1, .*; window is 2.5, .*; tied is 1, and must be true or"):
        hg.LlamaConfig(vocabulary=5, n_kv_heads=-1, window=2.5, tied=1)
    with pytest.raises(ConfigError, match="n_kv_heads 3 does not divide n_heads 4"):
        hg.LlamaConfig(vocabulary=5, n_kv_heads=3)
    with pytest.raises(ConfigError, match="d_model 10 is not a multiple of n_heads 4"):
        hg.LlamaConfig(vocabulary=5, d_model=10)
    with pytest.raises(ConfigError, match="heads are 5 wide, and must be even"):
        hg.LlamaConfig(vocabulary=5, d_head=5)
    with pytest.raises(ConfigError, match="rope is 'linear', and must be an object"):
        hg.LlamaConfig(vocabulary=5, rope="linear")
    with pytest.raises(UnknownName, match="did you mean 'silu'"):
        hg.LlamaConfig(vocabulary=5, activation="sillu")


@pytest.mark.parametrize("name", CASES)
def test_a_configuration_survives_its_table(name: str) -> None:
    assert config_from(described(CASES[name]), "here") == CASES[name]


def test_a_run_trains_stops_resumes_and_loads(tmp_path) -> None:
    from handgrad.data.tokens import prepare
    from handgrad.train.config import TrainConfig, read_toml
    from handgrad.train.loop import resume, train

    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 200)
    corpus = prepare([str(text)], "bytes", tmp_path / "run" / "tokens")
    shape = hg.LlamaConfig(
        vocabulary=256, context=8, n_layers=1, n_heads=2, n_kv_heads=1, d_model=8, rope=Llama3(original=8), std=0.3
    )
    train(tmp_path / "run", shape, TrainConfig(steps=2, batch_size=2), corpus)
    assert resume(tmp_path / "run", steps=4).step == 4
    assert read_toml(tmp_path / "run" / "config.toml").model_config == shape
    model = load(tmp_path / "run")
    assert model.config == shape
    assert math.isfinite(float(model.loss(torch.randint(0, 256, (2, 8)))))
