"""Equations about embeddings, positions and losses, each as a computation that raises `LawBroken` where it fails."""

from __future__ import annotations

from itertools import pairwise
from math import cos, sin

import torch
from torch import Tensor

from handgrad.check.case import normal
from handgrad.check.laws import require, same
from handgrad.core.gradients import Accumulate
from handgrad.core.run import Run
from handgrad.core.signals import Watch
from handgrad.layers.frequencies import Llama3
from handgrad.layers.rope import Rotary, positions, to_half_split, to_interleaved
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.model import build
from handgrad.rules import alibi, embed, sinusoidal
from handgrad.rules.crossentropy import CROSS_ENTROPY
from handgrad.rules.rope import HALF_SPLIT, INTERLEAVED
from handgrad.rules.smoothed import SMOOTHED
from handgrad.rules.zloss import Z_LOSS

CONFIG = GPT2Config(vocabulary=11, context=7, n_layers=1, n_heads=3, d_model=21, d_mlp=13)
TOKENS = torch.tensor([[3, 1, 3, 0, 10], [1, 1, 9, 2, 3]])


def shift() -> None:
    """The target of row t is token t + 1: the last row has none, and its Δ is exactly 0; T - 1 rows count."""
    model = build(CONFIG, 1, torch.float64)
    logits = model(TOKENS)
    watch = Watch(("head", "Delta_head"))
    with model.running(signals=watch):
        loss = model.loss(TOKENS)
        model.backward()
    surprise = -logits.log_softmax(-1)[:, :-1].gather(-1, TOKENS[:, 1:, None])
    require(surprise.numel() == 2 * 4, "the terms are not T - 1 for each sample")
    same(loss, surprise.mean(), "the loss of the shifted targets")
    Delta = watch["Delta_head"]
    require(not Delta[:, -1].any(), "the last row has no target, and yet an error")
    require(bool(Delta[:, :-1].any(-1).all()), "a row with a target has no error")


def both_stores() -> None:
    """a = w_emb[t] + w_pos: the whole Δ reaches each store, Σ_batch Δ the learned positions, repeated tokens add."""
    Delta, g = (
        normal((2, 5, 7), 1, "Delta"),
        {"w_emb": torch.zeros(11, 7).double(), "w_pos": torch.zeros(6, 7).double()},
    )
    embed.backward("w_emb", Delta, embed.Saved(TOKENS), Accumulate({"w_emb": g["w_emb"]}))
    embed.backward("w_pos", Delta, embed.Saved(torch.arange(5)), Accumulate({"w_pos": g["w_pos"]}))
    one_hot = torch.nn.functional.one_hot(TOKENS, 11).double()
    same(g["w_emb"], torch.einsum("btv,btd->vd", one_hot, Delta), "the token store's gradient")
    same(g["w_pos"][:5], Delta.sum(0), "the position store's gradient")
    require(not g["w_pos"][5].any(), "a position that was not used has a gradient")
    same(g["w_emb"].sum(0), g["w_pos"].sum(0), "the whole Δ in one store and in the other")


def tying() -> None:
    """The gradient of the tied rows is the embedding's plus the logits', each as the untied network has it."""
    tied = build(CONFIG, 1, torch.float64)
    free = build(GPT2Config(**{**vars(CONFIG), "tied": False}), 1, torch.float64)
    for name in free.params:
        free.params[name].copy_(tied.params[name])
    grads = []
    for model in (tied, free):
        model.loss(TOKENS)
        grads.append(model.backward())
    parts = grads[1]["embedding.token.w_emb"], grads[1]["head.w_emb"]
    require(all(bool(part.any()) for part in parts), "one of the two uses has no gradient, so nothing is added")
    same(grads[0]["embedding.token.w_emb"], parts[0] + parts[1], "the tied gradient")
    require(
        tied.params.layout.count == free.params.layout.count - 11 * 21, "the tied rows are not counted exactly once"
    )


def rotary_relativity() -> None:
    """q̃_m·k̃_n depends on m - n alone, lengths stay, and the backward turn undoes the forward one."""
    q, k = normal((1, 1, 14), 1, "q"), normal((1, 1, 14), 1, "k")
    for pairing in (INTERLEAVED, HALF_SPLIT):
        f = Rotary(14, pairing=pairing)
        turned = lambda x, t, f=f: f.forward({}, x, Run(position=t))  # noqa: E731
        scores = [(turned(q, m)[0] * turned(k, n)[0]).sum() for m, n in ((5, 2), (13, 10), (907, 904), (5, 3), (2, 5))]
        for far in scores[1:3]:
            same(far, scores[0], "the agreement at the same distance")
        for other in scores[3:]:
            require(abs(float(other - scores[0])) > 1e-3, "the agreement is the same at another distance")
        x, saved = turned(q, 907)
        same(x.norm(), q.norm(), "the length after turning")
        require(float((x - q).norm()) > 0.1, "nothing was turned")
        same(f.backward({}, x, saved, Accumulate({}), Run()), q, "turned and turned back")
        same(f.backward({}, q, saved, Accumulate({}), Run()), turned(q, -907)[0], "the turn by the negative angle")


