"""Embeddings, positions, losses by hand: the numbers of docs/rules, published values, checks that can fail."""

import math

import pytest
import torch

from handgrad.check import numeric_positions as numeric
from handgrad.check.plant import Mistake, planted
from handgrad.check.report import LawBroken
from handgrad.core import Accumulate, Run
from handgrad.core.errors import ConfigError, ShapeError, UnknownName
from handgrad.layers import rope as layers_rope
from handgrad.layers.frequencies import LinearScaling, Llama3, NTKAware, Plain, scaling
from handgrad.layers.rope import Alibi, Rotary, Sinusoidal, positions
from handgrad.rules import alibi, crossentropy, embed, rope, sinusoidal, smoothed, unembed, zloss
from handgrad.rules.fused import headloss_chunked
from handgrad.rules.rope import HALF_SPLIT, INTERLEAVED, PAIRINGS


def close(found, right, tolerance=1e-8):
    right = torch.as_tensor(right, dtype=torch.float64)
    assert found.shape == right.shape
    assert (found - right).abs().max() <= tolerance, found


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


def test_embedding_of_the_docs():
    ids, w = torch.tensor([2, 0, 2]), f64([1, 0], [0, 1], [2, 3])
    a, saved = embed.forward(ids, w)
    close(a, [[2, 3], [1, 0], [2, 3]], 0)
    g = zeros(3, 2)
    embed.backward("w", f64([1, 2], [3, 4], [5, 6]), saved, Accumulate({"w": g}))
    close(g, [[3, 4], [0, 0], [6, 8]], 0)


def test_learned_positions_of_the_docs_add_over_the_batch():
    w, g = f64([1, 0], [0, 1], [7, 7]), zeros(3, 2)
    a, saved = embed.forward(torch.arange(2), w)
    close(a, [[1, 0], [0, 1]], 0)
    embed.backward("w", f64([[1, 2], [3, 4]], [[10, 20], [30, 40]]), saved, Accumulate({"w": g}))
    close(g, [[11, 22], [33, 44], [0, 0]], 0)


def test_tied_logits_of_the_docs():
    w, a, g = f64([1, 0], [0, 1], [2, 3]), f64([1, 1], [0, 2]), zeros(3, 2)
    logits, saved = unembed.forward(a, w)
    close(logits, [[1, 1, 5], [0, 2, 6]], 0)
    below = unembed.backward(f64([1, 0, 0], [0, 0, 1]), saved, w, Accumulate({"w_emb": g}))
    close(below, [[1, 0], [2, 3]], 0)
    close(g, [[1, 1], [0, 0], [0, 2]], 0)


def test_sinusoidal_table_of_the_docs():
    table = sinusoidal.table(torch.arange(3), 4, 10_000.0)
    close(
        table,
        [
            [0, 1, 0, 1],
            [0.84147098, 0.54030231, 0.00999983, 0.99995000],
            [0.90929743, -0.41614684, 0.01999867, 0.99980001],
        ],
    )
    close(
        sinusoidal.table(torch.arange(3), 3, 10_000.0), sinusoidal.table(torch.arange(3), 4, 10_000.0 ** (4 / 3))[:, :3]
    )


def test_sinusoidal_positions_of_padded_samples():
    a = zeros(2, 3, 4)
    y, _ = Sinusoidal(4).forward({}, a, Run(position=torch.tensor([-1, 5])))
    close(y[0], sinusoidal.table(torch.tensor([-1, 0, 1]), 4, 10_000.0), 0)
    close(y[1], sinusoidal.table(torch.tensor([5, 6, 7]), 4, 10_000.0), 0)


def test_rotary_values_of_case_a10():
    x = f64([[1, 2, 3, 4]])
    for pairing, right in (
        (INTERLEAVED, [-1.14264, 1.92208, 2.95985, 4.02980]),
        (HALF_SPLIT, [-1.98411, 1.95990, 2.46238, 4.01980]),
    ):
        y, saved = Rotary(4, pairing=pairing).forward({}, x, Run(position=1))
        close(y[0, 0], right, 5e-6)
        back = rope.backward(y, saved[1], Run())
        close(back, x, 1e-15)
    assert torch.equal(Rotary(4).forward({}, x, Run())[0], x)  # position 0 tells nothing


