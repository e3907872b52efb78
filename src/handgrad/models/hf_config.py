"""config.json of Hugging Face folders, in both directions. What would change the function and is not ours is refused.

Fields that no model of these kinds reads are left alone. Rates of dropout are not taken over: they belong to a
training, and handgrad drops in other places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from handgrad.core.errors import ConfigError, FileError, HandgradError, unknown
from handgrad.layers.frequencies import LinearScaling, Llama3, NTKAware, Plain, Scaling
from handgrad.models.fields import Fields
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.llama import LlamaConfig
from handgrad.models.store import ModelConfig

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
THEIR_ACTIVATION = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
LLAMAS = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
KINDS = ("gpt2", *LLAMAS)

# Field -> the only value with which the function is the one that we compute.
ONLY: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {"attention_bias": False, "mlp_bias": False},
    "qwen2": {"mlp_bias": False},
}
# Fields of relatives and forks. Left out, or with this value, they say nothing.
NEUTRAL: dict[str, Any] = {
    "partial_rotary_factor": 1.0,
    "rope_interleaved": False,
    "use_mrope": False,
    "use_qk_norm": False,
    "qk_layernorm": False,
    "clip_qkv": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "num_local_experts": 0,
    "quantization_config": None,
    "auto_map": None,
}
WHY = {
    "quantization_config": "and quantised weights of this kind are not read; take the folder with the original ones",
    "auto_map": "so its model is code in the folder, and code from files is never run",
}
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
ROPE_KEYS = {
    "default": {"original_max_position_embeddings"},
    "linear": {"factor", "original_max_position_embeddings"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
COMMON_ROPE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def config_of(table: Mapping[str, Any], where: str) -> ModelConfig:
    """The model that a config.json describes. Raises FileError, naming the field."""
    f = Fields(table, where)
    kind = f.text("model_type")
    if kind not in KINDS:
        raise FileError(f"{where}: {unknown('model_type', kind, KINDS)}")
    for name, only in (ONLY[kind] | NEUTRAL).items():
        value = f.get(name, only)
        if value != only and not (only is None and value is False):
            raise f.refuse(name, value, WHY.get(name, f"and handgrad computes only with {str(only).lower()}"))
    try:
        return gpt2_of(f) if kind == "gpt2" else llama_of(f, kind)
    except FileError:
        raise
    except HandgradError as error:
        raise FileError(f"{where} describes no model: {error}") from None


def gpt2_of(f: Fields) -> GPT2Config:
    return GPT2Config(
        vocabulary=f.whole("vocab_size"),
        context=f.whole("n_positions"),
        n_layers=f.whole("n_layer"),
        n_heads=f.whole("n_head"),
        d_model=f.whole("n_embd"),
        d_mlp=f.whole("n_inner", 0),
        activation=activation_of(f, "activation_function", "gelu_new"),
        tied=f.flag("tie_word_embeddings", True),
        epsilon=f.number("layer_norm_epsilon", 1e-5),
    )


def llama_of(f: Fields, kind: str) -> LlamaConfig:
    n_layers, n_heads, d_model = f.whole("num_hidden_layers"), f.whole("num_attention_heads"), f.whole("hidden_size")
    n_kv_heads = f.whole("num_key_value_heads", n_heads)
    d_head = f.whole("head_dim", 0)
    return LlamaConfig(
        vocabulary=f.whole("vocab_size"),
        context=f.whole("max_position_embeddings"),
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=0 if n_kv_heads == n_heads else n_kv_heads,
        d_model=d_model,
        d_mlp=f.whole("intermediate_size"),
        d_head=0 if d_head * n_heads == d_model else d_head,
        window=window_of(f, kind, n_layers),
        bias=kind == "qwen2",
        tied=f.flag("tie_word_embeddings", False),
        activation=activation_of(f, "hidden_act", "silu"),
        epsilon=f.number("rms_norm_eps", 1e-6),
        rope=rope_of(f),
    )


def activation_of(f: Fields, name: str, default: str) -> str:
    given = f.text(name, default)
    if given not in ACTIVATIONS:
        raise FileError(f"{f.where}: {name}: {unknown('activation', given, ACTIVATIONS)}")
    return ACTIVATIONS[given]


def window_of(f: Fields, kind: str, n_layers: int) -> int:
    """The window of every layer, 0 for none. Layers that differ from one another are refused."""
    window = 0
    if kind == "mistral" or (kind == "qwen2" and f.flag("use_sliding_window", False)):
        window = width_of(f)
    types = f.get("layer_types", None)
    if types is not None:
        right = isinstance(types, list) and len(types) == n_layers and all(isinstance(t, str) for t in types)
        f.expected("layer_types", types, right, f"a list of {n_layers} names")
        found = set(types)
        if found <= {"full_attention"} and kind != "mistral":
            return 0
        if found != {"sliding_attention" if window else "full_attention"}:
            of = f"of a window of {window}" if window else "without a window"
            raise f.refuse("layer_types", sorted(found), f"and here all layers are of one kind, in this model {of}")
    elif window and kind == "qwen2" and (first := f.whole("max_window_layers", 28)) > 0:
        if first < n_layers:
            raise f.refuse("max_window_layers", first, f"so some of the {n_layers} layers have a window and some none")
        return 0
    return window


def width_of(f: Fields) -> int:
    """`sliding_window`: left out it is 4096, as in transformers; null is none, which is 0 here."""
    if "sliding_window" not in f.table:
        return 4096
    window = f.whole("sliding_window", 0)
    if window < 1 and f.table["sliding_window"] is not None:
        raise f.refuse("sliding_window", window, "and no token could see any; null is no window")
    return window


def rope_of(f: Fields) -> Scaling:
    """The frequencies, in the spelling of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters)."""
    tables = {}
    for name in ("rope_parameters", "rope_scaling"):
        table = f.get(name, {})
        if name == "rope_scaling":
            table = table or {}  # transformers takes false and [] for nothing in this one, and not in the other
        tables[name] = Fields(f.expected(name, table, isinstance(table, dict), "a table"), f"{f.where}, {name}")
    bases = {t.number("rope_theta") for t in (f, *tables.values()) if t.get("rope_theta", None) is not None}
    if len(bases) > 1:
        raise f.refuse("rope_theta", sorted(bases), "in its several places, and must be one number")
    base = bases.pop() if bases else 10_000.0
    found = [scaling_of(t, base) for t in tables.values() if t.table.keys() - {"rope_theta"}]
    if len(found) > 1 and found[0] != found[1]:
        raise f.refuse("rope_scaling", tables["rope_scaling"].table, "and rope_parameters says something else")
    return found[0] if found else Plain(base)


def scaling_of(f: Fields, base: float) -> Scaling:
    kind = f.text("rope_type", f.get("type", "default"))
    if kind not in ROPE_KEYS:
        raise FileError(f"{f.where}: {unknown('rotary scaling', kind, ROPE_KEYS)}")
    if odd := [name for name in f.table if name not in ROPE_KEYS[kind] | COMMON_ROPE]:
        raise f.refuse(odd[0], f.table[odd[0]], f"and the rotary scaling {kind} has no such setting here")
    if f.number("partial_rotary_factor", 1.0) != 1.0:
        raise f.refuse("partial_rotary_factor", f.table["partial_rotary_factor"], "and handgrad turns whole heads")
    if kind == "linear":
        return LinearScaling(f.number("factor"), base)
    if kind == "llama3":
        low, high = f.number("low_freq_factor"), f.number("high_freq_factor")
        return Llama3(f.number("factor"), low, high, f.whole("original_max_position_embeddings"), base)
    return Plain(base)


def ids_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """What a config.json says of special tokens: null, an id, or a list of ids where an answer has several ends."""
    right = {name: table[name] for name in SPECIAL if name in table}
    return {
        name: value
        for name, value in right.items()
        if value is None or all(type(i) is int for i in (value if isinstance(value, list) else [value]))
    }


def table_of(c: ModelConfig, dtype: torch.dtype, ids: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of our model. Raises ConfigError where no model of theirs computes the same.

    `ids`: those of special tokens. Where a field is left out, transformers takes GPT-2's 50256, or Llama's 1 and 2.
    """
    stored = str(dtype).removeprefix("torch.")
    common = {
        "vocab_size": c.vocabulary,
        "tie_word_embeddings": c.tied,
        "initializer_range": min(c.first_std, 1.0),
        "use_cache": True,
        "dtype": stored,
        "torch_dtype": stored,
        **ids,
    }
    return common | (gpt2_table(c) if isinstance(c, GPT2Config) else llama_table(c))


