"""The rungs from fixed weights to attention and its MLP, each a composition: what W_{αβ} is made of, in order.

d is the width, F the number of functions (later: heads), r the features of a head. All are causal (β ≤ α) but
`self_only`, which is even less.
"""

from __future__ import annotations

from handgrad.core.combine import Chain, Fork, Residual, Sequence, Sum
from handgrad.core.layer import Layer
from handgrad.core.rule import Rule
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.mask import CAUSAL, Mask
from handgrad.layers.mixing import Itself, MatrixMixing, Mixing
from handgrad.layers.pointwise import Pointwise
from handgrad.layers.scores import SAME, Additive, Product, Spread
from handgrad.rules.weights_normalise import KEEP, SOFTMAX
from handgrad.rules.weights_spread import END, SOURCE


def single(width: int, functions: int, rule: Rule, std: float = 0.02, bias: bool = True) -> Chain:
    """g(x_α) with `END`, h(x_β) with `SOURCE`: F linear functions of one token, as scores of pairs."""
    return Chain({"function": Linear(width, functions, bias, std), "spread": Spread(rule)})


def terms(score: Layer | None, width: int, functions: int, end: bool, source: bool, std: float = 0.02) -> Sum:
    """f = g(x_α) + v(x_α, x_β) + h(x_β), each of the three removable; v is `score`."""
    parts: dict[str, Layer] = {"end_term": single(width, functions, END, std)} if end else {}
    parts |= {"interaction": score} if score is not None else {}
    return Sum(Fork(parts | ({"source_term": single(width, functions, SOURCE, std)} if source else {})))


def dot() -> Product:
    """x_α·x_β: the simplest interaction, without parameters."""
    return Product(SAME, SAME, 1)


def bilinear(width: int, functions: int, std: float = 0.02) -> Product:
    """x_α A_f x_βᵗ: a dot product in a space of its own; d² parameters a function."""
    return Product(Linear(width, functions * width, False, std), SAME, functions, shared=True)


def low_rank(width: int, functions: int, rank: int, std: float = 0.02) -> Product:
    """x_α w_q w_kᵗ x_βᵗ: the bilinear form with A of rank r; r numbers to keep for each source instead of d."""
    return Product(Linear(width, functions * rank, False, std), Linear(width, functions * rank, False, std), functions)


def source_only(width: int, functions: int, mask: Mask = CAUSAL, normalise: Rule = KEEP, std: float = 0.02) -> Mixing:
    """W_{αβ} = Σ_f f(x_β) V_f: every unit sees a source with the same weight."""
    return matrix_sum(single(width, functions, SOURCE, std), width, functions, normalise, mask, std)


def self_only(width: int, functions: int, std: float = 0.02) -> Mixing:
    """W_{αβ} = 0 unless α = β: every unit has weights of its own, and none reads another."""
    return matrix_sum(single(width, functions, END, std), width, functions, KEEP, Itself(), std)


def full_matrix(width: int, hidden: int, std: float = 0.02) -> MatrixMixing:
    """W_{αβ} = f(x_α, x_β) with d² functions of both tokens."""
    return MatrixMixing(Additive(width, hidden, width * width, std))


def diagonal(width: int, hidden: int, std: float = 0.02) -> Mixing:
    """W_{αβ} = diag(f(x_α, x_β)) with d functions."""
    return Mixing(Additive(width, hidden, width, std), width, normalise=KEEP)


def matrix_sum(
    score: Layer, width: int, functions: int, normalise: Rule = KEEP, mask: Mask = CAUSAL, std: float = 0.02
) -> Mixing:
    """W_{αβ} = Σ_f f(x_α, x_β) V_f with F learned matrices V_f ~ (d, d), the row blocks of `out.w`."""
    out = Linear(functions * width, width, False, std)
    return Mixing(score, functions, SAME, out, shared=True, normalise=normalise, mask=mask)


def heads(score: Layer, width: int, functions: int, rank: int, normalise: Rule = SOFTMAX, std: float = 0.02) -> Mixing:
    """The same with V_f = w_v^f W_o^f of rank r: values of r features, side by side, times W_o."""
    value, out = Linear(width, functions * rank, False, std), Linear(functions * rank, width, False, std)
    return Mixing(score, functions, value, out, normalise=normalise)


def unit(mixing: Layer, activation: Rule | None, w_1: Linear | None = None, w_2: Linear | None = None) -> Residual:
    """a' = a + f(mixing(a) w_1) w_2, one skip around everything; without f, w_1 or w_2 where they are None."""
    return Residual("out", Chain({"mixing": mixing} | pieces(activation, w_1, w_2)))


def two_skips(mixing: Layer, activation: Rule, w_1: Linear, w_2: Linear, norm: LayerNorm | None = None) -> Sequence:
    """h = a + mixing(a);  a' = h + f(norm(h) w_1) w_2: the Transformer's block but for its first norm."""
    second = ({"norm": norm} if norm is not None else {}) | pieces(activation, w_1, w_2)
    return Sequence((Residual("h", mixing_part(mixing)), Residual("out", Chain(second))))


def mixing_part(mixing: Layer) -> Chain:
    return Chain({"mixing": mixing})


def pieces(activation: Rule | None, w_1: Linear | None, w_2: Linear | None) -> dict[str, Layer]:
    parts: dict[str, Layer] = {"up": w_1} if w_1 is not None else {}
    parts |= {"activation": Pointwise(activation)} if activation is not None else {}
    return parts | ({"down": w_2} if w_2 is not None else {})