def test_rotary_of_the_docs():
    """At position 1 the first pair makes a quarter turn, the second none; half-split pairs are (1, 3) and (2, 4)."""
    phi = f64([0, 0], [math.pi / 2, 0])
    y, saved = rope.forward(f64([1, 2, 3, 4], [1, 2, 3, 4]), phi, HALF_SPLIT, Run())
    close(y, [[1, 2, 3, 4], [-3, 2, 1, 4]], 1e-15)
    close(rope.backward(f64([1, 0, 0, 0], [1, 0, 0, 1]), saved, Run()), [[1, 0, 0, 0], [0, 0, -1, 1]], 1e-15)
    y, saved = rope.forward(f64([1, 2, 3, 4], [1, 2, 3, 4]), phi, INTERLEAVED, Run())
    close(y, [[1, 2, 3, 4], [-2, 1, 3, 4]], 1e-15)
    close(rope.backward(f64([1, 0, 0, 0], [1, 0, 0, 1]), saved, Run()), [[1, 0, 0, 0], [0, -1, 0, 1]], 1e-15)


def test_rotary_refuses_an_odd_width_in_case_a08():
    with pytest.raises(ConfigError, match=r"a head of width 5 cannot be cut into pairs: .* turn 2 features.* 4 or 6"):
        Rotary(5)
    with pytest.raises(ConfigError, match="a head of width 0 "):
        Rotary(0)
    with pytest.raises(ShapeError, match="made for heads of width 4, found 6"):
        Rotary(4).forward({}, zeros(1, 2, 6), Run())
    assert set(PAIRINGS) == {"interleaved", "half-split"}


def test_rotary_token_by_token_is_rotary_at_once_far_out_in_case_a13():
    x = torch.randn(1, 2, 603, 8, generator=torch.Generator().manual_seed(0)).double()
    for how in (Plain(), LinearScaling(4.0), NTKAware(2.0), Llama3(original=512)):
        f = Rotary(8, how)
        whole = f.forward({}, x, Run())[0]
        for chunk in (1, 7):
            parts = [f.forward({}, x[:, :, t : t + chunk], Run(position=t))[0] for t in range(0, 603, chunk)]
            assert torch.equal(torch.cat(parts, -2), whole)
        assert (whole - Rotary(8).forward({}, x, Run())[0]).abs().max() > 0.5 or how == Plain()


def transformers_frequencies(kind, values, width, seq_len=None, base=10_000.0):
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=width * 2,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": kind, "rope_theta": base, **values},
    )
    return utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=seq_len)[0].double()


def test_scalings_are_those_of_transformers():
    llama = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    short = {**llama, "factor": 32.0, "original_max_position_embeddings": 100}
    for ours, theirs in (
        (LinearScaling(3.0), transformers_frequencies("linear", {"factor": 3.0}, 128)),
        # the dynamic form at twice the trained length and factor f is the fixed one at f + 1
        (NTKAware(4.0), transformers_frequencies("dynamic", {"factor": 3.0}, 128, seq_len=128)),
        (Llama3(), transformers_frequencies("llama3", llama, 128, base=500_000.0)),
        (Llama3(32.0, original=100, base=1e4), transformers_frequencies("llama3", short, 128)),
    ):
        found = torch.tensor(ours.frequencies(128), dtype=torch.float64)
        assert ((found - theirs) / theirs).abs().max() < 1e-6, ours  # theirs are in float32
        assert ((found - torch.tensor(Plain(ours.base).frequencies(128))) / theirs).abs().max() > 0.1


def test_llama3_blends_between_its_two_waves():
    f = Llama3(factor=8.0, low=1.0, high=4.0, original=100)
    turns = lambda n: n * 2 * math.pi / 100  # noqa: E731
    assert f.slowed(turns(5.0)) == turns(5.0)
    assert f.slowed(turns(0.5)) == turns(0.5) / 8
    assert f.slowed(turns(2.5)) == pytest.approx(turns(2.5) * (0.5 + 0.5 / 8), rel=1e-14)


