"""Mistakes planted on purpose: each changes one line of a rule, and the checks must see it *at the right signal*.

A suite that was never run against broken code proves nothing. `where` is the first wrong signal in the order of the
backward pass; "forward" means that the independent reference sees it (autograd differentiates whatever forward is
there); "purity", "accumulation" and "recompute" are the laws of those names.

A mistake is planted by compiling the changed source of that one function and lending it its code: no file is written,
and the function is itself again afterwards. Only source of this package is ever compiled.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from handgrad.check import laws
from handgrad.check.cases import case
from handgrad.check.oracle import compare
from handgrad.check.report import LawBroken
from handgrad.core import combine, gradients
from handgrad.layers import embedding, multihead
from handgrad.rules import attend, crossentropy, dropout, embed, gelu, layernorm, linear, relu, unembed


@dataclass(frozen=True)
class Mistake:
    """In `function`, `line` becomes `wrong`; run on the case named `on`, it must first be seen at `where`."""

    what: str
    function: Callable[..., Any]
    line: str
    wrong: str
    on: str
    where: str

    @property
    def rule(self) -> str:
        return self.function.__module__.rpartition(".")[2]


@contextmanager
def planted(mistake: Mistake) -> Iterator[None]:
    function = mistake.function
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mistake.line) != 1:
        raise LawBroken(
            f"'{mistake.line}' stands {source.count(mistake.line)} times in {function.__qualname__}, not once"
        )
    scope = dict(function.__globals__)
    changed = compile(
        source.replace(mistake.line, mistake.wrong),
        "<planted mistake>",
        "exec",
        __future__.annotations.compiler_flag,
        True,
    )
    exec(changed, scope)  # noqa: S102  our own source, one line changed
    right = function.__code__
    function.__code__ = scope[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right


def found(mistake: Mistake) -> str | None:
    """Where the checks see the mistake first; None if they do not."""
    with planted(mistake):
        try:
            return seen(mistake.on)
        except LawBroken as broken:
            return f"broken: {broken}"


def seen(on: str) -> str | None:
    at = case(on)
    p, a, Delta = at.draw(1)
    for law in (laws.reference, laws.purity):
        try:
            law(at)
        except LawBroken:
            return "forward" if law is laws.reference else law.__name__
    report = compare(at.layer, p, a, Delta, at.run, at.zeros)
    if report.first_wrong:
        return report.first_wrong
    for law in (laws.accumulation, laws.recompute):
        try:
            law(at)
        except LawBroken:
            return law.__name__
    return None


MISTAKES = (
    Mistake(
        "w not transposed going down", linear.backward, "Delta @ w.mT", "Delta @ w", "square linear", "Delta below"
    ),
    Mistake(
        "factors of dw swapped", linear.backward, '"w", saved.a, Delta', '"w", Delta, saved.a', "square linear", "w"
    ),
    Mistake("db is a mean", linear.backward, '"b", Delta', '"b", Delta / Delta.shape[1]', "linear", "b"),
    Mistake("db from the input", linear.backward, '"b", Delta', '"b", saved.a', "square linear", "b"),
    Mistake("bias left out", linear.forward, "y + b", "y", "linear", "forward"),
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
    Mistake(
        "variance of d - 1",
        layernorm.forward,
        "centred.square().mean(-1, keepdim=True)",
        "centred.square().sum(-1, keepdim=True) / (centred.shape[-1] - 1)",
        "layer norm",
        "forward",
    ),
    Mistake(
        "epsilon outside the root",
        layernorm.forward,
        "(centred.square().mean(-1, keepdim=True) + epsilon).rsqrt()",
        "1 / (centred.square().mean(-1, keepdim=True).sqrt() + epsilon)",
        "layer norm without offset",
        "forward",
    ),
    Mistake("mean term dropped", layernorm.backward, "D - along_1 - x", "D - x", "layer norm", "Delta below"),
    Mistake(
        "x term dropped", layernorm.backward, "D - along_1 - x * along_x", "D - along_1", "layer norm", "Delta below"
    ),
    Mistake("γ forgotten", layernorm.backward, "Delta * gamma", "Delta * 1.0", "layer norm", "Delta_x"),
    Mistake("dγ from D", layernorm.backward, '"gamma", x, Delta', '"gamma", x, Delta * gamma', "layer norm", "gamma"),
    Mistake("dβ from D", layernorm.backward, '"beta", Delta', '"beta", Delta * gamma', "layer norm", "beta"),
    Mistake("σ multiplied", layernorm.backward, "* over)", "/ over)", "layer norm", "Delta below"),
    Mistake("3 of the cube dropped", gelu.tanh_backward, "3 * CUBIC", "CUBIC", "gelu tanh", "Delta below"),
    Mistake(
        "gate's slope dropped",
        gelu.tanh_backward,
        "torch.addcmul(gate, a, dgate)",
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
    Mistake("ρ not transposed", attend.backward, "rho.mT @ Delta", "rho @ Delta", "attend", "Delta_v"),
    Mistake(
        "row sums forgotten",
        attend.backward,
        "rho * (Delta_rho - along_rho)",
        "rho * Delta_rho",
        "attend",
        "Delta_causal",
    ),
    Mistake(
        "sum by columns",
        attend.backward,
        "(Delta_rho * rho).sum(-1, keepdim=True)",
        "(Delta_rho * rho).sum(-2, keepdim=True)",
        "attend",
        "Delta_causal",
    ),
    Mistake(
        "√d forgotten going down",
        attend.backward,
        "Delta_scaled / sqrt(q.shape[-1])",
        "Delta_scaled * 1.0",
        "attend",
        "Delta_raw",
    ),
    Mistake(
        "√ of the values' width",
        attend.forward,
        "raw / sqrt(q.shape[-1])",
        "raw / sqrt(v.shape[-1])",
        "attend",
        "forward",
    ),
    Mistake("Δ_raw not transposed", attend.backward, "Delta_raw.mT @ q", "Delta_raw @ q", "attend", "Delta_k"),
    Mistake("queries for keys", attend.backward, "Delta_raw @ k", "Delta_raw @ q", "attend", "Delta_q"),
    Mistake("Δ_ρ from the output", attend.backward, "Delta @ v.mT", "Delta @ (rho @ v).mT", "attend", "Delta_rho"),
    Mistake(
        "softmax over queries",
        attend.softmax,
        "return causal.softmax(-1)",
        "return causal.softmax(-2)",
        "attend to everyone",
        "forward",
    ),
    Mistake("the mask upside down", attend.forward, "~allowed", "allowed", "attend", "forward"),
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
        "heads joined unturned",
        multihead.MultiHead.joined,
        "a.transpose(-3, -2).flatten(-2)",
        "a.reshape(a.shape[0], a.shape[2], -1)",
        "multi-head",
        "forward",
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
