"""A layer that walks along the tokens: a cell, applied once a token, with a state carried from one to the next.

Token t sits at the path `t.`: the signals of its cell are `0.h`, `1.h`, …, each with the error of *everything* that
reads it, later tokens included. The parameters are the same at every token, so their gradients add.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from handgrad.core.gradients import Gradients, Unfinished
from handgrad.core.params import Slot, Tree
from handgrad.core.run import Run

State = tuple[Tensor, ...]


class Cell(Protocol):
    """One token's step, up and down.

    slots()                                                  names -> shapes of the parameters
    start(a)                                                 the state before the first token of a ~ (B, T, n_in)
    forward(p, x, state, run)                                -> (y, state', saved), x ~ (B, n_in)
    backward(p, Delta, Delta_state, saved, grads, run)       -> (Delta of x, Delta of state)

    Delta is the error of y, Delta_state that of state', in the shapes of its parts. What y and state' have in common
    receives both.
    """

    def slots(self) -> dict[str, Slot]: ...

    def start(self, a: Tensor) -> State: ...

    def forward(self, p: Tree, x: Tensor, state: State, run: Run) -> tuple[Tensor, State, Any]: ...

    def backward(
        self, p: Tree, Delta: Tensor, Delta_state: State, saved: Any, grads: Gradients, run: Run
    ) -> tuple[Tensor, State]: ...


@dataclass(frozen=True)
class Scan:
    """a ~ (B, T, n_in) -> (B, T, n): token after token, and back again.

    y_t, state_t = cell(x_t, state_{t-1})                             t = 0 … T-1
    Δ_x_t, Δ_state_{t-1} = cell*(Δ_t, Δ_state_t)                      t = T-1 … 0, from Δ_state_{T-1} = 0

    The reversed loop is what is called backpropagation through time. It keeps what every token's cell saved, so memory
    grows with T, and its T steps cannot be taken at the same time.
    """

    cell: Cell

    def slots(self) -> dict[str, Slot]:
        return self.cell.slots()

    def forward(self, p: Tree, a: Tensor, run: Run) -> tuple[Tensor, Any]:
        state, outputs, saved = self.cell.start(a), [], []
        for t, x in enumerate(a.unbind(1)):
            y, state, kept = self.cell.forward(p, x, state, run / str(t))
            outputs.append(y)
            saved.append(kept)
        return torch.stack(outputs, 1), [saved, state]

    def backward(self, p: Tree, Delta: Tensor, saved: Any, grads: Gradients, run: Run) -> Tensor:
        saved, last = saved
        below: list[Tensor] = []
        Delta_state = tuple(torch.zeros_like(s) for s in last)  # nothing reads the last state
        for t, Delta_y in reversed(list(enumerate(Delta.unbind(1)))):
            Delta_x, Delta_state = self.cell.backward(
                p, Delta_y, Delta_state, saved[t], Unfinished(grads), run / str(t)
            )
            below.append(Delta_x)
        return torch.stack(below[::-1], 1)