def test_unknown_scalings_and_settings_are_refused():
    assert scaling("llama3", {"factor": 2.0}) == Llama3(factor=2.0)
    with pytest.raises(UnknownName, match="no rotary scaling named 'lama3'; did you mean 'llama3'"):
        scaling("lama3", {})
    with pytest.raises(
        UnknownName, match="no setting of the rotary scaling linear named 'facto'; did you mean 'factor'"
    ):
        scaling("linear", {"facto": 2.0})
    with pytest.raises(ConfigError, match="the rotary scaling ntk needs its factor, found none"):
        scaling("ntk", {})
    with pytest.raises(ConfigError, match="factor is 0 in the rotary scaling LinearScaling, and must be above 0"):
        LinearScaling(0)
    with pytest.raises(ConfigError, match=r"between 4.0 and 4.0 waves"):
        Llama3(low=4.0)
    with pytest.raises(ConfigError, match="needs heads of width 4 or more, found 2"):
        NTKAware(2.0).frequencies(2)


def test_alibi_of_the_docs():
    raw = zeros(1, 2, 2, 3)  # the third key is the second query's own token
    biased, saved = Alibi(2).forward({}, raw, Run())
    close(biased[0, 0], [[-1 / 16, 0, 0], [-2 / 16, -1 / 16, 0]], 0)
    close(biased[0, 1], [[-1 / 256, 0, 0], [-2 / 256, -1 / 256, 0]], 0)
    Delta = torch.randn(1, 2, 2, 3).double()
    assert torch.equal(Alibi(2).backward({}, Delta, saved, Accumulate({}), Run()), Delta)


def test_alibi_slopes_are_the_published_ones():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    for heads in (1, 2, 3, 8, 12, 16, 20):
        theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].double()
        close(alibi.slopes(heads), theirs, 1e-7)


def test_alibi_in_half_precision_keeps_far_keys_apart():
    biased = alibi.forward(torch.zeros(1, 8, 1, 600).bfloat16(), alibi.slopes(8), Run())[0]
    exact = alibi.forward(torch.zeros(1, 8, 1, 600).double(), alibi.slopes(8), Run())[0]
    assert torch.equal(biased, exact.bfloat16())


def test_positions_of_padded_samples():
    assert positions(3, 2).tolist() == [3, 4]
    assert positions(torch.tensor([-1, 3]), 2).tolist() == [[-1, 0], [3, 4]]


LOGITS, Y = f64([0, math.log(2), 0], [0, 0, 0]), torch.tensor([1, 0])
ONE = torch.ones((), dtype=torch.float64)


def test_cross_entropy_of_the_docs():
    loss, saved = crossentropy.forward(LOGITS, Y, Y >= 0, 2, Run())
    close(loss, (math.log(2) + math.log(3)) / 2, 1e-15)
    close(loss, 0.8958797346)
    close(crossentropy.backward(ONE, saved, Run()), [[1 / 8, -1 / 4, 1 / 8], [-1 / 3, 1 / 6, 1 / 6]], 1e-15)


def test_smoothing_of_the_docs():
    loss, saved = smoothed.forward(LOGITS, Y, Y >= 0, 2, 0.3, Run())
    close(loss, (0.8 * math.log(2) + 0.2 * math.log(4) + math.log(3)) / 2, 1e-12)
    close(loss, 0.9651944527)
    close(smoothed.backward(ONE, saved, Run()), [[0.075, -0.15, 0.075], [-7 / 30, 7 / 60, 7 / 60]], 1e-12)


def test_z_loss_of_the_docs():
    loss, saved = zloss.forward(LOGITS, Y >= 0, 2, 0.1, Run())
    close(loss, 0.05 * (math.log(4) ** 2 + math.log(3) ** 2), 1e-15)
    close(loss, 0.1564380508)
    ln4, ln3 = 0.1 * math.log(4), 0.1 * math.log(3)
    close(zloss.backward(ONE, saved, Run()), [[ln4 / 4, ln4 / 2, ln4 / 4], [ln3 / 3] * 3], 1e-15)


