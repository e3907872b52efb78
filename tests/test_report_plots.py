"""What the training report draws: curves, error sizes, attention and the table, bounded and with the right numbers."""

from __future__ import annotations

import doctest
import json
import math
import re
from dataclasses import replace
from importlib import import_module
from importlib.resources import files

import numpy as np
import pytest
from report_page import CAUSAL, DATA, INF, NAN, page

from handgrad.core.errors import NumericError, ShapeError
from handgrad.inspect import Curve, ParameterRow
from handgrad.inspect import report as report_module
from handgrad.inspect.attention import CHARACTER_LIMIT, pack
from handgrad.inspect.plots import error_plot, loss_plot, points, rate_plot, smooth
from handgrad.inspect.table import ROW_LIMIT, table
from handgrad.inspect.text import number, plot_text, printable, shorten, visible

# ---- curves ----------------------------------------------------------------------------------------------------------


def test_the_loss_figure_holds_the_numbers() -> None:
    figure = page().data["figures"]["loss"]
    lines = {trace.get("name"): trace for trace in figure["data"] if trace["meta"] != "reference"}
    assert lines["training"]["x"] == [1, 2, 3]
    assert lines["training"]["y"] == [4.5, 3.5, 3.0]
    assert lines["validation"]["x"] == [0, 3]
    assert lines["validation"]["y"] == [4.6, 3.1]
    references = [trace["y"] for trace in figure["data"] if trace["meta"] == "reference"]
    assert references == [[3.3, 3.3], [4.6, 4.6]]
    labels = [(label["y"], label["text"]) for label in figure["layout"]["annotations"]]
    assert labels == [(3.3, "unigram: 3.3"), (4.6, "uniform guess: 4.6")]


def test_values_that_are_not_finite_become_gaps_and_are_named() -> None:
    made = page(
        train=Curve([10, 20, 30, 40, 50], [NAN, 2.0, INF, -INF, NAN]),
        validation=Curve([10], [NAN]),
        learning_rate=Curve([10, 20], [INF, 0.5]),
        reference_losses={"broken": NAN, "unigram": 3.0},
    )
    figures = made.data["figures"]
    traces = {trace.get("name"): trace["y"] for trace in figures["loss"]["data"]}
    assert traces["training"] == [None, 2.0, None, None, None]
    assert traces["validation"] == [None]
    assert figures["rate"]["data"][0]["y"] == [None, 0.5]
    for text in (
        "Training loss: 4 values are not finite (NaN or infinite), drawn as a gap, at step 10, 30, 40 and 1 more.",
        "Validation loss: 1 value is not finite (NaN or infinite), drawn as a gap, at step 10.",
        "Learning rate: 1 value is not finite (NaN or infinite), drawn as a gap, at step 10.",
        "Reference without a finite value, not drawn: broken.",
    ):
        assert text in made.prose


def test_no_number_without_a_word_in_json_reaches_the_page() -> None:
    assert np.isnan(points(Curve([1, 2], [INF, NAN]), "x").values).all()
    with pytest.raises(ValueError, match="not JSON compliant"):
        report_module._environment().from_string("{{ value | tojson }}").render(value=NAN)


def test_a_long_curve_is_drawn_as_means_and_the_page_says_so() -> None:
    count = 10_001
    losses = np.arange(count, dtype=float)
    losses[7] = NAN
    drawn = points(Curve(range(count), losses), "Training loss")
    assert drawn.bucket == 6
    assert len(drawn.values) == 1667
    # the second bucket holds 6, NaN, 8, 9, 10, 11
    np.testing.assert_array_equal(drawn.values[:3], [2.5, 8.8, 14.5])
    np.testing.assert_array_equal(drawn.steps[:3], [3, 9, 15])
    assert drawn.notes[1:] == ["Training loss: 10,001 values, each point drawn is the mean of 6 in a row."]
    plot = loss_plot(Curve(range(count), losses), None, {})
    assert plot.figure is not None
    assert [trace["name"] for trace in plot.figure["data"]] == ["training (mean of 6)", "training (smoothed)"]
    assert max(len(trace["x"]) for trace in plot.figure["data"]) == 1667


def test_smoothing_leaves_gaps_and_is_not_spoilt_by_a_spike_elsewhere() -> None:
    values = np.array([1.0, 3.0, NAN, 5.0, 1e30, 0.5, 0.25, 0.75])
    made = smooth(values, 3)
    np.testing.assert_array_equal(made[[0, 1, 3, 6, 7]], [2.0, 2.0, 5e29, 0.5, 0.5])
    assert math.isnan(made[2])


