"""Is the cache right? Logits with and without it, token by token, with a verdict that rounding cannot blur.

A float32 difference proves nothing by itself: it may be rounding or a small mistake. The same comparison in float64
tells them apart, because there rounding is below `BOUND` and a mistake is as large as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from handgrad.core.errors import NumericError, ShapeError
from handgrad.core.run import Run
from handgrad.generate.cache import KVCache
from handgrad.models.model import Model

BOUND = 1e-10  # float64, relative to the largest |logit| of the row where that is above 1
GRADES = ("identical", "rounding", "bug")


@dataclass(frozen=True)
class Row:
    """One token: the largest |difference| of its logits, in the model's type and in float64, which has the bound."""

    position: int
    token: int
    difference: float
    difference_float64: float
    bound: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """All tokens; `verdict` is the worst of theirs.

    `print` gives the verdict, then a table of the tokens whose logits are wrong.
    """

    rows: tuple[Row, ...]
    dtype: str

    @property
    def verdict(self) -> str:
        return max((row.verdict for row in self.rows), key=GRADES.index, default="identical")

    @property
    def first_wrong(self) -> int | None:
        """The first position whose logits differ by more than rounding."""
        return next((row.position for row in self.rows if row.verdict == "bug"), None)

    def __str__(self) -> str:
        wrong = [row for row in self.rows if row.verdict == "bug"]
        if not wrong:
            return self.sentence
        double = self.dtype == "float64"
        own = "" if double else f"  {self.dtype + ' (not judged)':>20}"
        lines = [f"{'position':>8}  {'token':>6}{own}  {'float64 (bound)':>20}"]
        for row in wrong:
            own = "" if double else f"  {row.difference:>20.2e}"
            judged = f"{row.difference_float64:.2e} ({row.bound:.1e})"
            lines.append(f"{row.position:>8}  {row.token:>6}{own}  {judged:>20}")
        return "\n".join([self.sentence, *lines])

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        worst = max((row.difference for row in self.rows), default=0.0)
        if self.verdict == "identical":
            return f"identical: with and without the cache, every logit of {len(self.rows)} tokens is the same number."
        if self.verdict == "rounding":
            return (
                f"rounding: logits with and without the cache differ by at most {worst:.2e} in {self.dtype}, and by "
                "less than the bound in float64."
            )
        return (
            f"bug: from position {self.first_wrong} on, logits with and without the cache differ by more than "
            "rounding can explain."
        )


def check_cache(model: Model, ids: Tensor, chunk: int = 1) -> Comparison:
    """Compare the logits of ids ~ (T,), read `chunk` tokens at a time through a cache, with those of one whole pass.

    Raises ShapeError for ids that are not one row of 1 to `context` tokens, NumericError where the logits without a
    cache are not finite: then there is nothing to compare with.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> check_cache(model, torch.tensor([1, 2, 3])).verdict in ("identical", "rounding")
    True
    """
    if ids.ndim != 1 or not 0 < len(ids) <= model.config.context or chunk < 1:
        raise ShapeError(
            f"the cache is checked over one row of 1 to {model.config.context} ids (the context), in chunks of at "
            f"least 1; found {tuple(ids.shape)} and a chunk of {chunk}"
        )
    own, size = differences(model, ids[None], chunk)
    computed_in = (model.shadow or model.params).flat.dtype
    exact = model.moved(torch.float64)
    double, size = (own, size) if computed_in == torch.float64 else differences(exact, ids[None], chunk)
    if not all(map(isfinite, size)):
        at = next(t for t, largest in enumerate(size) if not isfinite(largest))
        raise NumericError(
            f"the cache cannot be checked: without it, the logits at position {at} are not finite{damaged(model)}"
        )
    rows = []
    for t, token in enumerate(ids.tolist()):
        bound = BOUND * max(1.0, size[t])
        # NaN compares false with everything, so the test is for what is right.
        verdict = "identical" if own[t] == 0 == double[t] else "rounding" if double[t] <= bound else "bug"
        rows.append(Row(t, token, own[t], double[t], bound, verdict))
    return Comparison(tuple(rows), str(computed_in).removeprefix("torch."))


def damaged(model: Model) -> str:
    """The parameters that are not finite, as the end of a sentence; empty where all are."""
    names = [name for name, p in model.params.items() if not bool(p.isfinite().all())]
    more = f", as {len(names) - 1} more are" if len(names) > 1 else ""
    return f": the parameter {names[0]} is not{more}. The model's file is at fault" if names else ""


def differences(model: Model, tokens: Tensor, chunk: int) -> tuple[list[float], list[float]]:
    """Of each token: the largest |difference| of its logits, and the largest |logit|."""
    whole = model(tokens, Run(implementation=model.run.implementation))[0]
    cache = KVCache(tokens.shape[1])
    pieces = [
        model(piece, Run(implementation=model.run.implementation, cache=cache, position=cache.length))[0]
        for piece in torch.split(tokens, chunk, dim=1)
    ]
    return (torch.cat(pieces) - whole).abs().amax(-1).tolist(), whole.abs().amax(-1).tolist()
