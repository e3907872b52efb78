"""K-FAC: the second moment of a linear layer's gradients, as a product of two small matrices, from the same factors.

    A = E[aᵗ a] ~ (n, n)      G = E[Δᵗ Δ] ~ (m, m)            over tokens; Δ of the summed loss
    C = E[vec(g_t) vec(g_t)ᵗ] ~ (nm, nm)  ≈  A ⊗ G            g_t = a_tᵗ Δ_t; equal where a and Δ are independent
    natural gradient ≈ (A + π√λ 1)⁻¹ g (G + √λ/π 1)⁻¹          π² = (tr A / n)/(tr G / m), damping λ

How well the product fits is measured without forming C, from agreements of tokens:
    ‖C‖² = E_st[(a_s a_tᵗ)² (Δ_s Δ_tᵗ)²]      ⟨C, A ⊗ G⟩ = E_t[(a_t A a_tᵗ)(Δ_t G Δ_tᵗ)]      ‖A ⊗ G‖ = ‖A‖ ‖G‖
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, NumericError
from handgrad.core.params import generator_of
from handgrad.models.model import Model
from handgrad.who.factors import MOST_BYTES, Factors

ROWS = 1024  # tokens whose agreements with all others are formed at a time


class Fit(NamedTuple):
    """How near a product is to the moment that it stands for.

    cosine   ⟨C, A ⊗ G⟩/(‖C‖ ‖A ⊗ G‖): 1 where they differ by a number at most
    error    ‖C - A ⊗ G‖/‖C‖
    """

    cosine: float
    error: float


@dataclass(frozen=True, eq=False)
class Kronecker:
    """Statistics of one weight w ~ (n, m).

    a, Delta   the factors ~ (B, T, n), (B, T, m) in float64; Delta of the summed loss
    gradient   (n, m), of the mean loss
    """

    name: str
    a: Tensor
    Delta: Tensor
    gradient: Tensor

    @cached_property
    def A(self) -> Tensor:
        return moment(self.a)

    @cached_property
    def G(self) -> Tensor:
        return moment(self.Delta)

    def fit(self) -> Fit:
        """Of A ⊗ G to the moment of single tokens' gradients."""
        a, Delta = self.a.flatten(0, 1), self.Delta.flatten(0, 1)
        square = torch.zeros((), dtype=a.dtype, device=a.device)
        for rows in torch.arange(len(a), device=a.device).split(ROWS):
            square += ((a[rows] @ a.mT) * (Delta[rows] @ Delta.mT)).square().sum()
        both = ((a @ self.A * a).sum(-1) * (Delta @ self.G * Delta).sum(-1)).mean()
        return self.fitted(float(square) / len(a) ** 2, float(both), 1.0)

    def fit_of_sequences(self) -> Fit:
        """Of T · (A ⊗ G) to the moment of whole sequences' gradients g_b = Σ_t g_t: what a step really adds up. Tokens
        of one sequence are not independent, so this is the harder thing to fit."""
        g = self.a.mT @ self.Delta  # (B, n, m)
        flat = g.flatten(1)
        square = (flat @ flat.mT).square().mean()
        both = (g * (self.A @ g @ self.G)).sum((1, 2)).mean()
        return self.fitted(float(square), float(both), self.a.shape[1])

    def fitted(self, square: float, both: float, times: float) -> Fit:
        size = float(self.A.norm() * self.G.norm())
        if not square or not size:
            raise NumericError(f"all gradients of {self.name} are 0, so there is nothing to fit")
        gap = square - 2 * times * both + (times * size) ** 2
        return Fit(both / (sqrt(square) * size), sqrt(max(gap, 0.0) / square))

    def preconditioned(self, damping: float, g: Tensor | None = None) -> Tensor:
        """(A + π√λ 1)⁻¹ g (G + √λ/π 1)⁻¹ ~ (n, m); g is the gradient here unless another is given."""
        if not (isfinite(damping) and damping > 0):
            raise ConfigError(f"damping is {damping}, and must be above 0: A and G alone need not have an inverse")
        g = (self.gradient if g is None else g).double()
        pi = sqrt(float(self.A.diagonal().mean() / self.G.diagonal().mean())) if self.A.any() and self.G.any() else 1.0
        left = torch.linalg.cholesky(damped(self.A, pi * sqrt(damping)))
        right = torch.linalg.cholesky(damped(self.G, sqrt(damping) / pi))
        return torch.cholesky_solve(torch.cholesky_solve(g, left).mT, right).mT  # G is symmetric: (G⁻¹ (A⁻¹ g)ᵗ)ᵗ


def kfac(
    model: Model,
    tokens: Tensor,
    patterns: Sequence[str] = ("blocks.*.w",),
    targets: Tensor | None = None,
    drawn: int | None = None,
    most_bytes: int = MOST_BYTES,
) -> dict[str, Kronecker]:
    """Statistics of every weight that matches, when the model reads `tokens` ~ (B, T).

    With the text's own targets, or given ones, the moment is the *empirical* Fisher matrix. `drawn` is a seed: targets
    are then drawn from what the model predicts, which gives the Fisher matrix itself.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> found = kfac(model, torch.tensor([[1, 2, 3, 4, 5]]))["blocks.0.mlp.up.w"]
    >>> found.A.shape, found.G.shape, found.preconditioned(1e-3).shape
    (torch.Size([6, 6]), torch.Size([24, 24]), torch.Size([6, 24]))
    """
    if drawn is not None and targets is not None:
        raise ConfigError("targets were given and are to be drawn as well; leave one of the two out")
    if drawn is not None:
        targets = drawn_targets(model, tokens, drawn)
    factors = Factors(model.params.layout, tuple(patterns), most_bytes)
    model.loss(tokens, targets)
    _, valid = model.aimed(tokens, targets, None)
    model.backward(factors)
    return {name: statistics(factors, name, int(valid.sum())) for name in factors}


def statistics(factors: Factors, name: str, n: int) -> Kronecker:
    """Of one weight, from the factors of a mean loss over n targets."""
    pairs = factors[name]
    if {pair.kind for pair in pairs} != {"outer"} or pairs[0].Delta.ndim != 3 or len({p.place for p in pairs}) != 1:
        raise ConfigError(f"{name} is not the matrix of one linear layer, so its gradients are no products aᵗ Δ alone")
    a = torch.cat([pair.factor for pair in pairs]).double()
    Delta = torch.cat([pair.Delta for pair in pairs]).double()
    return Kronecker(name, a, n * Delta, factors.gradient(name))


def drawn_targets(model: Model, tokens: Tensor, seed: int) -> Tensor:
    """One id for every token ~ (B, T), drawn from the model's own prediction there."""
    P = model(tokens).double().softmax(-1)
    generator = generator_of(seed, "targets", P.device)
    return torch.multinomial(P.flatten(0, 1), 1, generator=generator).view(tokens.shape)


def moment(x: Tensor) -> Tensor:
    """E[xᵗ x] over all rows."""
    x = x.flatten(0, -2)
    return x.mT @ x / len(x)


def damped(x: Tensor, by: float) -> Tensor:
    return x + by * torch.eye(len(x), dtype=x.dtype, device=x.device)