def test_a_curve_with_unequal_lengths_is_refused() -> None:
    with pytest.raises(ShapeError, match="a curve needs one value a step: found 3 steps and 2 values"):
        Curve([1, 2, 3], [1.0, 2.0])


def test_a_single_step_has_an_axis_with_room() -> None:
    plot = loss_plot(Curve([5], [4.0]), None, {"a": 1.0})
    assert plot.figure is not None
    assert plot.figure["layout"]["xaxis"]["range"] == [4.0, 6.0]


# ---- the error signal ------------------------------------------------------------------------------------------------


def test_the_error_signal_goes_from_the_loss_at_the_top_down_on_a_log_axis() -> None:
    layout = page().data["figures"]["error"]["layout"]
    trace = page().data["figures"]["error"]["data"][0]
    assert trace["y"] == [0, 1, 2]
    assert trace["x"] == [1e-3, 1e-4, 2e-4]
    assert layout["yaxis"]["ticktext"] == ["Delta_logits", "blocks.0.Delta_a", "Delta_embedded"]
    assert layout["yaxis"]["range"][0] > layout["yaxis"]["range"][1]
    assert layout["xaxis"]["type"] == "log"
    np.testing.assert_allclose(layout["xaxis"]["range"], [-4.15, -2.85])
    assert list(zip(layout["xaxis"]["tickvals"], layout["xaxis"]["ticktext"], strict=True)) == [
        (1e-4, "10⁻⁴"),
        (3e-4, "3×10⁻⁴"),
        (1e-3, "10⁻³"),
    ]


def test_sizes_without_a_place_on_a_log_axis_are_named() -> None:
    plot = error_plot([("a", 0.0), ("b", NAN), ("c", 1.0), ("d", INF), ("e", -1.0)])
    assert plot.figure is not None
    assert plot.figure["data"][0]["x"] == [None, None, 1.0, None, None]
    assert plot.notes == [
        "Without a place on a logarithmic axis, drawn as a gap: a (0), b (not a number), d (infinite) and 1 more."
    ]
    assert error_plot([("a", 0.0)]).figure is not None


def test_many_signals_are_thinned_with_both_ends_kept() -> None:
    plot = error_plot([(f"s{i}", 1.0 + i) for i in range(1001)])
    assert plot.figure is not None
    names = plot.figure["data"][0]["customdata"]
    assert len(names) == 240
    assert (names[0], names[-1]) == ("s0", "s1000")
    assert plot.notes == ["Shown here: 240 of 1,001 signals, evenly spread from the loss to the embedding."]


def test_figures_are_valid_in_plotlys_own_schema() -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for plot in (
        loss_plot(Curve(range(200), np.linspace(4, 2, 200)), DATA.validation, DATA.reference_losses),
        rate_plot(DATA.learning_rate),
        error_plot(DATA.error_sizes),
    ):
        graph_objects.Figure(plot.figure)


# ---- attention -------------------------------------------------------------------------------------------------------


def test_attention_is_stored_in_ten_thousandths_with_printable_tokens() -> None:
    stored = page().data["attention"]
    assert stored["units"] == 10_000
    assert stored["causal"] is True
    assert stored["tokens"] == stored["labels"] == ["the", "·", "end⏎"]
    assert [(m["block"], m["head"]) for m in stored["maps"]] == [("block 0", 0), ("block 0", 1)]
    assert stored["maps"][0]["rows"] == [[10000], [2500, 7500], [2000, 3000, 5000]]
    assert stored["maps"][1]["rows"][2] == [1234, 0, 8766]


def test_attention_that_looks_ahead_keeps_whole_rows() -> None:
    ahead = np.full((1, 3, 3), 1 / 3)
    packed = pack(["a", "b", "c"], {"block 0": CAUSAL, "block 1": ahead})
    assert not packed.causal
    assert packed.maps[0]["rows"][0] == [10000, 0, 0]
    assert packed.maps[2]["rows"] == [[3333] * 3] * 3
    assert "upper triangle stays empty" not in page(attention={"block 1": ahead}).prose
    assert "upper triangle stays empty" in page().prose


def test_v02_large_attention_is_bounded_and_the_page_says_what_is_missing() -> None:
    length = 512
    one = np.tril(np.ones((length, length), dtype=np.float32))
    one /= one.sum(axis=1, keepdims=True)
    attention = {f"block {i}": np.broadcast_to(one, (12, length, length)) for i in range(12)}
    made = page(tokens=["x"] * length, attention=attention)
    maps = made.data["attention"]["maps"]
    assert len(json.dumps(maps, separators=(",", ":"))) <= CHARACTER_LIMIT == 2_000_000
    assert 12 <= len(maps) < 144
    assert {m["block"] for m in maps} == set(attention)
    for name in attention:
        heads = [m["head"] for m in maps if m["block"] == name]
        assert heads == list(range(len(heads)))
    assert len(made.data["attention"]["tokens"]) == 128
    assert len(maps[0]["rows"]) == 128
    assert "Shown here: the first 128 of 512 tokens, to keep labels readable." in made.prose
    assert (
        f"Shown here: {len(maps)} of 144 attention maps, the first heads of each block, "
        "to keep attention data below 2,000,000 characters."
    ) in made.prose