def gpt2_table(c: GPT2Config) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": c.context,
        "n_layer": c.n_layers,
        "n_head": c.n_heads,
        "n_embd": c.d_model,
        "n_inner": c.d_mlp or None,
        "activation_function": THEIR_ACTIVATION[c.activation],
        "layer_norm_epsilon": c.epsilon,
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attn_pdrop": 0.0,
    }


def llama_table(c: LlamaConfig) -> dict[str, Any]:
    kind = "qwen2" if c.bias else "mistral" if c.window else "llama"
    if kind == "llama" and c.d_model % c.n_heads:
        kind = "mistral"  # the same without a window; transformers refuses such heads in a Llama
    window: dict[str, Any] = {"sliding_window": c.window or None} if kind == "mistral" else {}
    if kind == "qwen2":
        types = ["sliding_attention" if c.window else "full_attention"] * c.n_layers
        window = {"use_sliding_window": c.window > 0, "sliding_window": c.window or None, "max_window_layers": 0}
        window["layer_types"] = types
    rope = rope_table(c)
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return window | {
        "model_type": kind,
        "architectures": [LLAMAS[kind]],
        "hidden_size": c.d_model,
        "intermediate_size": c.d_inner,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads or c.n_heads,
        "head_dim": c.head,
        "hidden_act": THEIR_ACTIVATION[c.activation],
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.epsilon,
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
        "attention_dropout": 0.0,
    }


def rope_table(c: LlamaConfig) -> dict[str, Any]:
    match c.rope:
        case Plain(base):
            return {"rope_type": "default", "rope_theta": base}
        case NTKAware(factor, base):  # it is a larger base, and nothing else
            return {"rope_type": "default", "rope_theta": base * factor ** (c.head / (c.head - 2))}
        case LinearScaling(factor, base):
            return {"rope_type": "linear", "rope_theta": base, "factor": factor}
        case Llama3(factor, low, high, original, base):
            return {
                "rope_type": "llama3",
                "rope_theta": base,
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ConfigError(f"the rotary scaling {c.rope!r} has no name in transformers, so it is not exported")
