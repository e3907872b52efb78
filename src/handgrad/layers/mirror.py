"""Mirror attention: the same head read by columns. A token is looked up by its key, and answered through the queries.

raw = q kᵗ as before, but each *column* is normalised and used: a_h(β) = Σ_{α ≤ β} softmax_α(q_α·k_β/√d_ρ) v_α.
The parts of q and k are exchanged, so what has to be kept of earlier tokens is q and v instead of k and v: a QV cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run
from handgrad.layers.head import Head
from handgrad.layers.mask import Bound
from handgrad.rules.attend import ATTEND


@dataclass(frozen=True)
class Mirror:
    """`head` with queries and keys exchanged; its parameters keep their names. Signals of the exchanged attention are
    shown under `mirror`: there `q` is what the keys' branch gives.

    >>> sorted(Mirror(Head(6, 3, 2)).slots()) == sorted(Head(6, 3, 2).slots())
    True
    """

    head: Head

    def slots(self) -> dict[str, Slot]:
        return self.head.branches.slots()

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        branches, saved_in = self.head.branches.forward(p, a, run)
        q, k, v = (y.unsqueeze(1) for y in branches)
        if run.cache is not None:
            q, v = run.cache.extend(run.path, q, v)
        allowed = Bound(self.head.mask, k.shape[-2], q.shape[-2], run.position, q.device)
        out, saved_attend = ATTEND.forward(k, q, v, allowed, run=run / "mirror")
        return out.squeeze(1), [saved_in, saved_attend]

    def backward(self, p: Tree, Delta: Tensor, saved: list[Any], grads: Gradients, run: Run) -> Tensor:
        Delta_k, Delta_q, Delta_v = ATTEND.backward(Delta.unsqueeze(1), saved.pop(), run / "mirror")
        Deltas = tuple(D.squeeze(1) for D in (Delta_q, Delta_k, Delta_v))
        return self.head.branches.backward(p, Deltas, saved.pop(), grads, run)
