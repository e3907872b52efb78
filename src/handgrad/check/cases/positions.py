"""Rotary, sinusoidal and ALiBi positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from handgrad.check import references as general
from handgrad.check import references_positions as references
from handgrad.check.case import Applied, B, C, Case, H, T, stream
from handgrad.core import Run
from handgrad.core.params import Slot, Tree
from handgrad.layers.frequencies import LinearScaling, Llama3, NTKAware
from handgrad.layers.mask import lower
from handgrad.layers.rope import Alibi, Rotary, Sinusoidal
from handgrad.rules.alibi import ALIBI, slopes
from handgrad.rules.attend import ATTEND
from handgrad.rules.rope import INTERLEAVED

D = 14  # 2·7: pairs need an even width
queries = ((B, H, T, D),)
scores = ((B, H, T, T),)
llama = Llama3(factor=8.0, low=1.0, high=4.0, original=97, base=10_000.0)


@dataclass(frozen=True)
class TurnedAttention:
    """attend(q R, k R, v): how a layer of many heads uses `Rotary`, on q and on k after cutting heads."""

    rotary: Rotary
    allowed: Tensor

    def slots(self) -> dict[str, Slot]:
        return {}

    def forward(self, p: Tree, a: Any, run: Run) -> tuple[Tensor, Any]:
        q, k, v = a
        q, saved_q = self.rotary.forward(p, q, run)
        k, saved_k = self.rotary.forward(p, k, run)
        y, saved_attend = ATTEND.forward(q, k, v, self.allowed, run=run)
        return y, (saved_q, saved_k, saved_attend)

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Any, run: Run) -> tuple[Tensor, Tensor, Tensor]:
        saved_q, saved_k, saved_attend = saved
        Delta_q, Delta_k, Delta_v = ATTEND.backward(Delta, saved_attend, run)
        Delta_q = self.rotary.backward(p, Delta_q, saved_q, grads, run)
        Delta_k = self.rotary.backward(p, Delta_k, saved_k, grads, run)
        return Delta_q, Delta_k, Delta_v


CASES = (
    Case("rotary half-split", Rotary(D), queries, lambda p, a: references.rotary(a, 0, False), "rope"),
    Case(
        "rotary interleaved, after 3 tokens",
        Rotary(D, pairing=INTERLEAVED),
        queries,
        lambda p, a: references.rotary(a, 3, True),
        run=Run(position=3),
    ),
    Case(
        "rotary on the stream, linear scaling",
        Rotary(D, LinearScaling(5.0)),
        ((B, T, D),),
        lambda p, a: references.rotary(a, 0, False, tuple(10_000.0 ** (-i / 7) / 5 for i in range(7))),
        causal=True,
    ),
    Case(
        "rotary, NTK-aware, far out",
        Rotary(D, NTKAware(3.0)),
        queries,
        lambda p, a: references.rotary(a, 701, False, tuple((10_000.0 * 3 ** (14 / 12)) ** (-i / 7) for i in range(7))),
        run=Run(position=701),
    ),
    Case(
        "rotary, llama3, far out",
        Rotary(D, llama, INTERLEAVED),
        queries,
        lambda p, a: references.rotary(a, 701, True, llama.frequencies(D)),
        run=Run(position=701),
    ),
    Case(
        "rotary, samples padded on the left",
        Rotary(D),
        queries,
        lambda p, a: torch.cat([references.rotary(x[None], t, False) for x, t in zip(a, (-2, 1), strict=True)]),
        samplewise=False,
        run=Run(position=torch.tensor([-2, 1])),
    ),
    Case(
        "attend with rotary positions",
        TurnedAttention(Rotary(D), lower(T, T, 0, "cpu")),
        ((B, H, T, D), (B, H, T, D), (B, H, T, 11)),
        lambda p, a: general.attend_rows(
            (references.rotary(a[0], 2, False), references.rotary(a[1], 2, False), a[2]), lower(T, T, 0, "cpu")
        ),
        run=Run(position=2),
    ),
    Case(
        "sinusoidal",
        Sinusoidal(C),
        stream,
        lambda p, a: references.sinusoidal(a, 2),
        "sinusoidal",
        causal=True,
        run=Run(position=2),
    ),
    Case("alibi", Alibi(H), scores, lambda p, a: references.alibi(a, [1 / 16, 1 / 256, 1 / 4], 0), "alibi"),
    Case(
        "alibi after a cache",
        Applied(ALIBI, (slopes(H),)),
        ((B, H, 3, T),),
        lambda p, a: references.alibi(a, [1 / 16, 1 / 256, 1 / 4], 2),
    ),
)
