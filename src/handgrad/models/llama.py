"""The Llama family: rotary positions, RMS norms, gated MLPs, shared keys and values. A configuration becomes layers.

Mistral is the same with a window, Qwen2 the same with offsets on queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt

from handgrad.core.combine import Chain, Sequence
from handgrad.core.errors import ConfigError, unknown
from handgrad.layers.block import dropped, pre_norm
from handgrad.layers.embedding import TokenEmbedding, Unembedding
from handgrad.layers.frequencies import SCALINGS, Plain, Scaling
from handgrad.layers.gated import gated
from handgrad.layers.mask import CAUSAL, Window
from handgrad.layers.multihead import MultiHead
from handgrad.layers.pointwise import ACTIVATIONS
from handgrad.layers.rmsnorm import RMSNorm
from handgrad.layers.rope import Rotary
from handgrad.models.gpt2 import NUMBERS, TIED, WHOLE, wrong_fields

MULTIPLE = 32  # of the MLP's inner width where it is left to us


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama-like model.

    vocabulary   number of tokens V
    context      most tokens of one sequence that it is trained on, or looks at when it writes
    n_layers     blocks
    n_heads      query heads of a block
    n_kv_heads   heads of keys and values, each shared by n_heads/n_kv_heads query heads; 0 means n_heads
    d_model      width of the stream, d
    d_mlp        inner width of the MLP; 0 means 8/3 · d_model, up to the next multiple of `MULTIPLE`
    d_head       width of a head, even; 0 means d_model/n_heads
    window       a token sees itself and the window - 1 tokens before it (Mistral); 0 means all of them
    bias         offsets of queries, keys and values (Qwen2); nothing else has any
    tied         logits use the embedding's rows
    activation   of the gate: "silu", or another name in `layers.pointwise.ACTIVATIONS`
    dropout      rate on the embedding and on each branch's output
    epsilon      of the RMS norms
    rope         how fast pairs turn: an object of `layers.frequencies`, which holds the base
    std          spread of the first weights, as in GPT2Config

    >>> LlamaConfig(vocabulary=65, n_layers=4, n_heads=4, d_model=128).d_inner
    352
    """

    vocabulary: int
    context: int = 64
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 0
    d_model: int = 128
    d_mlp: int = 0
    d_head: int = 0
    window: int = 0
    bias: bool = False
    tied: bool = False
    activation: str = "silu"
    dropout: float = 0.0
    epsilon: float = 1e-5
    rope: Scaling = field(default_factory=Plain)
    std: float = 0.0

    def __post_init__(self) -> None:
        most = {"n_kv_heads": (0, 2**20), "d_head": (0, 2**20), "window": (0, 2**31)}
        wrong = wrong_fields(self, WHOLE | most, NUMBERS)
        if not wrong and not self.d_head and self.d_model % self.n_heads:
            wrong.append(
                f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}: equal heads cannot be cut"
            )
        if not wrong and self.n_kv_heads and self.n_heads % self.n_kv_heads:
            wrong.append(
                f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}: heads share in equal parts"
            )
        if not wrong and self.head % 2:
            wrong.append(f"heads are {self.head} wide, and must be even: rotary positions turn 2 features at a time")
        if not isinstance(self.rope, tuple(SCALINGS.values())):
            wrong.append(f"rope is {self.rope!r}, and must be an object of handgrad.layers.frequencies such as Plain()")
        if wrong:
            raise ConfigError("; ".join(wrong))
        if not isinstance(self.activation, str) or self.activation not in ACTIVATIONS:
            raise unknown("activation", str(self.activation), ACTIVATIONS)

    @property
    def head(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def d_inner(self) -> int:
        return self.d_mlp or -(-8 * self.d_model // (3 * MULTIPLE)) * MULTIPLE

    @property
    def first_std(self) -> float:
        return self.std or sqrt(2 / (5 * self.d_model))

    def layers(self) -> Chain:
        return llama(self)

    def ties(self) -> Mapping[str, str]:
        return TIED if self.tied else {}


def llama(c: LlamaConfig) -> Chain:
    """ids ~ (B, T) -> logits ~ (B, T, V)."""
    embedding = Chain({"token": TokenEmbedding(c.vocabulary, c.d_model, c.first_std)})
    blocks = Chain({str(i): block(c) for i in range(c.n_layers)})
    norm = RMSNorm(c.d_model, c.epsilon)
    head = Unembedding(c.vocabulary, c.d_model, c.first_std)
    return Chain(
        {"embedding": embedding} | dropped("dropout", c.dropout) | {"blocks": blocks, "norm": norm, "head": head}
    )


def block(c: LlamaConfig) -> Sequence:
    std_out = c.first_std / sqrt(2 * c.n_layers)
    attention = MultiHead(
        c.d_model,
        c.n_heads,
        c.bias,
        Window(c.window) if c.window else CAUSAL,
        c.first_std,
        std_out,
        c.n_kv_heads,
        Rotary(c.head, c.rope),
        c.d_head,
        out_bias=False,
    )
    mlp = gated(c.d_model, c.d_inner, ACTIVATIONS[c.activation], False, c.first_std, std_out)
    return pre_norm(RMSNorm(c.d_model, c.epsilon), attention, RMSNorm(c.d_model, c.epsilon), mlp, c.dropout)