def test_a_limit_too_small_for_one_map_leaves_none_and_says_so() -> None:
    packed = pack(["a", "b", "c"], {"block 0": CAUSAL}, limit=10)
    assert packed.maps == []
    assert packed.notes[0].startswith("Shown here: 0 of 2 attention maps")


def test_cutting_a_sentence_that_looks_ahead_is_said() -> None:
    uniform = np.full((1, 130, 130), 1 / 130)
    assert pack(["x"] * 130, {"b": uniform}).notes == [
        "Shown here: the first 128 of 130 tokens, to keep labels readable, so the weights of a row need not sum to 1."
    ]


def test_v05_tokens_and_attention_of_different_length_are_refused_with_both_numbers() -> None:
    with pytest.raises(
        ShapeError, match="the sentence has 976 tokens, but the attention of 'block 0' is over 1,024 positions"
    ):
        page(tokens=["x"] * 976, attention={"block 0": np.broadcast_to(np.eye(1024), (1, 1024, 1024))})


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 2), (1, 1, 3, 3)])
def test_attention_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=re.escape(f"(heads, tokens, tokens); found {shape}")):
        page(attention={"block 0": np.full(shape, 1 / 3)})


def test_rows_that_are_not_weights_are_refused_with_their_place() -> None:
    wrong = CAUSAL.copy()
    wrong[1, 2] = [0.1, 0.2, 0.3]
    with pytest.raises(NumericError, match=r"'block 0', head 1, row 2: weights from 0\.1 with the sum 0\.6"):
        page(attention={"block 0": wrong})
    wrong[1, 2] = [-0.5, 0.5, 1.0]
    with pytest.raises(NumericError, match=r"head 1, row 2: weights from -0\.5 with the sum 1; each row must be"):
        page(attention={"block 0": wrong})
    with pytest.raises(NumericError, match="row 1"):
        page(attention={"block 0": CAUSAL.transpose(0, 2, 1) / CAUSAL.sum(axis=1)[:, :1, None]})


def test_rounding_of_half_precision_is_no_mistake() -> None:
    rounded = CAUSAL.copy()
    rounded[0, 2] = [0.202, 0.302, 0.5]
    assert pack(DATA.tokens, {"block 0": rounded}).maps
    assert pack(DATA.tokens, {"block 0": CAUSAL.astype(np.float16)}).maps[0]["rows"][1] == [2500, 7500]


def test_a_map_that_is_not_finite_is_left_out_and_named() -> None:
    broken = CAUSAL.copy()
    broken[0, 1, 0] = NAN
    made = page(attention={"block 0": broken})
    assert [m["head"] for m in made.data["attention"]["maps"]] == [1]
    broken[0, 1, 0] = INF
    assert [m["head"] for m in pack(DATA.tokens, {"block 0": broken}).maps] == [1]
    assert "1 of 2 attention maps hold values that are not finite (NaN or infinite) and are left out." in made.prose


def test_the_colour_scales_take_equal_steps_of_lightness() -> None:
    script = files("handgrad.inspect").joinpath("templates", "report.js").read_text(encoding="utf-8")
    for name, rising in (("light", False), ("dark", True)):
        block = re.search(rf"{name}: \[(.*?)\],\n", script, re.DOTALL)
        assert block is not None
        colours = re.findall(r'"(#[0-9a-f]{6})"', block.group(1))
        steps = np.diff([_lightness(colour) for colour in colours])
        assert len(colours) == 11
        np.testing.assert_allclose(steps, np.full(10, steps.mean()), atol=0.01)
        assert (steps.mean() > 0.06) if rising else (steps.mean() < -0.06)


