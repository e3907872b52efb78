"""The Transformer's block, by composition alone."""

from __future__ import annotations

from handgrad.core.combine import Chain, Residual, Sequence
from handgrad.core.layer import Layer
from handgrad.core.rule import Rule
from handgrad.layers.linear import Linear
from handgrad.layers.pointwise import Dropout, Pointwise


def mlp(width: int, inner: int, activation: Rule, bias: bool, std: float, std_out: float) -> Chain:
    """f(a w_1 + b_1) w_2 + b_2."""
    up = Linear(width, inner, bias, std)
    down = Linear(inner, width, bias, std_out)
    return Chain({"up": up, "activation": Pointwise(activation), "down": down})


def pre_norm(norm_1: Layer, attention: Layer, norm_2: Layer, mlp: Layer, dropout: float = 0.0) -> Sequence:
    """h = a + attention(norm_1(a));  a' = h + mlp(norm_2(h)). The sums are shown as `h` and `out`."""
    return Sequence(
        (
            Residual("h", Chain({"norm_1": norm_1, "attention": attention} | dropped("dropout_1", dropout))),
            Residual("out", Chain({"norm_2": norm_2, "mlp": mlp} | dropped("dropout_2", dropout))),
        )
    )


def post_norm(attention: Layer, norm_1: Layer, mlp: Layer, norm_2: Layer, dropout: float = 0.0) -> Sequence:
    """h = norm_1(a + attention(a));  a' = norm_2(h + mlp(h)). The sums are shown as `sum_1` and `sum_2`."""
    return Sequence(
        (
            Residual("sum_1", Chain({"attention": attention} | dropped("dropout_1", dropout))),
            Chain({"norm_1": norm_1}),
            Residual("sum_2", Chain({"mlp": mlp} | dropped("dropout_2", dropout))),
            Chain({"norm_2": norm_2}),
        )
    )


def dropped(name: str, rate: float) -> dict[str, Layer]:
    """A dropout part, or none at all where nothing is dropped."""
    return {name: Dropout(rate)} if rate else {}
