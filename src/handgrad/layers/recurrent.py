"""Recurrent layers: a state is carried from token to token, fixed in size or growing.

Each is a `Scan` of a cell. Two of them, stacked, are a `Chain`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from handgrad.core.combine import inside
from handgrad.core.gradients import Gradients
from handgrad.core.params import Slot, Tree, prefixed
from handgrad.core.run import Run
from handgrad.core.scan import Scan, State
from handgrad.layers.scores import Additive
from handgrad.rules import lstm as lstm_rule
from handgrad.rules import rnn as rnn_rule
from handgrad.rules.weights_mix import MIX
from handgrad.rules.weights_normalise import SOFTMAX


@dataclass(frozen=True)
class RNNCell:
    """h = tanh(x w_x + h_before w_h + b); the state is h ~ (B, width), which is also the output."""

    n_in: int
    width: int
    std: float = 0.02

    def slots(self) -> dict[str, Slot]:
        n = self.width
        return {"w_x": Slot((self.n_in, n), self.std), "w_h": Slot((n, n), self.std), "b": Slot((n,))}

    def start(self, a: Tensor) -> State:
        return (a.new_zeros(a.shape[0], self.width),)

    def forward(self, p: Tree, x: Tensor, state: State, run: Run) -> tuple[Tensor, State, rnn_rule.Saved]:
        h, saved = rnn_rule.forward(x, state[0], p["w_x"], p["w_h"], p["b"], run)
        return h, (h,), saved

    def backward(
        self, p: Tree, Delta: Tensor, Delta_state: State, saved: rnn_rule.Saved, grads: Gradients, run: Run
    ) -> tuple[Tensor, State]:
        Delta_x, Delta_h = rnn_rule.backward(Delta, Delta_state[0], saved, p["w_x"], p["w_h"], grads, run)
        return Delta_x, (Delta_h,)


@dataclass(frozen=True)
class LSTMCell:
    """Gates i, f, o, g in this order; the state is (h, c), each ~ (B, width), and the output is h."""

    n_in: int
    width: int
    std: float = 0.02

    def slots(self) -> dict[str, Slot]:
        n = 4 * self.width
        return {"w_x": Slot((self.n_in, n), self.std), "w_h": Slot((self.width, n), self.std), "b": Slot((n,))}

    def start(self, a: Tensor) -> State:
        empty = a.new_zeros(a.shape[0], self.width)
        return empty, empty

    def forward(self, p: Tree, x: Tensor, state: State, run: Run) -> tuple[Tensor, State, lstm_rule.Saved]:
        h, c, saved = lstm_rule.forward(x, *state, p["w_x"], p["w_h"], p["b"], run)
        return h, (h, c), saved

    def backward(
        self, p: Tree, Delta: Tensor, Delta_state: State, saved: lstm_rule.Saved, grads: Gradients, run: Run
    ) -> tuple[Tensor, State]:
        Delta_x, *below = lstm_rule.backward(Delta, *Delta_state, saved, p["w_x"], p["w_h"], grads, run)
        return Delta_x, tuple(below)


@dataclass(frozen=True)
class MemoryCell:
    """An RNN step that also reads every earlier state, by additive attention: nothing is written over.

    ρ = softmax(additive(h_before, memory))        context = ρ memory        h = RNN([x, context], h_before)

    The state is the memory of all states so far, (B, t, width); its error has one row for each of them, and every later
    token adds to it. The first token has nothing to read, and its context is 0.
    """

    n_in: int
    width: int
    hidden: int
    std: float = 0.02

    @cached_property
    def step(self) -> RNNCell:
        return RNNCell(self.n_in + self.width, self.width, self.std)

    @cached_property
    def score(self) -> Additive:
        return Additive(self.width, self.hidden, 1, self.std)

    def slots(self) -> dict[str, Slot]:
        return self.step.slots() | prefixed({"score": self.score.slots()})

    def start(self, a: Tensor) -> State:
        return (a.new_zeros(a.shape[0], 0, self.width),)

    def forward(self, p: Tree, x: Tensor, state: State, run: Run) -> tuple[Tensor, State, Any]:
        (memory,) = state
        if memory.shape[1]:
            h_before = memory[:, -1]
            context, read = self.read(p, h_before, memory, run)
        else:
            h_before = context = x.new_zeros(x.shape[0], self.width)
            read = None
        h, _, saved = self.step.forward(p, torch.cat((x, context), -1), (h_before,), run)
        return h, (torch.cat((memory, h.unsqueeze(1)), 1),), (read, saved)

    def read(self, p: Tree, h_before: Tensor, memory: Tensor, run: Run) -> tuple[Tensor, Any]:
        score, scored = self.score.pairs(inside(p, "score"), (h_before.unsqueeze(1), memory), quiet(run))
        rho, weighed = SOFTMAX.forward(score, None, run=run)  # (B, 1, 1, t)
        mixed, mixing = MIX.forward(rho, memory.unsqueeze(1), run=quiet(run))  # (B, 1, 1, width)
        return run.show("context", mixed[:, 0, 0]), (scored, weighed, mixing)

    def backward(
        self, p: Tree, Delta: Tensor, Delta_state: State, saved: Any, grads: Gradients, run: Run
    ) -> tuple[Tensor, State]:
        read, saved = saved
        Delta_memory, carried = Delta_state[0][:, :-1], Delta_state[0][:, -1]  # of  cat(memory, h)
        Delta_both, (Delta_h,) = self.step.backward(p, Delta, (carried,), saved, grads, run)
        Delta_x, Delta_context = Delta_both.split((self.n_in, self.width), -1)  # of  cat(x, context)
        if read is None:
            return Delta_x, (Delta_memory,)
        Delta_query, Delta_read = self.unread(p, Delta_context, read, grads, run)
        Delta_last = (Delta_h + Delta_query).unsqueeze(1)  # of  memory[:, -1], read as h_before and as the query
        return Delta_x, (torch.cat((Delta_memory[:, :-1], Delta_memory[:, -1:] + Delta_last), 1) + Delta_read,)

    def unread(self, p: Tree, Delta: Tensor, read: Any, grads: Gradients, run: Run) -> tuple[Tensor, Tensor]:
        scored, weighed, mixing = read
        Delta = run.show("Delta_context", Delta)
        Delta_rho, Delta_values = MIX.backward(Delta[:, None, None], mixing, quiet(run))  # of  rho @ memory
        Delta_score = SOFTMAX.backward(Delta_rho, weighed, run)
        Delta_query, Delta_keys = self.score.unpairs(
            inside(p, "score"), Delta_score, scored, grads / "score", quiet(run)
        )
        return Delta_query.squeeze(1), Delta_values.squeeze(1) + Delta_keys  # of  memory, read as values and as keys


def rnn(n_in: int, width: int, std: float = 0.02) -> Scan:
    """a ~ (B, T, n_in) -> (B, T, width), by `RNNCell`.

    >>> rnn(3, 2).slots()["w_h"].shape
    (2, 2)
    """
    return Scan(RNNCell(n_in, width, std))


def lstm(n_in: int, width: int, std: float = 0.02) -> Scan:
    """a ~ (B, T, n_in) -> (B, T, width), by `LSTMCell`.

    >>> lstm(3, 2).slots()["w_h"].shape
    (2, 8)
    """
    return Scan(LSTMCell(n_in, width, std))


def growing_memory(n_in: int, width: int, hidden: int, std: float = 0.02) -> Scan:
    """a ~ (B, T, n_in) -> (B, T, width), by `MemoryCell`; `hidden` is the width of the additive score.

    >>> growing_memory(3, 2, 5).slots()["w_x"].shape
    (5, 2)
    """
    return Scan(MemoryCell(n_in, width, hidden, std))


def quiet(run: Run) -> Run:
    """The same pass, shown to nobody: where one state is read, ρ = 1 whatever its score is."""
    return replace(run, signals=None)
