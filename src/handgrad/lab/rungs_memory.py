"""Rungs with a memory, and what is left when recurrence goes: weights for each pair, which still have to come from
somewhere."""

from __future__ import annotations

from handgrad.core.combine import Chain
from handgrad.core.layer import Layer
from handgrad.lab.rung import LEARNED, NONE, Ladder, Sizes
from handgrad.layers import rungs as make
from handgrad.layers.mixing import FixedWeights
from handgrad.layers.recurrent import growing_memory
from handgrad.layers.recurrent import lstm as lstm_layer
from handgrad.layers.recurrent import rnn as rnn_layer
from handgrad.rules.tanh import TANH

MEMORY = Ladder()


@MEMORY.rung(
    "rnn",
    title="Two-layer RNN",
    question="How much can a state of fixed size remember?",
    before="",
    formula=r"h_t = \tanh(x_t W_x + h_{t-1} W_h + b)",
    positions=NONE,
    state=lambda s: s.width,
)
def rnn(s: Sizes) -> Layer:
    unit = rnn_layer(s.width, s.width, s.std)
    return s.stack(Chain({"recurrent": unit}))


@MEMORY.rung(
    "lstm",
    title="LSTM",
    question="Do gates make a state of fixed size enough?",
    before="rnn",
    formula=r"c_t = f_t \circ c_{t-1} + i_t \circ g_t, \quad h_t = o_t \circ \tanh(c_t)",
    positions=NONE,
    state=lambda s: 2 * s.width,
)
def lstm(s: Sizes) -> Layer:
    unit = lstm_layer(s.width, s.width, s.std)
    return s.stack(Chain({"recurrent": unit}))


@MEMORY.rung(
    "memory",
    title="RNN with growing memory",
    question="Does it help to keep every earlier state, and read them all?",
    before="rnn",
    formula=r"h_t = \tanh\left(\left[x_t, \sum_{u<t} \rho_{tu} h_u\right] W_x + h_{t-1} W_h + b\right)",
    positions=NONE,
    kept=lambda s: s.width,
)
def memory(s: Sizes) -> Layer:
    unit = growing_memory(s.width, s.width, s.hidden, s.std)
    return s.stack(Chain({"recurrent": unit}))


@MEMORY.rung(
    "fixed",
    title="No recurrence, fixed weights",
    question="Can each pair of positions have one learned matrix?",
    before="memory",
    formula=r"o_\alpha = \sum_{\beta \le \alpha} x_\beta W_{\alpha\beta}",
    positions=NONE,
    kept=lambda s: s.width,
)
def fixed(s: Sizes) -> Layer:
    mixing = FixedWeights(s.context, s.width, s.std)
    return s.stack(make.unit(mixing, TANH))


@MEMORY.rung(
    "source_only",
    title="Weights from the source alone",
    question="Is it enough that a weight is a function of what is read?",
    before="fixed",
    formula=r"W_{\alpha\beta} = \sum_j f_j(x_\beta) V_j",
    positions=LEARNED,
    kept=lambda s: s.width,
)
def source_only(s: Sizes) -> Layer:
    mixing = make.source_only(s.width, s.functions, std=s.std)
    return s.stack(make.unit(mixing, TANH))


@MEMORY.rung(
    "self_only",
    title="Weights for oneself alone",
    question="Is it enough to break the symmetry?",
    before="source_only",
    formula=r"W_{\alpha\beta} = 0 \; \text{unless} \; \alpha = \beta",
    positions=LEARNED,
    reads=False,
)
def self_only(s: Sizes) -> Layer:
    mixing = make.self_only(s.width, s.functions, s.std)
    return s.stack(make.unit(mixing, TANH))
