"""Planted: rotary, sinusoidal and ALiBi positions."""

from handgrad.check.cases import positions as cases
from handgrad.check.plant import Mistake
from handgrad.layers import frequencies
from handgrad.layers import rope as layer
from handgrad.rules import alibi, rope, sinusoidal

half, inter = "rotary half-split", "rotary interleaved, after 3 tokens"

MISTAKES = (
    Mistake("turned further, not back", rope.backward, "D_second * sin", "-D_second * sin", half, "Delta below"),
    Mistake("the other pair member dropped", rope.backward, " - D_first * sin", "", half, "Delta below"),
    Mistake("not turned back at all", rope.backward, "D_first * cos +", "D_first +", inter, "Delta below"),
    Mistake(
        "interleaved back, half-split forward",
        rope.backward,
        "return pairing.join",
        "return join_interleaved",
        half,
        "Delta below",
    ),
    Mistake(
        "keys' errors left turned",
        cases.TurnedAttention.backward,
        "return Delta_q, Delta_k",
        "return Delta_q, ATTEND.backward(Delta, saved_attend, run)[1]",
        "attend with rotary positions",
        "Delta below 1",
    ),
    Mistake("turned the other way", rope.forward, "phi.sin()", "(-phi).sin()", half, "forward"),
    Mistake(
        "halves for neighbours",
        rope.cut_interleaved,
        "x[..., 0::2], x[..., 1::2]",
        "x.chunk(2, -1)",
        inter,
        "forward",
    ),
    Mistake(
        "positions from 0 after a cache",
        layer.Rotary.forward,
        "positions(run.position,",
        "positions(0,",
        inter,
        "forward",
    ),
    Mistake("one angle too slow", frequencies.plain, "-2 * i / width", "-2 * (i + 1) / width", half, "forward"),
    Mistake(
        "scaling left out",
        frequencies.LinearScaling.frequencies,
        "omega / self.factor",
        "omega",
        "rotary on the stream, linear scaling",
        "forward",
    ),
    Mistake(
        "NTK's exponent",
        frequencies.NTKAware.frequencies,
        "(width / (width - 2))",
        "1",
        "rotary, NTK-aware, far out",
        "forward",
    ),
    Mistake(
        "sine and cosine swapped",
        sinusoidal.table,
        "(phi.sin(), phi.cos())",
        "(phi.cos(), phi.sin())",
        "sinusoidal",
        "forward",
    ),
    Mistake("taken away", sinusoidal.forward, "a + S", "a - S", "sinusoidal", "forward"),
    Mistake(
        "positions from 0", layer.Sinusoidal.forward, "positions(run.position,", "positions(0,", "sinusoidal", "forward"
    ),
    Mistake("half the Delta", sinusoidal.backward, "return Delta", "return Delta / 2", "sinusoidal", "Delta below"),
    Mistake(
        "the table's own error added",
        sinusoidal.backward,
        "return Delta",
        "return Delta + 1.0",
        "sinusoidal",
        "Delta below",
    ),
    Mistake("nearer is worse", alibi.forward, "raw + bias", "raw - bias", "alibi", "forward"),
    Mistake("scores of later keys raised", alibi.forward, ".clamp(max=0)", "", "alibi", "forward"),
    Mistake(
        "queries from 0",
        alibi.forward,
        "torch.arange(S - T, S,",
        "torch.arange(0, T,",
        "alibi after a cache",
        "forward",
    ),
    Mistake("8 heads' slopes", alibi.slopes, "-8 * h / n)", "-h)", "alibi", "forward"),
    Mistake(
        "Delta scaled by the distance",
        alibi.backward,
        '"Delta_biased", Delta)',
        '"Delta_biased", Delta / 2)',
        "alibi",
        "Delta_biased",
    ),
)