def _lightness(colour: str) -> float:
    """Lightness in OKLab of an sRGB colour."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    return float(np.array([0.2104542553, 0.7936177850, -0.0040720468]) @ np.cbrt(to_cones @ linear))


# ---- parameters ------------------------------------------------------------------------------------------------------


def test_tied_parameters_are_marked_and_counted_once() -> None:
    made = page()
    assert "tied to tokens.w_emb" in made.prose
    cells = [text.strip() for text in made.texts["td"]]
    assert cells[-4:] == ["36 numbers", "", "5", "0.5"]
    assert "1 row shares its numbers with another row and is counted once in the total." in made.prose
    assert cells[:4] == ["7 × 3", "OHEᵗ Δ", "3", "0.3"]


def test_ties_count_once_in_any_order_and_through_chains() -> None:
    a = ParameterRow("a", (2,), "f", 2, 3.0, 0.0)
    b = ParameterRow("b", (2,), "f", 2, 3.0, 0.0, tied_to="a")
    c = ParameterRow("c", (2,), "f", 2, 3.0, 0.0, tied_to="b")
    other = ParameterRow("d", (1,), "f", 1, 4.0, 0.0)
    for rows in ([a, b, c, other], [c, b, a, other], [other, b, c, a]):
        made = table(rows)
        assert (made.total_count, made.total_norm, made.tied) == ("3", "5", 2)
    stale = replace(b, norm=100.0, count=99)
    assert (table([stale, a]).total_count, table([a, stale]).total_norm) == ("2", "3")
    ring = [replace(a, tied_to="c"), b, c]
    assert table(ring).total_count == "2"
    outside = [replace(a, tied_to="elsewhere"), other]
    assert (table(outside).total_count, table(outside).tied) == ("3", 0)


def test_sort_keys_are_plain_numbers_and_absent_where_there_is_none() -> None:
    made = page(parameters=[ParameterRow("w", (), "f", 1_234_567, 1.5e-8, NAN)])
    numbers = [
        attributes["data-number"] for tag, attributes in made.tags if tag == "td" and "data-number" in attributes
    ]
    assert numbers == ["1234567", "1.5e-08", ""]
    cells = [text.strip() for text in made.texts["td"]]
    assert cells[:4] == ["one number", "f", "1.5×10⁻⁸", "not a number"]
    assert cells[4] == "1,234,567 numbers"
    assert cells[-1] == "not a number"
    headings = [attributes for tag, attributes in made.tags if tag == "th" and attributes.get("scope") == "col"]
    assert len(headings) == 5
    assert made.texts["button"] == ["name", "shape", "formula", "norm", "gradient norm"]


def test_a_gradient_that_is_only_rounding_is_said_to_be() -> None:
    rows = [ParameterRow(name, (1,), "1ᵗ Δ", 1, 1.0, 2e-9) for name in ("a.key.b", "a.monkey.b", "a.key.w")]
    made = page(parameters=rows)
    assert [text.strip() for text in made.texts["td"]].count("2×10⁻⁹*") == 1
    assert made.texts["sup"] == ["*"]
    assert "(key.b) adds one and the same number to all scores of a query" in made.prose.replace(" key.b ", "key.b")
    assert "its true gradient is 0, and what is shown is rounding" in made.prose
    assert "rounding" not in page(parameters=rows[1:]).prose


def test_very_many_rows_are_cut_but_counted() -> None:
    made = table([ParameterRow(f"w{i}", (1,), "f", 1, 0.0, 0.0) for i in range(ROW_LIMIT + 5)])
    assert (len(made.lines), made.left_out, made.total_count) == (2000, 5, "2,005")


# ---- words and numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.5, "−0.5"),
        (9999.4, "9999"),
        (12345.6, "12,346"),
        (1e-3, "0.001"),
        (9.99e-4, "9.99×10⁻⁴"),
        (-2e9, "−2×10⁹"),
        (NAN, "not a number"),
        (INF, "infinite"),
        (-INF, "−infinite"),
    ],
)
def test_numbers_as_people_read_them(value: float, text: str) -> None:
    assert number(value) == text


def test_tokens_and_prose_as_people_read_them() -> None:
    assert [visible(token) for token in (" a", "\n", "", "\r", "\x7f", "\ufeff", "\u00a0", "é", "日")] == [
        "·a",
        "⏎",
        "(empty)",
        "␍",
        "␡",
        "⟨FEFF⟩",
        "⟨00A0⟩",
        "é",
        "日",
    ]
    assert printable("a\u00a0b\n\u200d\u2066") == "a\u00a0b\n\u200d⟨2066⟩"
    assert plot_text("a & <b>") == "a &amp; &lt;b&gt;"
    assert shorten("abcdefgh", 5) == "ab…gh"
    assert len(shorten("abcdefghij", 6)) <= 6


@pytest.mark.parametrize("name", ["attention", "data", "plots", "report", "table", "text"])
def test_the_examples_in_docstrings_hold(name: str) -> None:
    result = doctest.testmod(
        import_module(f"handgrad.inspect.{name}"), optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    )
    assert result.attempted > 0
    assert result.failed == 0
