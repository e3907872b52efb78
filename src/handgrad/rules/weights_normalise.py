"""From scores to weights: what is kept, and what a row of weights adds up to. Three rules of one shape.

forward      KEEP          ρ = score where allowed, 0 elsewhere
             DIVIDE        ρ = kept / rowsum(kept)
             softened(τ)   ρ = softmax(score/τ) by rows, over what is allowed
backward     KEEP          Δ_score = Δ_ρ where allowed, 0 elsewhere
             DIVIDE        Δ_score = (Δ_ρ - rowsum(Δ_ρ ∘ ρ) 1ᵗ) / rowsum(kept) where allowed
             softened(τ)   Δ_score = ρ ∘ (Δ_ρ - rowsum(Δ_ρ ∘ ρ) 1ᵗ) / τ
from         dρ = (dkept - ρ rowsum(dkept)) / rowsum(kept)  for a quotient;
             dρ = ρ ∘ (dscore - rowsum(ρ ∘ dscore) 1ᵗ) / τ  for a softmax
shapes       score, ρ, Δ_ρ, Δ_score ~ (B, F, T, S)   allowed ~ (T, S), bool, True = may read; None = all
assumes      DIVIDE: no row of scores adds up to 0 (scores of both signs can; then it is not finite, which is one
             reason why it is not what is used). softened: τ > 0; a row with nothing allowed is 0
cost         pointwise; saves ρ, DIVIDE also one number a row
source       second source, "normalisation"; docs/equations.md, row "normalisation"
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor

from handgrad.core.errors import ConfigError
from handgrad.core.rule import Pair, Rule
from handgrad.core.run import Run, widened
from handgrad.rules.attend import softmax


class Saved(NamedTuple):
    rho: Tensor | None  # (B, F, T, S)  the direction in which a row cannot move; KEEP has none
    allowed: Tensor | None  # (T, S)
    over: Tensor | float  # (B, F, T, 1)  row sums for DIVIDE; τ for softened


def kept(score: Tensor, allowed: Tensor | None) -> Tensor:
    return score if allowed is None else score.where(allowed, 0.0)


def keep_forward(score: Tensor, allowed: Tensor | None, run: Run) -> tuple[Tensor, Saved]:
    return run.show("rho", kept(score, allowed)), Saved(None, allowed, 1.0)


def keep_backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    Delta_rho = run.show("Delta_rho", Delta)
    return kept(Delta_rho, saved.allowed)  #                              of  where(allowed, ·, 0)


def divide_forward(score: Tensor, allowed: Tensor | None, run: Run) -> tuple[Tensor, Saved]:
    wide = widened(kept(score, allowed))
    over = wide.sum(-1, keepdim=True)
    rho = run.show("rho", (wide / over).to(score.dtype))
    return rho, Saved(rho, allowed, over)


def divide_backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    rho, allowed, over = saved
    assert rho is not None
    Delta_rho = run.show("Delta_rho", Delta)
    wide = widened(Delta_rho)
    along_rho = (wide * rho).sum(-1, keepdim=True)  #                     of  / over, which also depends on score
    Delta_kept = ((wide - along_rho) / over).to(Delta.dtype)  #           of  wide / over
    return kept(Delta_kept, allowed)  #                                   of  where(allowed, ·, 0)


def softened_forward(score: Tensor, allowed: Tensor | None, run: Run, tau: float) -> tuple[Tensor, Saved]:
    warm = score / tau
    causal = warm if allowed is None else warm.masked_fill(~allowed, float("-inf"))
    rho = run.show("rho", softmax(causal, allowed).to(score.dtype))
    return rho, Saved(rho, allowed, tau)


def softened_backward(Delta: Tensor, saved: Saved, run: Run) -> Tensor:
    rho, _, tau = saved
    assert rho is not None
    Delta_rho = run.show("Delta_rho", Delta)
    wide = widened(Delta_rho)
    along_rho = (wide * rho).sum(-1, keepdim=True)  # rowsum(Δ_ρ ∘ ρ)
    Delta_warm = rho * (wide - along_rho)  #                              of  softmax, and of where: ρ is 0 there
    return (Delta_warm / tau).to(Delta.dtype)  #                          of  score / tau


def softened(tau: float) -> Rule:
    """Softmax at the temperature τ: small is sharp, large is even.

    >>> softened(0.5).name
    'softmax at 0.5'
    """
    if not tau > 0:
        raise ConfigError(f"a temperature of {tau} cannot be: softmax(score/τ) needs τ above 0; 1 changes nothing")
    return Rule(f"softmax at {tau}", Pair(partial(softened_forward, tau=tau), softened_backward))


KEEP = Rule("keep", Pair(keep_forward, keep_backward))
DIVIDE = Rule("divide", Pair(divide_forward, divide_backward))
SOFTMAX = softened(1.0)
