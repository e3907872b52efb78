"""Planted: linear layers, embeddings, activations, dropout."""

from handgrad.check.plant import Mistake
from handgrad.core import gradients
from handgrad.layers import embedding
from handgrad.rules import dropout, embed, gelu, linear, relu, unembed

MISTAKES = (
    Mistake(
        "w not transposed going down", linear.backward, "Delta @ w.mT", "Delta @ w", "square linear", "Delta below"
    ),
    Mistake(
        "factors of dw swapped", linear.backward, '"w", saved.a, Delta', '"w", Delta, saved.a', "square linear", "w"
    ),
    Mistake("db is a mean", linear.backward, '"b", Delta', '"b", Delta / Delta.shape[1]', "linear", "b"),
    Mistake("db from the input", linear.backward, '"b", Delta', '"b", saved.a', "square linear", "b"),
    Mistake("bias left out", linear.forward, "y.add_(b)", "y", "linear", "forward"),
    Mistake(
        "last write wins",
        gradients.Accumulate.rows,
        "g.index_add_(0, ids.flatten(), Delta.flatten(0, -2).to(g.dtype))",
        "g[ids.flatten()] += Delta.flatten(0, -2)",
        "token embedding",
        "w_emb",
    ),
    Mistake("ids off by one", embed.backward, "saved.ids", "(saved.ids - 1).clamp(min=0)", "token embedding", "w_emb"),
    Mistake("half the Delta", embed.backward, "saved.ids, Delta", "saved.ids, Delta / 2", "token embedding", "w_emb"),
    Mistake("the next row looked up", embed.forward, "w[ids]", "w[(ids + 1) % len(w)]", "token embedding", "forward"),
    Mistake(
        "positions from 0",
        embedding.PositionEmbedding.forward,
        "torch.arange(first, last,",
        "torch.arange(0, last - first,",
        "position embedding",
        "forward",
    ),
    Mistake(
        "the head's gradient transposed",
        unembed.backward,
        '"w_emb", Delta, saved.a',
        '"w_emb", saved.a, Delta',
        "square unembedding",
        "w_emb",
    ),
    Mistake(
        "the head adds nothing to the tied slot",
        unembed.backward,
        "grads.outer",
        "(lambda *_: None)",
        "gpt-2",
        "embedding.token.w_emb",
    ),
    Mistake(
        "Delta of the head transposed",
        unembed.backward,
        "Delta @ w_emb",
        "Delta @ w_emb.mT",
        "square unembedding",
        "Delta below",
    ),
    Mistake("3 of the cube dropped", gelu.tanh_backward, "3 * CUBIC", "CUBIC", "gelu tanh", "Delta below"),
    Mistake(
        "gate's slope dropped",
        gelu.tanh_backward,
        "torch.addcmul(gate, a, dgate, out=dgate)",
        "dgate.mul_(a)",
        "gelu tanh",
        "Delta below",
    ),
    Mistake(
        "the erf form's slope",
        gelu.tanh_backward,
        "du = torch",
        "return erf_backward(Delta, saved, run)\n    du = torch",
        "gelu tanh",
        "Delta below",
    ),
    Mistake("1/√2π dropped", gelu.erf_backward, ".mul_(1 / sqrt(2 * pi))", "", "gelu erf", "Delta below"),
    Mistake(
        "a not multiplied",
        gelu.erf_backward,
        "torch.addcmul(gate, a, density)",
        "torch.add(gate, density)",
        "gelu erf",
        "Delta below",
    ),
    Mistake(
        "the tanh form instead",
        gelu.erf_forward,
        "(a * sqrt(0.5)).erf() * 0.5 + 0.5",
        "tanh_forward(a, run)[1].gate",
        "gelu erf",
        "forward",
    ),
    Mistake(
        "written into saved",
        gelu.erf_backward,
        "torch.addcmul(gate, a, density)",
        "a.mul_(density).add_(gate)",
        "gelu erf",
        "purity",
    ),
    Mistake("passed whole", relu.backward, "Delta * saved.positive", "Delta * 1.0", "relu", "Delta below"),
    Mistake("the other half", relu.backward, "saved.positive", "~saved.positive", "relu", "Delta below"),
    Mistake("|a| instead", relu.forward, "a.relu()", "a.abs()", "relu", "forward"),
    Mistake(
        "scale forgotten going down", dropout.backward, "Delta * m / (1 - p)", "Delta * m", "dropout", "Delta below"
    ),
    Mistake("the mask forgotten", dropout.backward, "Delta * m / (1 - p)", "Delta / (1 - p)", "dropout", "Delta below"),
    Mistake("scaled by p", dropout.backward, "Delta * m / (1 - p)", "Delta * m / p", "dropout", "Delta below"),
    Mistake("a new mask each time", dropout.forward, "generator=run.random(a.device), ", "", "dropout", "recompute"),
)