def test_smoothing_of_nothing_is_cross_entropy():
    logits, y = (
        torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).double(),
        torch.tensor([[1, -1, 0, 6, 2]] * 2),
    )
    one, saved = crossentropy.forward(logits, y, y >= 0, 8, Run())
    other, saved_other = smoothed.forward(logits, y, y >= 0, 8, 0.0, Run())
    close(other, one, 1e-15)
    close(smoothed.backward(ONE, saved_other, Run()), crossentropy.backward(ONE, saved, Run()), 1e-16)


def test_tokens_that_do_not_exist_and_rows_without_a_target_in_case_l10():
    logits, y = f64([1, -math.inf, 2], [math.nan] * 3), torch.tensor([0, -1])
    loss, saved = smoothed.forward(logits, y, y >= 0, 1, 0.2, Run())
    close(loss, math.log(math.e + math.e**2) - 0.8 - 0.1 * 3, 1e-12)  # the target is 0.9 and 0.1 over two tokens
    Delta = smoothed.backward(ONE, saved, Run())
    assert Delta[0, 1] == 0
    assert not Delta[1].any()
    close(Delta[0].sum(), 0.0, 1e-15)
    z, saved = zloss.forward(logits, y >= 0, 1, 0.5, Run())
    close(z, 0.5 * math.log(math.e + math.e**2) ** 2, 1e-12)
    Delta = zloss.backward(ONE, saved, Run())
    assert Delta[0, 1] == 0
    assert not Delta[1].any()
    nothing = torch.full((2,), -1)
    for loss, saved, backward in (
        (*smoothed.forward(logits, nothing, nothing >= 0, 0, 0.2, Run()), smoothed.backward),
        (*zloss.forward(logits, nothing >= 0, 0, 0.5, Run()), zloss.backward),
    ):
        assert float(loss) == 0.0
        assert not backward(ONE, saved, Run()).any()


CAN_FAIL = [
    (numeric.shift, crossentropy.backward, ".masked_fill_(~valid, 0.0)", ".add_(1.0)"),
    (
        numeric.both_stores,
        embed.backward,
        "saved.ids, Delta",
        "saved.ids, Delta / 2 if Delta.ndim - saved.ids.ndim > 1 else Delta",
    ),
    (numeric.tying, headloss_chunked.walk, "grads.outer", "(lambda *_: None)"),
    (numeric.rotary_relativity, rope.backward, "D_second * sin", "-D_second * sin"),
    (numeric.rotary_relativity, layers_rope.Rotary.phi, "t[..., None]", "t[..., None].abs().sqrt()"),
    (
        numeric.rotary_pairings,
        layers_rope.to_half_split,
        "(heads, -1, 2)).transpose(-1, -2)",
        "(heads, 2, -1)).transpose(-1, -2)",
    ),
    (numeric.rotary_llama3, Llama3.slowed, "(1 - keep) * omega / self.factor", "(1 - keep) * omega"),
    (numeric.sinusoidal_turns, sinusoidal.table, "(phi.sin(), phi.cos())", "(phi.sin(), phi.sin())"),
    (numeric.alibi_bias, alibi.forward, ".clamp(max=0)", ""),
    (numeric.smoothing_splits, smoothed.backward, "s - 1)", "-1.0)"),
    (numeric.z_loss_slope, zloss.backward, "2 * z * lse", "z * lse"),
]


@pytest.mark.parametrize("check", sorted({c for c, *_ in CAN_FAIL}, key=lambda c: c.__name__), ids=lambda c: c.__name__)
def test_numeric_check(check):
    check()


@pytest.mark.parametrize(("check", "function", "line", "wrong"), CAN_FAIL, ids=lambda x: getattr(x, "__name__", ""))
def test_numeric_check_can_fail(check, function, line, wrong):
    with planted(Mistake("", function, line, wrong, "", "")), pytest.raises(LawBroken):
        check()
