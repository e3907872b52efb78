"""Rungs from heads to the Transformer: what is kept of values, what stands around the non-linearity, and the price."""

from __future__ import annotations

from handgrad.core.combine import Chain
from handgrad.core.layer import Layer
from handgrad.lab.rung import NONE, Ladder, Sizes
from handgrad.layers import rungs as make
from handgrad.layers.block import mlp, pre_norm
from handgrad.layers.layernorm import LayerNorm
from handgrad.layers.linear import Linear
from handgrad.layers.mask import CAUSAL, And, BlockSparse, Window
from handgrad.layers.mixing import Mixing
from handgrad.layers.multihead import MultiHead
from handgrad.rules.gelu import GELU_TANH
from handgrad.rules.tanh import TANH
from handgrad.rules.weights_normalise import softened

NETWORK = Ladder()


def cache(s: Sizes) -> int:
    return 2 * s.functions * s.r


@NETWORK.rung(
    "heads",
    title="Values of low rank, side by side, times W_o",
    question="How small can the values be that are kept?",
    before="softmax",
    formula=r"o_\alpha = \operatorname{concat}_h\left(\sum_\beta \rho^h_{\alpha\beta} x_\beta W_v^h\right) W_o",
    kept=cache,
)
def heads(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    mixing = make.heads(score, s.width, s.functions, s.r, softened(s.tau), s.std)
    return s.stack(make.unit(mixing, TANH))


@NETWORK.rung(
    "linear",
    title="No non-linearity in the unit",
    question="What does the unit's non-linearity do?",
    before="heads",
    formula=r"a' = a + o",
    kept=cache,
)
def linear(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    mixing = make.heads(score, s.width, s.functions, s.r, softened(s.tau), s.std)
    return s.stack(make.unit(mixing, None))


@NETWORK.rung(
    "w_2",
    title="More units than features, and W_2",
    question="What if a unit may write any vector, and there are more units than features?",
    before="heads",
    formula=r"a' = a + f(o) W_2, \quad o \in \mathbb{R}^{T \times m}",
    kept=cache,
)
def w_2(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    value, out = (Linear(n, m, False, s.std) for n, m in ((s.width, s.functions * s.r), (s.functions * s.r, s.units)))
    mixing = Mixing(score, s.functions, value, out, normalise=softened(s.tau))
    return s.stack(make.unit(mixing, GELU_TANH, None, Linear(s.units, s.width, True, s.std)))


@NETWORK.rung(
    "w_1",
    title="W_1 and a second skip",
    question="When is W_1 more than a part of W_o?",
    before="w_2",
    formula=r"h = a + o, \quad a' = h + f(h W_1 + b_1) W_2 + b_2",
    kept=cache,
)
def w_1(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    mixing = make.heads(score, s.width, s.functions, s.r, softened(s.tau), s.std)
    up, down = Linear(s.width, s.units, True, s.std), Linear(s.units, s.width, True, s.std)
    return s.stack(make.two_skips(mixing, GELU_TANH, up, down))


@NETWORK.rung(
    "normed",
    title="With a norm before W_1",
    question="What does the norm change?",
    before="w_1",
    formula=r"a' = h + f(\operatorname{norm}(h) W_1 + b_1) W_2 + b_2",
    kept=cache,
)
def normed(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    mixing = make.heads(score, s.width, s.functions, s.r, softened(s.tau), s.std)
    up, down = Linear(s.width, s.units, True, s.std), Linear(s.units, s.width, True, s.std)
    return s.stack(make.two_skips(mixing, GELU_TANH, up, down, LayerNorm(s.width)))


@NETWORK.rung(
    "transformer",
    title="The Transformer",
    question="Does all of it together do what the RNN could not?",
    before="normed",
    formula=r"h = a + \operatorname{heads}(\operatorname{norm}(a)), \quad a' = h + f(\operatorname{norm}(h) W_1) W_2",
    kept=cache,
)
def transformer(s: Sizes) -> Layer:
    mask = CAUSAL
    attention = MultiHead(s.width, s.functions, mask=mask, std=s.std, std_out=s.std, d_head=s.r)
    inner = mlp(s.width, s.units, GELU_TANH, True, s.std, s.std)
    unit = pre_norm(LayerNorm(s.width), attention, LayerNorm(s.width), inner)
    return Chain({"stack": s.stack(unit), "norm": LayerNorm(s.width)})


@NETWORK.rung(
    "window",
    title="Transformer with a sliding window",
    question="What does it cost to read near tokens only?",
    before="transformer",
    formula=r"\rho_{\alpha\beta} = 0 \; \text{unless} \; \alpha - w < \beta \le \alpha",
    kept=cache,
    reach=lambda s, tokens: min(tokens, s.window),
)
def window(s: Sizes) -> Layer:
    mask = Window(s.window)
    attention = MultiHead(s.width, s.functions, mask=mask, std=s.std, std_out=s.std, d_head=s.r)
    inner = mlp(s.width, s.units, GELU_TANH, True, s.std, s.std)
    unit = pre_norm(LayerNorm(s.width), attention, LayerNorm(s.width), inner)
    return Chain({"stack": s.stack(unit), "norm": LayerNorm(s.width)})


@NETWORK.rung(
    "block_sparse",
    title="Transformer that reads the first and its own block",
    question="Can whole blocks of pairs be left out?",
    before="transformer",
    formula=r"\rho_{\alpha\beta} = 0 \; \text{where the pattern of blocks has none}",
    kept=cache,
    reach=lambda s, tokens: min(tokens, s.window) + (tokens % s.window if tokens > s.window else 0),
)
def block_sparse(s: Sizes) -> Layer:
    n = -(-s.context // s.window)
    pattern = tuple(tuple(j in (0, i) for j in range(n)) for i in range(n))
    mask = And((CAUSAL, BlockSparse(pattern, s.window)))
    attention = MultiHead(s.width, s.functions, mask=mask, std=s.std, std_out=s.std, d_head=s.r)
    inner = mlp(s.width, s.units, GELU_TANH, True, s.std, s.std)
    unit = pre_norm(LayerNorm(s.width), attention, LayerNorm(s.width), inner)
    return Chain({"stack": s.stack(unit), "norm": LayerNorm(s.width)})


@NETWORK.rung(
    "no_positions",
    title="Transformer without positions",
    question="Does the mask alone tell tokens where they stand?",
    before="transformer",
    formula=r"a_0 = \operatorname{OHE}(t) w_{emb}",
    positions=NONE,
    kept=cache,
)
def no_positions(s: Sizes) -> Layer:
    mask = CAUSAL
    attention = MultiHead(s.width, s.functions, mask=mask, std=s.std, std_out=s.std, d_head=s.r)
    inner = mlp(s.width, s.units, GELU_TANH, True, s.std, s.std)
    unit = pre_norm(LayerNorm(s.width), attention, LayerNorm(s.width), inner)
    return Chain({"stack": s.stack(unit), "norm": LayerNorm(s.width)})
