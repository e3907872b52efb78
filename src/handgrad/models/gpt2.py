"""GPT-2: learned positions, pre-norm blocks, tanh GELU, tied logits. A configuration becomes a tree of layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from handgrad.core.combine import Chain, Fork, Sum
from handgrad.core.errors import ConfigError, unknown
from handgrad.layers.block import dropped, mlp, pre_norm
from handgrad.layers.embedding import PositionEmbedding, TokenEmbedding, Unembedding
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.multihead import MultiHead
from handgrad.layers.pointwise import ACTIVATIONS

WHOLE = {  # field -> least, most
    "vocabulary": (1, 2**31),
    "context": (1, 2**31),
    "n_layers": (0, 10_000),
    "n_heads": (1, 2**20),
    "d_model": (1, 2**20),
    "d_mlp": (0, 2**24),
}
NUMBERS = {"dropout": (0, 1), "epsilon": (1e-30, 1), "std": (0, 100)}  # field -> least, below
TIED = {"head.w_emb": "embedding.token.w_emb"}


def wrong_fields(config: object, whole: Mapping[str, tuple], numbers: Mapping[str, tuple]) -> list[str]:
    """What cannot be among the fields of a configuration, one sentence each."""
    wrong = [
        f"{name} is {value!r}, and must be a whole number from {least} to {most}"
        for name, (least, most) in whole.items()
        if type(value := getattr(config, name)) is not int or not least <= value <= most
    ]
    wrong += [
        f"{name} is {value!r}, and must be a number from {least} to below {below}"
        for name, (least, below) in numbers.items()
        if type(value := getattr(config, name)) not in (int, float) or not least <= value < below
    ]
    return wrong + [
        f"{name} is {getattr(config, name)!r}, and must be true or false"
        for name in ("bias", "tied")
        if type(getattr(config, name)) is not bool
    ]


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a GPT-2-like model.

    vocabulary   number of tokens V
    context      most tokens of one sequence, T_context
    n_layers     blocks
    n_heads      heads of a block; d_model must be a multiple of it
    d_model      width of the stream, d
    d_mlp        inner width of the MLP; 0 means 4 · d_model
    bias         offsets in linear layers and norms
    dropout      rate on the embedding and on each branch's output (not on ρ)
    activation   "gelu_tanh" (GPT-2), or another name in `layers.pointwise.ACTIVATIONS`
    tied         logits use the embedding's rows
    epsilon      of the layer norms
    std          spread of the first weights; 0 means √(2/(5·d_model)), about GPT-2's 0.02 at its width and more in
                 narrow models. The two outputs of a block get std/√(2·n_layers)

    >>> GPT2Config(vocabulary=65, n_layers=4, n_heads=4, d_model=128).d_inner
    512
    """

    vocabulary: int
    context: int = 64
    n_layers: int = 4
    n_heads: int = 4
    d_model: int = 128
    d_mlp: int = 0
    bias: bool = True
    dropout: float = 0.0
    activation: str = "gelu_tanh"
    tied: bool = True
    epsilon: float = 1e-5
    std: float = 0.0

    def __post_init__(self) -> None:
        wrong = wrong_fields(self, WHOLE, NUMBERS)
        if not wrong and self.d_model % self.n_heads:
            wrong.append(
                f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}: equal heads cannot be cut"
            )
        if wrong:
            raise ConfigError("; ".join(wrong))
        if not isinstance(self.activation, str) or self.activation not in ACTIVATIONS:
            raise unknown("activation", str(self.activation), ACTIVATIONS)

    @property
    def d_inner(self) -> int:
        return self.d_mlp or 4 * self.d_model

    @property
    def first_std(self) -> float:
        return self.std or sqrt(2 / (5 * self.d_model))

    def layers(self) -> Chain:
        return gpt2(self)

    def ties(self) -> Mapping[str, str]:
        return TIED if self.tied else {}


def gpt2(c: GPT2Config) -> Chain:
    """ids ~ (B, T) -> logits ~ (B, T, V)."""
    embedding = Sum(
        Fork(
            {
                "token": TokenEmbedding(c.vocabulary, c.d_model, c.first_std),
                "position": PositionEmbedding(c.context, c.d_model, c.first_std),
            }
        )
    )
    blocks = Chain({str(i): block(c) for i in range(c.n_layers)})
    norm = LayerNorm(c.d_model, c.bias, c.epsilon)
    head = Unembedding(c.vocabulary, c.d_model, c.first_std)
    return Chain(
        {"embedding": embedding} | dropped("dropout", c.dropout) | {"blocks": blocks, "norm": norm, "head": head}
    )


def block(c: GPT2Config):
    std_out = c.first_std / sqrt(2 * c.n_layers)
    return pre_norm(
        LayerNorm(c.d_model, c.bias, c.epsilon),
        MultiHead(c.d_model, c.n_heads, c.bias, std=c.first_std, std_out=std_out),
        LayerNorm(c.d_model, c.bias, c.epsilon),
        mlp(c.d_model, c.d_inner, ACTIVATIONS[c.activation], c.bias, c.first_std, std_out),
        c.dropout,
    )
