"""Which training sequence taught the model what it knows of a test text: products of gradients, none of them formed.

A step of SGD on sequence i, w ← w - lr g_i, changes the loss of the test by  -lr ⟨g_i, g_test⟩ + O(lr²).

    ⟨aᵗ Δ, a'ᵗ Δ'⟩ = Σ (a a'ᵗ) ∘ (Δ Δ'ᵗ)                      N·N'·(n + m) products instead of (N + N')·n·m
    ⟨aᵗ Δ, OHE(t)ᵗ Δ'⟩ = Σ_rs a_r[t_s] (Δ Δ'ᵗ)_rs             a tied embedding meets its head
    ⟨OHE(t)ᵗ Δ, OHE(t')ᵗ Δ'⟩ = Σ_rs [t_r = t'_s] (Δ Δ'ᵗ)_rs   repeated tokens meet each other
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, ShapeError
from handgrad.core.run import widened
from handgrad.models.model import Model
from handgrad.who.factors import MOST_BYTES, Factors, Pair
from handgrad.who.words import as_html, as_text

SIGN = "a step of SGD on a sequence changes the loss of the test by -lr times its product, to first order in lr"


@dataclass(frozen=True, eq=False)
class Influence:
    """Of each training sequence on the loss of the test.

    products   ⟨g_i, g_test⟩ ~ (N,): above 0, a step on sequence i lowers the loss of the test
    cosines    ⟨g_i, g_test⟩ / (‖g_i‖ ‖g_test‖) ~ (N,); 0 where a gradient is 0
    losses     of the sequences ~ (N,)
    test_loss  of the test
    """

    products: Tensor
    cosines: Tensor
    losses: Tensor
    test_loss: float

    def predicted(self, lr: float) -> Tensor:
        """The change of the test's loss by one step of SGD on each sequence, to first order in lr."""
        return -lr * self.products

    def top(self, n: int = 10) -> list[tuple[int, float, float]]:
        """Sequence, product and cosine, the most helpful first."""
        order = self.products.argsort(descending=True, stable=True)[:n]
        return [(int(i), float(self.products[i]), float(self.cosines[i])) for i in order]

    def table(self, n: int = 10) -> list[dict[str, str]]:
        """The most helpful sequences, by number."""
        rows = [(f"{i}", f"{product:+.3g}", f"{cosine:+.3f}") for i, product, cosine in self.top(n)]
        return [dict(zip(("sequence", "product", "cosine"), row, strict=True)) for row in rows]

    def __str__(self) -> str:
        return f"{as_text(self.table())}\n\n{SIGN}"

    def _repr_html_(self) -> str:
        return f"{as_html(self.table())}<p>{html.escape(SIGN)}</p>"


def influence(
    model: Model,
    train: Tensor | Iterable[Tensor],
    test: Tensor,
    patterns: Sequence[str] = ("*",),
    most_bytes: int = MOST_BYTES,
) -> Influence:
    """Products of the gradient of each sequence's mean loss with that of the test, over the parameters of `patterns`.

    train   ids ~ (N, T), or sequences ~ (T,) of lengths of their own
    test    ids ~ (B, T), or one sequence

    Memory: the factors of the test and of one sequence. The model is left as it was.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> train = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    >>> found = influence(model, train, torch.tensor([1, 2, 3]))
    >>> found.products.shape, found.top(1)[0][0]
    (torch.Size([2]), 0)
    """
    test_loss, of_test = backward(model, test, patterns, most_bytes)
    size = inner(of_test, of_test).sqrt()
    products, cosines, losses = [], [], []
    for sequence in train:
        loss, of_one = backward(model, sequence, patterns, most_bytes)
        product = inner(of_one, of_test)
        length = inner(of_one, of_one).sqrt() * size
        products.append(product)
        cosines.append(product / length if length else torch.zeros_like(product))
        losses.append(loss)
    if not products:
        raise ConfigError("no training sequence was given, so none has an influence")
    return Influence(torch.stack(products), torch.stack(cosines), torch.stack(losses), float(test_loss))


def backward(model: Model, tokens: Tensor, patterns: Sequence[str], most_bytes: int) -> tuple[Tensor, Factors]:
    """The mean loss of ids ~ (T,) or (B, T), and the factors of its gradient."""
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.shape[-1] < 2:
        raise ShapeError(f"a sequence of {tokens.shape[-1]} tokens predicts nothing; give at least 2")
    factors = Factors(model.params.layout, tuple(patterns), most_bytes)
    loss = model.loss(tokens)
    model.backward(factors)
    return loss, factors


def inner(one: Factors, other: Factors) -> Tensor:
    """⟨g, g'⟩ of two gradients over the parameters that both have kept, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for name in one:
        shape = one.layout.slots[name].shape
        for x in gathered(one[name]):
            for y in gathered(other[name]):
                total += product(x, y, shape).double().cpu()
    return total


def gathered(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Pairs of rows ~ (N, ·), one for each kind: what was handed over several times, one below the other."""
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        same = [pair for pair in pairs if pair.kind == kind]
        Delta = torch.cat([pair.Delta.flatten(0, -2) for pair in same])
        a = None
        if kind != "total":
            a = torch.cat([pair.ids.flatten() if kind == "rows" else pair.factor.flatten(0, -2) for pair in same])
        yield Pair(same[0].place, kind, a, Delta)


def product(x: Pair, y: Pair, shape: tuple[int, ...]) -> Tensor:
    """⟨g_x, g_y⟩ of two gathered pairs of one parameter, by whichever way is shorter."""
    if x.kind in ("total", "scaled"):
        return x.vectors.sum(0) @ y.vectors.sum(0)
    N, M, (n, m) = len(x.Delta), len(y.Delta), shape
    if (x.kind, y.kind) == ("outer", "outer") and (N + M) * n * m < N * M * (n + m):
        return y.along(x.product(shape)).sum()
    Deltas = widened(x.Delta) @ widened(y.Delta).mT  # (N, M)
    if (x.kind, y.kind) == ("outer", "outer"):
        return (widened(x.factor) @ widened(y.factor).mT * Deltas).sum()
    if (x.kind, y.kind) == ("rows", "rows"):
        return Deltas[x.ids[:, None] == y.ids].sum()
    (a, ids), Deltas = ((x.factor, y.ids), Deltas) if x.kind == "outer" else ((y.factor, x.ids), Deltas.mT)
    return (widened(a)[:, ids] * Deltas).sum()
