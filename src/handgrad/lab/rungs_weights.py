"""Rungs whose weights are functions of both tokens: from a function for every entry to a few products, normalised."""

from __future__ import annotations

from handgrad.core.layer import Layer
from handgrad.lab.parts import OneHot
from handgrad.lab.rung import Ladder, Sizes
from handgrad.layers import rungs as make
from handgrad.layers.mixing import Mixing
from handgrad.layers.scores import SAME, Additive
from handgrad.rules.tanh import TANH
from handgrad.rules.weights_normalise import DIVIDE, KEEP, softened

WEIGHTS = Ladder()


@WEIGHTS.rung(
    "full_matrix",
    title="A function for every entry of the weight",
    question="What does it cost to make W a function of source and end unit?",
    before="self_only",
    formula=r"(W_{\alpha\beta})_{ij} = f_{ij}(x_\alpha, x_\beta)",
    kept=lambda s: s.hidden + s.width,
)
def full_matrix(s: Sizes) -> Layer:
    mixing = make.full_matrix(s.width, s.hidden, s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "diagonal",
    title="A function for every entry of the diagonal",
    question="Are d functions enough, and are they few enough?",
    before="full_matrix",
    formula=r"W_{\alpha\beta} = \operatorname{diag}(f_1(x_\alpha, x_\beta), \dots, f_d(x_\alpha, x_\beta))",
    kept=lambda s: s.hidden + s.width,
)
def diagonal(s: Sizes) -> Layer:
    mixing = make.diagonal(s.width, s.hidden, s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "one_hot",
    title="The diagonal as a sum of one-hot matrices",
    question="What is a diagonal made of?",
    before="diagonal",
    formula=r"W_{\alpha\beta} = \sum_{j=1}^{d} f_j(x_\alpha, x_\beta) E_j",
    kept=lambda s: s.hidden + s.width,
)
def one_hot(s: Sizes) -> Layer:
    score = Additive(s.width, s.hidden, s.width, s.std)
    mixing = Mixing(score, s.width, SAME, OneHot(s.width), shared=True, normalise=KEEP)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "v_sum",
    title="A sum of a few learned matrices",
    question="What if any matrices may stand in the sum, and only a few?",
    before="one_hot",
    formula=r"W_{\alpha\beta} = \sum_{j=1}^{H} f_j V_j, \; f_j = g_j(x_\alpha) + v_j(x_\alpha, x_\beta) + h_j(x_\beta)",
    kept=lambda s: s.hidden + s.functions * (s.width + 1),
)
def v_sum(s: Sizes) -> Layer:
    score = make.terms(Additive(s.width, s.hidden, s.functions, s.std), s.width, s.functions, True, True, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, KEEP, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "no_interaction",
    title="The two terms without interaction",
    question="What can g and h do without v?",
    before="v_sum",
    formula=r"f(x_\alpha, x_\beta) = g(x_\alpha) + h(x_\beta)",
    kept=lambda s: s.functions * (s.width + 1),
)
def no_interaction(s: Sizes) -> Layer:
    score = make.terms(None, s.width, s.functions, True, True, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, KEEP, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "tanh",
    title="The interaction alone, by tanh",
    question="Are g and h needed beside v?",
    before="v_sum",
    formula=r"f_j(x_\alpha, x_\beta) = \tanh(x_\alpha W_a + x_\beta W_b + b) w_j",
    kept=lambda s: s.hidden + s.functions * s.width,
)
def tanh(s: Sizes) -> Layer:
    score = Additive(s.width, s.hidden, s.functions, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, KEEP, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "dot",
    title="The interaction as a product",
    question="Does a product interact more than tanh of a sum?",
    before="tanh",
    formula=r"f(x_\alpha, x_\beta) = x_\alpha x_\beta^\top",
    kept=lambda s: 2 * s.width,
)
def dot(s: Sizes) -> Layer:
    score = make.dot()
    mixing = make.matrix_sum(score, s.width, 1, KEEP, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "bilinear",
    title="Products in spaces of their own",
    question="What does a matrix between the two tokens add?",
    before="dot",
    formula=r"f_j(x_\alpha, x_\beta) = x_\alpha A_j x_\beta^\top",
    kept=lambda s: 2 * s.functions * s.width,
)
def bilinear(s: Sizes) -> Layer:
    score = make.bilinear(s.width, s.functions, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, KEEP, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "low_rank",
    title="Queries and keys: the matrix of low rank",
    question="How small can what is kept of a source be?",
    before="bilinear",
    formula=r"A_j = W_q^j (W_k^j)^\top",
    kept=lambda s: s.functions * (s.r + s.width),
)
def low_rank(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, KEEP, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "divide",
    title="Weights divided by their sum",
    question="What keeps outputs from growing with the number of sources?",
    before="low_rank",
    formula=r"\rho_{\alpha\beta} = \frac{f(x_\alpha, x_\beta)}{\sum_\gamma f(x_\alpha, x_\gamma)}",
    kept=lambda s: s.functions * (s.r + s.width),
)
def divide(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, DIVIDE, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "softmax",
    title="Softmax of the scores",
    question="What makes a row of weights sparse, and its sum 1?",
    before="low_rank",
    formula=r"\rho_{\alpha} = \operatorname{softmax}(f(x_\alpha, \cdot) / \tau)",
    kept=lambda s: s.functions * (s.r + s.width),
)
def softmax(s: Sizes) -> Layer:
    score = make.low_rank(s.width, s.functions, s.r, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, softened(s.tau), std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "tanh_softmax",
    title="Softmax of tanh scores",
    question="With the softmax in place: is a product still the better interaction?",
    before="softmax",
    formula=r"\rho_{\alpha} = \operatorname{softmax}(\tanh(x_\alpha W_a + x_\cdot W_b + b) w)",
    kept=lambda s: s.hidden + s.functions * s.width,
)
def tanh_softmax(s: Sizes) -> Layer:
    score = Additive(s.width, s.hidden, s.functions, s.std)
    mixing = make.matrix_sum(score, s.width, s.functions, softened(s.tau), std=s.std)
    return s.stack(make.unit(mixing, TANH))


@WEIGHTS.rung(
    "source_softmax",
    title="Softmax without interaction",
    question="With the softmax in place: can scores that are a sum of one function of each token recall?",
    before="softmax",
    formula=r"\rho_{\alpha} = \operatorname{softmax}(g(x_\alpha) + h(x_\cdot)) = \operatorname{softmax}(h(x_\cdot))",
    kept=lambda s: s.functions * (s.width + 1),
)
def source_softmax(s: Sizes) -> Layer:
    score = make.single(s.width, s.functions, make.SOURCE, s.std, bias=False)
    mixing = make.matrix_sum(score, s.width, s.functions, softened(s.tau), std=s.std)
    return s.stack(make.unit(mixing, TANH))