def rotary_pairings() -> None:
    """Half-split on permuted features is interleaved, permuted: for the features, and for the columns of w_q."""
    x, w = normal((2, 5, 14), 1, "x"), normal((21, 3 * 14), 1, "w")
    one, other = Rotary(14, pairing=INTERLEAVED), Rotary(14, pairing=HALF_SPLIT)
    right = to_half_split(one.forward({}, x, Run(position=3))[0], 1)
    same(other.forward({}, to_half_split(x, 1), Run(position=3))[0], right, "the permuted turn")
    require(float((other.forward({}, x, Run(position=3))[0] - right).norm()) > 0.1, "the pairings do not differ")
    a = normal((2, 5, 21), 1, "a")
    cut = lambda w: (a @ w).unflatten(-1, (3, 14)).transpose(1, 2)  # noqa: E731
    q, q_half = (
        one.forward({}, cut(w), Run(position=3))[0],
        other.forward({}, cut(to_half_split(w, 3)), Run(position=3))[0],
    )
    same(q_half @ q_half.mT, q @ q.mT, "the scores with permuted columns")
    require(torch.equal(to_interleaved(to_half_split(w, 3), 3), w), "the permutation is not undone")


def rotary_llama3() -> None:
    """Fast pairs as they were, slow ones `factor` times slower, and between in order."""
    scaled, before = Llama3().frequencies(128), Llama3(factor=1.0).frequencies(128)
    ratio = [b / a for a, b in zip(scaled, before, strict=True)]
    require(ratio[0] == 1.0 and abs(ratio[-1] - 8.0) < 1e-12, f"the ends are slowed by {ratio[0]} and {ratio[-1]}")
    require(all(a <= b for a, b in pairwise(ratio)), "a slower pair is slowed less")
    require(any(1.01 < r < 7.99 for r in ratio), "nothing is blended")


def sinusoidal_turns() -> None:
    """The table at t + s is the table at t, turned pair by pair: a fixed linear map for every distance s."""
    d, s = 14, 3
    here, there = (sinusoidal.table(positions(first, 5), d, 10_000.0) for first in (2, 2 + s))
    turned = torch.empty_like(here)
    for i in range(d // 2):
        c, n = cos(s * 10_000.0 ** (-2 * i / d)), sin(s * 10_000.0 ** (-2 * i / d))
        turned[:, 2 * i] = here[:, 2 * i] * c + here[:, 2 * i + 1] * n
        turned[:, 2 * i + 1] = here[:, 2 * i + 1] * c - here[:, 2 * i] * n
    same(turned, there, "the turned table")


def alibi_bias() -> None:
    """The bias falls by the slope for each token of distance, by a factor of 2^(-8/H) from head to head."""
    biased = alibi.forward(torch.zeros(1, 8, 5, 5).double(), alibi.slopes(8), Run())[0][0]
    for h in range(8):
        for i in range(5):
            for j in range(5):
                right = 2.0 ** -(h + 1) * (j - i) if j <= i else 0.0
                require(float(biased[h, i, j]) == right, f"the bias of head {h} at ({i}, {j}) is not {right}")


def losses() -> tuple[Tensor, Tensor, Tensor]:
    logits, y = normal((5, 7), 1, "logits"), torch.tensor([4, 0, -1, 6, 2])
    return logits, y, y >= 0


def smoothing_splits() -> None:
    """Smoothed cross-entropy is (1 - s) of the plain one and s of the mean over all targets; so is its error."""
    logits, y, valid = losses()
    s, one = 0.13, torch.ones((), dtype=torch.float64)

    def pair(targets: Tensor) -> tuple[Tensor, Tensor]:
        loss, saved = CROSS_ENTROPY.forward(logits, targets, valid, 4, run=Run())
        return loss, CROSS_ENTROPY.backward(one, saved, Run())

    loss, saved = SMOOTHED.forward(logits, y, valid, 4, s, run=Run())
    Delta = SMOOTHED.backward(one, saved, Run())
    every = [pair(torch.full((5,), v)) for v in range(7)]
    same(loss, (1 - s) * pair(y)[0] + s * sum(one[0] for one in every) / 7, "the smoothed loss")
    same(Delta, (1 - s) * pair(y)[1] + s * sum(one[1] for one in every) / 7, "the smoothed error")
    require(float(Delta.sum(-1).abs().max()) < 1e-15, "P and the target do not both sum to 1")


def z_loss_slope() -> None:
    """Adding the same amount to every logit of a row leaves the cross-entropy alone, and moves the z-loss by 2z·lse."""
    logits, _, valid = losses()
    loss, saved = Z_LOSS.forward(logits, valid, 4, 0.3, run=Run())
    Delta = Z_LOSS.backward(torch.ones((), dtype=torch.float64), saved, Run())
    lse = logits.exp().sum(-1).log()
    same(loss, 0.3 / 4 * lse[valid].square().sum(), "the z-loss")
    same(Delta.sum(-1), 2 * 0.3 / 4 * lse * valid, "the slope along a common shift")
