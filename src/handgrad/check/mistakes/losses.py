"""Planted: losses."""

from handgrad.check.plant import Mistake
from handgrad.rules import crossentropy, headloss
from handgrad.rules.fused import headloss_chunked

MISTAKES = (
    Mistake(
        "a mean over all rows",
        crossentropy.backward,
        "Delta / max(n, 1)",
        "Delta / len(y)",
        "cross-entropy",
        "Delta below",
    ),
    Mistake(
        "targets not subtracted",
        crossentropy.backward,
        "torch.full_like(lse, -1.0)",
        "torch.zeros_like(lse)",
        "cross-entropy",
        "Delta below",
    ),
    Mistake(
        "rows without a target", crossentropy.backward, ".masked_fill_(~valid, 0.0)", "", "cross-entropy", "Delta below"
    ),
    Mistake(
        "this batch's n",
        crossentropy.forward,
        "max(n, 1)",
        "max(int(valid.sum()), 1)",
        "cross-entropy, a part of a step",
        "forward",
    ),
    Mistake(
        "Delta from above ignored",
        crossentropy.backward,
        "Delta / max(n, 1)",
        "1 / max(n, 1)",
        "cross-entropy",
        "Delta below",
    ),
    Mistake("n forgotten", headloss.forward, "valid, n, run", "valid, 1, run", "head and loss", "forward"),
    Mistake(
        "the loss' own upstream forgotten",
        headloss.backward,
        "backward(Delta, saved.loss",
        "backward(2 * Delta, saved.loss",
        "head and loss",
        "Delta_head",
    ),
    Mistake(
        "embedding's gradient from another error",
        headloss.backward,
        "unembed.backward(Delta_logits",
        "unembed.backward(2 * Delta_logits",
        "head and loss",
        "w_emb",
    ),
    Mistake(
        "the last chunk only",
        headloss_chunked.walk,
        "total += surprise",
        "total = surprise",
        "head and loss",
        "agreement",
    ),
    Mistake(
        "the gradient of P alone",
        headloss_chunked.surprise,
        "scatter_add_(-1, y_part, -factor * s)",
        "mul_(1)",
        "head and loss",
        "agreement",
    ),
    Mistake(
        "rows without a target",
        headloss_chunked.surprise,
        ".masked_fill_(~valid_part, 0.0)",
        "",
        "head and loss",
        "agreement",
    ),
)
