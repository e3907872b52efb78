"""A config.json says only what differs from the defaults of its kind: those are transformers' own."""

from __future__ import annotations

from typing import Any

import pytest

from handgrad.layers.frequencies import Plain
from handgrad.models.hf_config import config_of

transformers = pytest.importorskip("transformers")

LLAMA = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 13}
LLAMA |= {"max_position_embeddings": 29}
GPT2 = {"vocab_size": 11, "n_positions": 29, "n_layer": 2, "n_head": 2, "n_embd": 8}


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2"])
def test_what_a_llama_leaves_out(kind: str) -> None:
    given: dict[str, Any] = LLAMA | ({"sliding_window": None} if kind == "Mistral" else {})
    theirs = getattr(transformers, f"{kind}Config")(**given)
    found = config_of(given | {"model_type": kind.lower()}, "config.json")
    assert found.epsilon == theirs.rms_norm_eps == 1e-6
    assert found.tied == theirs.tie_word_embeddings
    assert found.activation == theirs.hidden_act
    assert found.rope == Plain(theirs.rope_parameters["rope_theta"])
    assert found.head == (getattr(theirs, "head_dim", None) or 8)


def test_what_a_gpt2_leaves_out() -> None:
    theirs = transformers.GPT2Config(**GPT2)
    found = config_of(GPT2 | {"model_type": "gpt2"}, "config.json")
    assert found.epsilon == theirs.layer_norm_epsilon == 1e-5
    assert found.tied == theirs.tie_word_embeddings
    assert (found.activation, theirs.activation_function) == ("gelu_tanh", "gelu_new")
    assert (found.d_mlp, theirs.n_inner) == (0, None)
