"""Planted: chains, residuals, forks, blocks, the whole network."""

from handgrad.check.plant import Mistake
from handgrad.core import combine, gradients

MISTAKES = (
    Mistake(
        "skip forgotten", combine.Residual.backward, "Delta + self.f", "self.f", "sequence of residuals", "Delta_h"
    ),
    Mistake(
        "only the skip",
        combine.Residual.backward,
        "return Delta + ",
        "return 2 * Delta + 0 * ",
        "sequence of residuals",
        "Delta_h",
    ),
    Mistake("branch without skip", combine.Residual.forward, "a + y", "y", "sequence of residuals", "forward"),
    Mistake("a branch overwrites another", combine.Fork.backward, "below + term", "term", "multi-head", "Delta below"),
    Mistake(
        "the Deltas in the wrong order",
        combine.Fork.backward,
        "zip(self.branches.items(), Deltas",
        "zip(self.branches.items(), Deltas[::-1]",
        "multi-head",
        "Delta_query",
    ),
    Mistake(
        "a share for each branch",
        combine.Sum.backward,
        "(Delta,)",
        "(Delta / len(self.fork.branches),)",
        "gpt-2",
        "embedding.Delta_token",
    ),
    Mistake(
        "gradient overwritten",
        gradients.Accumulate.outer,
        "g.addmm_(a.mT, Delta)",
        "g.copy_(a.mT @ Delta)",
        "gpt-2",
        "accumulation",
    ),
)
