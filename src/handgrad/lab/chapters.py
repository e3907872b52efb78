"""The argument in order: for each chapter its question, what a reader needs to know, and which steps measure it.

A chapter is found by the names of its steps; a step that no chapter names gets a section of its own at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handgrad.lab.diagram import ALL, BLOCKS, FIXED, ITSELF, PAIR, SOURCE, WINDOW, Boxes, Sketch, Store, Units


@dataclass(frozen=True)
class Chapter:
    """One section of the page.

    name        short; the anchor
    title       what the chapter says
    question    what the reader asks
    text        the argument, 60 to 120 words
    formula     LaTeX
    steps       names of the steps that measure it, in the order of telling
    sketches    (caption, drawing)
    rungs       rungs of the ladder whose code is shown, besides those of the steps
    asked       the question of the table at the top; "" where it is not asked there
    """

    name: str
    title: str
    question: str
    text: str
    formula: str
    steps: Sequence[str]
    sketches: Sequence[tuple[str, Sketch]]
    rungs: Sequence[str] = ()
    asked: str = ""


CHAPTERS = (
    Chapter(
        "memory",
        "Fixed memory fails",
        "Why not an RNN?",
        "A recurrent network reads one token after another and keeps what it has read in a state of fixed size. "
        "Every new token is written into the same few numbers, so the more facts a text holds, the more of them "
        "share a place. An LSTM has gates to manage that space; it does not get more of it. The test stores pairs of a "
        "key and a value and asks for some of them later. If the argument is right, RNN and LSTM recall less as "
        "pairs are added, while a network that may look back at all its earlier states goes on answering, also where "
        "parameters are equal.",
        r"h_t = \tanh(x_t w_x + h_{t-1} w_h + b)",
        ("memory", "pocket", "recall", "length"),
        (
            ("Recurrent: all of the past passes through one state.", Units(recurrent=True)),
            ("Growing memory: each unit also reads all earlier states.", Units(recurrent=True, remembers=True)),
        ),
        rungs=("rnn", "lstm", "memory"),
        asked="Why not an RNN?",
    ),
    Chapter(
        "steps",
        "A recurrence takes steps in time",
        "Why drop the recurrence?",
        "A memory that grows with the text settles the first problem and keeps the recurrence, which has to be "
        "computed in order: the state at one place needs the state before it. In training the whole text is there "
        "beforehand, and still the machine waits. Where each layer reads only the layer below, all places of a "
        "layer are computed at once. What counts is the longest chain of results that need each other: for T "
        "tokens and two layers T + 1 with the recurrence, 2 without.",
        r"\text{with recurrence } L + (T - 1) \qquad \text{without } L",
        ("steps",),
        (
            (
                "With the recurrence; the figure in a unit is the longest chain that ends there.",
                Units(recurrent=True, remembers=True, counted=True),
            ),
            ("Without it.", Units(reach=ALL, counted=True)),
        ),
        rungs=("memory", "fixed"),
    ),
    Chapter(
        "weights",
        "Weights must be computed, and from both ends",
        "Why two arguments?",
        "Without recurrence a plain network is left, with one unit for each place, and somebody has to say what "
        "its weights are. A learned matrix for each pair of places exists only up to the length of training, so "
        "weights must be computed. From the source alone is too little: all units that read a token read it with "
        "the same weight, and neighbours compute nearly the same. From the unit alone, with zero for everybody "
        "else, contact is lost. Both ends are needed: the source and the reading unit. The unit's output is not "
        "known yet, so the token in its skip connection stands for it.",
        r"o_\alpha = \sum_{\beta \le \alpha} x_\beta W_{\alpha\beta} \qquad W_{\alpha\beta} = f(x_\alpha, x_\beta)",
        ("fixed", "source", "self", "arguments"),
        (
            ("Fixed: one weight for each pair of places, none for place 5.", Units(reach=FIXED, layers=1)),
            ("Source only: every unit sees a source with one weight (one colour).", Units(reach=SOURCE, layers=1)),
            ("Self only: each unit for itself.", Units(reach=ITSELF, layers=1)),
            ("Both ends: every weight is its own.", Units(reach=PAIR, layers=1, skip=True)),
        ),
        rungs=("fixed", "source_only", "self_only"),
        asked="Why two arguments?",
    ),
    Chapter(
        "functions",
        "Too many functions, and a sum of a few matrices",
        "Why V?",
        "A weight between two units is a matrix of d × d entries, and each entry would be a function with "
        "parameters of its own. A diagonal needs d functions, still hundreds, and can only rescale each coordinate by "
        "itself. But a diagonal is also a sum: for each coordinate one function times a matrix that has one 1 in "
        "it. Nothing says that these matrices must be so poor. Make H matrices parameters, and let H functions "
        "tell how much of each a pair of tokens uses: the count is now ours to choose. The coefficients depend on "
        "the text, the matrices do not. They are the V of attention.",
        r"W_{\alpha\beta} = \sum_{j=1}^{H} f_j(x_\alpha, x_\beta) V_j",
        ("functions", "explosion", "parameters", "values"),
        (
            ("One function for each entry of the matrix.", Boxes((("x_α", "x_β"), ("d² functions",), ("W_αβ",)))),
            (
                "H functions and H learned matrices.",
                Boxes((("x_α", "x_β"), ("f₁", "f₂", "f_H"), ("V₁", "V₂", "V_H"), ("W_αβ",))),
            ),
        ),
        rungs=("full_matrix", "diagonal", "one_hot", "v_sum"),
        asked="Why V?",
    ),
    Chapter(
        "interaction",
        "The two tokens must interact",
        "Why a product?",
        "A function of two tokens has a part of the first only, a part of the second only, and a rest. A part of "
        "the source only brings an old fault back: it is large for all readers or for none. Wanted is the rest, "
        "the interaction. The additive score, a small network with tanh, has little of it, since tanh is nearly a "
        "straight line where its input is small, and its contours look like those of a sum. A product has nothing "
        "else. The mixed difference measures it: change one token, then the other, then both, and see what the "
        "single changes do not explain.",
        r"f(x_\alpha, x_\beta) = g(x_\alpha) + v(x_\alpha, x_\beta) + h(x_\beta) \qquad "
        r"v = x_\alpha A x_\beta^\top \quad \text{or} \quad v = \tanh(x_\alpha w_\alpha + x_\beta w_\beta) u^\top",
        ("interaction", "terms", "product", "additive"),
        (
            (
                "Additive: the tokens meet inside tanh.",
                Boxes((("x_α", "x_β"), ("w_α", "w_β"), ("+",), ("tanh",), ("v",))),
            ),
            ("Product: they meet in a product.", Boxes((("x_α", "x_β"), ("", "A"), ("·",), ("v",)))),
        ),
        rungs=("no_interaction", "tanh", "dot", "bilinear"),
        asked="Why a product?",
    ),
    Chapter(
        "cache",
        "What is kept must be small",
        "Why low rank, that is, why queries and keys?",
        "When a text is written token by token, products with earlier tokens stay what they were and can be kept. "
        "With a full matrix A that is a vector of d numbers for each token, layer and function: gigabytes for a "
        "long talk. Write A as two thin matrices with r columns each, and only r numbers remain of every vector. "
        "The thin matrices are known as the projections of queries and keys, and the reason for them is the size "
        "of what is kept. How small r may become before the loss rises is a question for a measurement, not for an "
        "argument.",
        r"A = w_q w_k^\top \qquad v = (x_\alpha w_q)(x_\beta w_k)^\top = q_\alpha k_\beta^\top",
        ("cache", "rank", "low-rank"),
        (
            ("Full matrix: d numbers kept for each token.", Boxes((("x_α", "x_β"), ("", "A xᵗ: d kept"), ("·",)))),
            ("Low rank: r numbers.", Boxes((("x_α", "x_β"), ("w_q: d → r", "w_k: d → r"), ("q", "k: r kept"), ("·",)))),
        ),
        rungs=("bilinear", "low_rank"),
        asked="Why low rank?",
    ),
    Chapter(
        "normalisation",
        "A sum must not grow with the text",
        "Why softmax?",
        "The output of a unit is a sum over all earlier tokens, and more terms make a larger sum. A network "
        "trained on short texts meets sizes on long ones that it has never seen. Dividing the coefficients by "
        "their sum fixes the size, unless that sum is near zero. Besides, most tokens do not matter to most "
        "others, and many small weights add up to noise. The softmax answers both: its weights are positive, sum "
        "to one, and turn differences of scores into ratios. The temperature τ says how sharply it chooses; "
        "entropy and the largest weight measure that.",
        r"\rho_{\alpha\beta} = \frac{e^{v_{\alpha\beta}/\tau}}{\sum_{j \le \alpha} e^{v_{\alpha j}/\tau}}",
        ("normalisation", "softmax", "normalise", "temperature"),
        (
            ("None: as many terms as tokens.", Boxes((("v₁", "v₂", "v_T"), ("Σ v_β x_β",)))),
            ("Softmax: weights that sum to one.", Boxes((("v₁", "v₂", "v_T"), ("softmax",), ("Σ ρ_β x_β",)))),
        ),
        rungs=("divide", "softmax"),
        asked="Why softmax?",
    ),
    Chapter(
        "heads",
        "The same remedy for the values",
        "Why Wₒ?",
        "Each of the H functions still comes with a matrix of d × d, and for every token H vectors of d numbers "
        "are kept. The remedy of the scores helps again: let each V be a thin matrix down to r features and "
        "another one back up to d. The way up does not depend on the token it came from, so it can wait until "
        "after the weighted sum. Put the sums of all heads side by side and multiply once, by W_o, whose blocks of "
        "rows are these ways up. What is kept shrinks from d to r numbers, and the result is that of the sum over "
        "heads.",
        r"\sum_{h} \rho^h x V'_h = [\rho^1 x V_1, \dots, \rho^H x V_H] W_o \quad \text{where} \quad "
        r"V'_h = V_h W_o^h",
        ("heads", "output", "w_o"),
        (
            ("Sum over full matrices.", Boxes((("x_β",), ("V₁: d → d", "V₂: d → d"), ("Σ",)))),
            ("Side by side, then W_o.", Boxes((("x_β",), ("V₁: d → r", "V₂: d → r"), ("concat",), ("W_o: H r → d",)))),
        ),
        rungs=("softmax", "heads"),
        asked="Why Wₒ?",
    ),
    Chapter(
        "mlp",
        "The MLP is a memory of its own",
        "Why W₂, and is W₁ needed?",
        "After the mixing comes a function of each token alone. An activation by itself has as many units as there "
        "are coordinates, and each writes to one of them. With W₂ the number of units is free and each writes a "
        "whole vector. Read so, column i of W₁ is a key to compare the token with, and row i of W₂ the value that "
        "is added where they agree: there is room for more patterns than coordinates. W₁ alone adds nothing while "
        "it stands right behind the mixing, whose W_o can swallow it. Behind a second skip connection and a norm "
        "it cannot be swallowed. Both are checked numerically.",
        r"m = f(h W_1) \qquad a' = h + m W_2 = h + \sum_i m_i W_{2,i}",
        ("mlp", "patterns", "w_2", "absorbed", "absorb", "key-value", "keyvalue", "promoted"),
        (
            ("Without W₂: a unit writes to one coordinate.", Store(values=False)),
            ("With W₂: a unit writes its value, a vector.", Store(values=True)),
        ),
        rungs=("linear", "w_2", "w_1", "normed"),
        asked="Why W₂?",
    ),
    Chapter(
        "cost",
        "All pairs cost, and a window forgets",
        "What does it cost, and what does a window lose?",
        "Every token is compared with all before it, so twice the text makes four times the pairs. A window of the "
        "last W tokens makes that linear and drops what lies further back: one layer cannot recall a fact outside "
        "of it, and several only if it was handed on from window to window. Sparse patterns leave pairs out by a "
        "rule. Counted in multiplications they win; in seconds they need not, since machines are built for large "
        "dense products. So time and recall are both measured here, as the count by itself would not tell.",
        r"\text{all pairs } \frac{T(T+1)}{2} \qquad \text{a window of } W \text{: at most } T W",
        ("cost", "window", "quadratic", "sparse"),
        (
            ("All pairs.", Units(reach=ALL, layers=1, places=6)),
            ("A window of two.", Units(reach=WINDOW, layers=1, places=6)),
            ("The first block of two and its own.", Units(reach=BLOCKS, layers=1, places=6)),
        ),
        rungs=("window", "block_sparse"),
    ),
    Chapter(
        "transformer",
        "The whole Transformer",
        "Do the choices work together?",
        "Put together, the choices are the network in general use: a norm, H heads with thin queries, keys and "
        "values, softmax, W_o, a skip connection, another norm, W₁, an activation, W₂ and a second skip. Each "
        "piece answers a pressure that came up on the way. Here the whole stands against the network it began "
        "with, on the same task and data, and with the same seeds. A last test takes the positions away: to "
        "attention alone the past is a set, and only the mask and the positions make a sequence of it.",
        r"h = a + \mathrm{MHA}(\mathrm{norm}(a)) \qquad a' = h + f(\mathrm{norm}(h) W_1) W_2",
        ("transformer", "whole", "positions"),
        (
            (
                "One block: two skips, each around a norm and its part.",
                Boxes(
                    (("a",), ("norm",), ("heads, softmax, W_o",), ("+",), ("norm",), ("W₁, f, W₂",), ("+",)),
                    ((0, 3), (3, 6)),
                ),
            ),
        ),
        rungs=("transformer", "no_positions"),
    ),
    Chapter(
        "price",
        "What the price is",
        "What is the price?",
        "None of this was free. The recurrent network spends a fixed amount on each token and keeps a fixed "
        "amount; the Transformer spends something on each pair and keeps something of every token. That is the "
        "bargain: recall of more facts, computed in parallel, against work that grows with the square of the "
        "length and memory that grows with the length. Sizes also follow what present machines are fast at, large "
        "products of dense matrices. With other machines, or a better memory of fixed size, another choice may "
        "win; these figures are what it has to beat.",
        r"\text{work of a layer, about } T^2 d \qquad \text{kept } 2 T L H r",
        ("price",),
        (
            ("A state of fixed size.", Units(recurrent=True, layers=1)),
            ("All of the past, at all places.", Units(reach=ALL, layers=1)),
        ),
        asked="What is the price?",
    ),
)

# Whose number answers the question of the table, first choice first, where that is not the chapter's own order.
DECIDES = {
    "weights": ("arguments", "source"),
    "interaction": ("product", "interaction"),
    "normalisation": ("softmax", "normalisation"),
    "mlp": ("patterns", "mlp", "w_2", "key-value"),
    "price": ("price", "cost", "window"),
}
