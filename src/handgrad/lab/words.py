"""Words of the page that a reader may not know."""

from __future__ import annotations

WORDS = (
    (
        "token",
        "A piece of text, or here a symbol of a generated task; a text is T of them. x_α, x_β: two tokens as "
        "vectors of d features, α the one that reads, β the one that is read.",
    ),
    ("unit", "What computes one output of a layer at one place, from that place's token and those before it."),
    (
        "rung",
        "One network of the ladder that leads from the RNN to the Transformer: each changes one thing of the one "
        "before it.",
    ),
    (
        "step",
        "A claim of the argument with its trials and verdict. A training step is one update of the weights; a "
        "dependent step one result that the next one waits for.",
    ),
    (
        "recall",
        "The task: pairs of a key and a value are told, then every key is asked again in another order, and the "
        "network has to give its value. k1 v1 k2 v2 … k2 ? k1 ?; accuracy is the share of values that are right.",
    ),
    ("state", "What a network keeps of the text so far in order to go on."),
    (
        "skip",
        "A connection that adds a part's input to its output; the stream is what the skips carry through all layers.",
    ),
    (
        "score, weight",
        "A number for a pair of tokens, v; ω or ρ is the weight made of it, with which β counts for α. W "
        "is a matrix, w a learned one.",
    ),
    (
        "softmax",
        "Weights e^v divided by their sum: positive, adding up to 1. τ, the temperature, divides the scores before.",
    ),
    (
        "head",
        "One function of weights with its own values: H of them side by side make a layer. r: features of a query, "
        "key or value of a head.",
    ),
    ("norm", "Brings a vector to mean 0 and spread 1 before a layer reads it."),
    ("logits", "Scores of all possible next tokens, before the softmax that makes probabilities of them."),
    (
        "nats",
        "Surprise: the negative natural logarithm of the probability that was given to what came. 0 is certain, "
        "ln n is guessing among n.",
    ),
    ("OHE", "One-hot encoding: the vector that is 1 at a token's number and 0 elsewhere."),
    ("cosine", "Likeness of two vectors: 1 in the same direction, 0 at right angles."),
    ("tiles", "Attention computed block by block, so that the matrix of all weights is never held."),
)
