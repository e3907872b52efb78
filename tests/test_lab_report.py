"""The page of the laboratory: complete, escaped, readable without a script, and drawn as the rungs are."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import pkgutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from report_page import Page

from handgrad.core.errors import FileError
from handgrad.inspect import report as inspect_report
from handgrad.lab import exact, trained
from handgrad.lab.argument import STEPS
from handgrad.lab.chapters import CHAPTERS, DECIDES
from handgrad.lab.diagram import ALL, BLOCKS, FIXED, ITSELF, PAIR, SOURCE, WINDOW, Boxes, Units, lettered
from handgrad.lab.formula import mathml
from handgrad.lab.plots import drawn
from handgrad.lab.record import plain, read, record, rungs_of, steps_in_words, text_of
from handgrad.lab.report import answers, render, write_lab
from handgrad.lab.rung import Sizes, network
from handgrad.lab.rungs import RUNGS, difference
from handgrad.lab.steps import FAILS, HOLDS, OPEN, Drawing, Finding, Number

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00"


@dataclass(frozen=True)
class Told:
    """A step in words; nothing is measured."""

    name: str
    question: str = "Why?"
    claim: str = "It is so."
    formula: str = r"a = \frac{b}{c}"
    rungs: tuple[str, ...] = ()


LINES = Drawing(
    "Recall",
    "pairs",
    "accuracy",
    {
        "rnn": {"x": [2, 4, 8], "y": [1.0, 0.5, 0.25], "low": [0.9, 0.4, 0.2], "high": [1.0, 0.6, 0.3]},
        "memory": {"x": [2, 8], "y": [1.0, math.nan]},
    },
    log="x",
)
BARS = Drawing(
    "Size", "rung", "parameters", {"n": {"x": ["a", "b"], "y": [1, 2], "low": [0, 1], "high": [3, 4]}}, "bars"
)
FIELD = Drawing("Score", "x", "y", {"product": {"x": [-1, 1], "y": [-1, 1], "z": [[1.0, -1.0], [-1.0, 1.0]]}}, "field")
FOUND = Finding(
    HOLDS, "The RNN answers 25 %.", [Number.over("recall", [0.2, 0.3]), Number("pairs", 8)], [LINES, BARS, FIELD]
)


def a_record(findings: dict[str, Finding], *more: Told) -> dict:
    steps = [Told(name) for name in findings] + list(more)
    content = {"steps": steps_in_words(steps, findings), "seconds": 61.5, "cut": {"memory": ["fit rnn seed=2"]}}
    return record(content, rungs_of(RUNGS, difference), seeds=3)


def shown(found: dict) -> str:
    with mock.patch.object(inspect_report, "_plotly_script", return_value="/* plotly */"):
        return render(found)


def a_page(findings: dict[str, Finding], *more: Told) -> Page:
    return Page(shown(a_record(findings, *more)))


def section(text: str, name: str) -> str:
    return text.split(f'<section id="{name}"')[1].split("</section>")[0]


def test_every_chapter_is_there_without_any_result() -> None:
    text = shown(a_record({}))
    page = Page(text)
    ids = [attributes.get("id") for tag, attributes in page.tags if tag == "section"]
    assert ids == ["answers", *(chapter.name for chapter in CHAPTERS), "words", "run"]
    assert text.count("This run has no result here.") == len(CHAPTERS)
    for chapter in CHAPTERS:
        part = section(text, chapter.name)
        assert part.count("<svg") == len(chapter.sketches) >= 1
        assert "<math" in part
        assert 60 <= len(chapter.text.split()) <= 120


def test_chapters_are_in_the_order_of_the_argument_and_ask_nine_questions() -> None:
    order = "memory steps weights functions interaction cache normalisation heads mlp cost transformer price"
    assert [chapter.name for chapter in CHAPTERS] == order.split()
    asked = [chapter.asked for chapter in CHAPTERS if chapter.asked]
    assert len(asked) == 9
    named = [name for chapter in CHAPTERS for name in chapter.steps]
    assert len(named) == len({*named})
    assert {*DECIDES} <= {chapter.name for chapter in CHAPTERS}


def test_every_rung_a_chapter_names_exists_and_shows_its_difference() -> None:
    text = shown(a_record({}))
    for chapter in CHAPTERS:
        part = section(text, chapter.name)
        for name in chapter.rungs:
            assert f"<code>{name}</code>" in part
            assert part.count('class="difference"') == len(chapter.rungs)
    assert '<span class="added">+' in section(text, "normalisation")
    assert '<span class="removed">-' in section(text, "normalisation")


def test_a_finding_is_shown_with_its_numbers_interval_plots_and_verdict() -> None:
    text = shown(a_record({"memory": FOUND, "functions": Finding(FAILS, "No.", notes=["one seed was cut"])}))
    part, page = section(text, "memory"), Page(text)
    assert "<strong>holds</strong> The RNN answers 25 %." in part
    row = '<th scope="row">recall</th><td class="number">0.25</td><td class="interval">−0.3853 to 0.8853'
    assert f"{row} (n = 2: 0.2; 0.3)</td>" in part
    assert "0.5 (0.4 to 0.6)" in part  # the plot's values, for who has no script
    assert part.count("data-plot=") == 3
    assert {*page.data["figures"]} == {"memory-0-0", "memory-1-0", "memory-2-0"}
    assert "does not hold here</strong> No." in section(text, "functions")
    assert "one seed was cut" in section(text, "functions")
    assert "fit rnn seed=2" in section(text, "run")


def test_the_table_at_the_top_answers_with_a_number_and_the_deciding_verdict() -> None:
    steps = a_record({"memory": FOUND, "cost": Finding(FAILS, "Less.", [Number("time", 4.0, "×")])})["steps"]
    by_question = {answer.question: answer for answer in answers(steps)}
    assert by_question["Why not an RNN?"].number == "recall: 0.25, −0.3853 to 0.8853 (n = 2: 0.2; 0.3)"
    assert by_question["Why not an RNN?"].kind == "holds"
    assert by_question["What is the price?"][1:4] == ("time: 4 ×", "Less.", FAILS)  # answered by the chapter of cost
    assert by_question["Why softmax?"][1:4] == ("no number yet", "", OPEN)


def test_a_measured_step_answers_before_an_open_one() -> None:
    steps = a_record({"memory": Finding(OPEN, "cut"), "length": FOUND})["steps"]
    assert answers(steps)[0].verdict == HOLDS


def test_a_step_that_no_chapter_knows_has_a_section_of_its_own() -> None:
    text = shown(a_record({"new": FOUND}, Told("open", "And this?")))
    assert "It is so." in section(text, "step-new")
    assert "Nothing was measured." in section(text, "step-open")


def test_a_long_note_is_folded_and_whole() -> None:
    long_note = "not done: " + "; ".join(f"trial {i}" for i in range(200))
    part = section(shown(a_record({"memory": replace(FOUND, notes=[long_note, "short"])})), "memory")
    assert part.count('<details class="note">') == 1
    assert f"<p>{long_note}</p>" in part
    assert '<p class="note">short</p>' in part


def hostile() -> dict:
    drawing = Drawing(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: {"x": [HOSTILE, "b"], "y": [1, 2]}}, "bars")
    surface = replace(FIELD, title=HOSTILE, x=HOSTILE, series={HOSTILE: FIELD.series["product"]})
    finding = Finding(HOLDS, HOSTILE, [Number(HOSTILE, 1.0, HOSTILE)], [drawing, surface], [HOSTILE])
    step = Told(f'memory"{HOSTILE}', HOSTILE, HOSTILE, HOSTILE, (HOSTILE,))
    rung = {"title": HOSTILE, "question": HOSTILE, "before": HOSTILE, "formula": HOSTILE, "difference": ["+" + HOSTILE]}
    content = {"steps": steps_in_words([step], {step.name: finding}), "cut": {HOSTILE: [HOSTILE]}}
    return record(content, {HOSTILE: rung}, **{HOSTILE: HOSTILE})


def test_hostile_text_is_only_text() -> None:
    text = shown(hostile())
    page = Page(text)
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\x00" not in text
    assert len(page.scripts) == 3
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "alert(1)" in page.prose
    names = [trace["name"] for figure in page.data["figures"].values() for trace in figure["data"] if "name" in trace]
    assert len(names) == 1
    assert "<" not in names[0]


def test_the_policy_allows_the_two_scripts_and_nothing_else() -> None:
    page = a_page({"memory": FOUND})
    policy = next(
        a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    ours = [content for attributes, content in page.scripts if attributes.get("type") is None]
    assert [inspect_report._hash(content) in policy for content in ours] == [True, True]
    assert not [a for _, a in page.tags if "src" in a or str(a.get("href", "#"))[:1] != "#"]


def test_formulas_are_mathml_or_stay_text() -> None:
    for chapter in CHAPTERS:
        assert mathml(chapter.formula, True).startswith("<math")
    for rung in RUNGS.values():
        assert mathml(rung.formula, True).startswith("<math"), rung.name
    text = shown(a_record({}, Told("memory", formula=r"\nonsense <b>")))
    assert r"<code>\nonsense &lt;b&gt;</code>" in text


# ---- the steps there are --------------------------------------------------------------------------------------------
def test_every_step_that_is_written_is_part_of_the_argument_and_of_a_chapter() -> None:
    written = set()
    for folder in (exact, trained):
        for info in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            found = vars(importlib.import_module(info.name)).values()
            written |= {x.name for x in found if hasattr(x, "judge") and isinstance(getattr(x, "name", None), str)}
    assert written == {step.name for step in STEPS}
    assert len(STEPS) == len({step.name for step in STEPS})
    assert written - {name for chapter in CHAPTERS for name in chapter.steps} == set()
    assert {name for step in STEPS for name in step.rungs} <= {*RUNGS}


def test_every_formula_of_a_step_can_be_shown() -> None:
    for step in STEPS:
        assert mathml(step.formula, True).startswith("<math"), step.name


# ---- plots ----------------------------------------------------------------------------------------------------------
def test_an_interval_becomes_a_band_and_a_gap_a_note() -> None:
    (one,) = drawn(plain(asdict(LINES)))
    area, line, other = one.plot.figure["data"]
    assert (area["meta"], area["x"], area["y"]) == ("s0-band", [2, 4, 8, 8, 4, 2], [1.0, 0.6, 0.3, 0.2, 0.4, 0.9])
    assert (line["meta"], line["y"]) == ("s0", [1.0, 0.5, 0.25])
    assert other["y"] == [1.0, None]
    assert one.plot.figure["layout"]["xaxis"]["type"] == "log"
    assert "type" not in one.plot.figure["layout"]["yaxis"]
    assert one.plot.notes == ["1 value is not finite, drawn as a gap."]
    assert one.plot.summary == "Recall: accuracy over pairs. rnn from 1 at 2 to 0.25 at 8. memory 1 at 2."
    assert one.heads == ["pairs", "rnn", "memory"]
    assert one.rows[1:] == [["4", "0.5 (0.4 to 0.6)", ""], ["8", "0.25 (0.2 to 0.3)", "not a number"]]


def test_bars_have_error_bars_and_a_field_one_plot_a_series() -> None:
    (bars,) = drawn(plain(asdict(BARS)))
    error = bars.plot.figure["data"][0]["error_y"]
    assert (error["array"], error["arrayminus"]) == ([2.0, 2.0], [1.0, 1.0])
    two = replace(FIELD, series={"a": FIELD.series["product"], "b": FIELD.series["product"]})
    first, second = drawn(plain(asdict(two)))
    assert (first.title, second.title) == ("Score: a", "Score: b")
    assert first.plot.figure["data"][0]["z"] == [[1.0, -1.0], [-1.0, 1.0]]
    assert first.rows[0] == ["-1", "-1", "1"]
    assert first.plot.figure["data"][0]["type"] == "heatmap"  # whole numbers: places, with nothing between them
    smooth = {"z": {"x": [-1.0, 1.0], "y": [-1.0, 1.0], "z": [[1.0, -1.0], [-1.0, 1.0]]}}
    (third,) = drawn(plain(asdict(replace(FIELD, series=smooth))))
    assert third.plot.figure["data"][0]["type"] == "contour"


@pytest.mark.parametrize("kind", ["lines", "bars", "field"])
def test_nothing_to_draw_is_said(kind: str) -> None:
    series = {} if kind != "field" else {"z": {"x": [0], "y": [0], "z": [[math.nan]]}}
    drawing = Drawing("Empty", "x", "y", series, kind)
    text = shown(a_record({"memory": Finding(OPEN, "cut", (), [drawing])}))
    assert 'class="empty">Empty' in section(text, "memory")


# ---- diagrams -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "sketch"),
    [
        ("rnn", Units(recurrent=True)),
        ("lstm", Units(recurrent=True)),
        ("memory", Units(recurrent=True, remembers=True)),
        ("fixed", Units(reach=FIXED)),
        ("source_only", Units(reach=SOURCE)),
        ("self_only", Units(reach=ITSELF)),
        ("v_sum", Units(reach=PAIR)),
        ("softmax", Units(reach=ALL)),
        ("transformer", Units(reach=ALL)),
        ("window", Units(reach=WINDOW)),
        ("block_sparse", Units(reach=BLOCKS)),
    ],
)
def test_a_diagram_connects_what_its_rung_connects(name: str, sketch: Units) -> None:
    """Which input reaches which output, in one layer of the real network and along the arrows."""
    places, sizes = 6, Sizes(width=8, context=6, functions=2, hidden=4, layers=1, window=2)
    sketch, model = replace(sketch, layers=1, places=places), network(RUNGS[name], 5, sizes)
    ids = torch.tensor([[0, 1, 2, 3, 0, 1]])
    before = model(ids)
    for start in range(places):
        other = ids.clone()
        other[0, start] = 4
        changed = (model(other) != before).any(-1)[0].tolist()
        assert changed == [reaches(sketch, start, end) for end in range(places)]


def reaches(sketch: Units, start: int, end: int) -> bool:
    """Whether arrows lead from input `start` to the output at `end`."""
    seen, edges = {(0, start)}, sketch.edges()
    for _ in range(sketch.places + 1):
        seen |= {edge.end for edge in edges if edge.start in seen}
    return (1, end) in seen


@pytest.mark.parametrize("places", [2, 4, 7])
def test_the_longest_chain_is_t_plus_1_with_recurrence_and_2_without(places: int) -> None:
    assert Units(recurrent=True, places=places).steps() == places + 1
    assert Units(recurrent=True, remembers=True, places=places).steps() == places + 1
    assert Units(reach=ALL, places=places).steps() == 2


def test_labels_are_escaped_and_indices_set_low() -> None:
    assert lettered("a<b") == "a&lt;b"
    text = lettered("Σ ω_β x_β")
    assert text.count("sub") == 2
    assert "_" not in text
    svg = Boxes((("a",), ("<i>",))).svg('"c"')
    assert "<i>" not in svg
    assert 'aria-label="&quot;c&quot;' in svg


# ---- the docs -------------------------------------------------------------------------------------------------------
def tool():
    path = Path(__file__).resolve().parents[1] / "tools" / "lab_page.py"
    spec = importlib.util.spec_from_file_location("lab_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_docs_is_up_to_date() -> None:
    assert tool().main(["--check"]) == 0


def test_a_recorded_run_becomes_a_page_of_the_docs(tmp_path: Path) -> None:
    lab_page = tool()
    lab_page.PAGE, lab_page.DATA = tmp_path / "lab.md", tmp_path / "lab" / "lab.json"
    assert lab_page.main([]) == 0
    assert "Not recorded yet" in lab_page.PAGE.read_text(encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lab.json").write_text(text_of(a_record({"memory": FOUND})), encoding="utf-8")
    assert lab_page.main(["--check"]) == 0
    assert lab_page.main(["--from", str(tmp_path / "run")]) == 0
    text = lab_page.PAGE.read_text(encoding="utf-8")
    row = "| [Why not an RNN?](#memory) | recall: 0.25, −0.3853 to 0.8853 (n = 2: 0.2; 0.3)."
    assert f"{row} The RNN answers 25 %. | holds |" in text
    assert "**holds**: The RNN answers 25 %." in text
    assert "1 trials were cut" in text
    assert lab_page.DATA.exists()


def test_hostile_text_is_only_text_in_the_docs_too() -> None:
    text = tool().page(hostile())
    assert "<" not in text.replace("<!--", "")
    assert text.count("$$") == 2 * len(CHAPTERS)


# ---- the record -----------------------------------------------------------------------------------------------------
def test_a_record_written_and_read_gives_the_same_page(tmp_path: Path) -> None:
    found = a_record({"memory": FOUND})
    (tmp_path / "lab.json").write_text(text_of(found), encoding="utf-8")
    assert read(tmp_path / "lab.json") == found
    assert shown(read(tmp_path / "lab.json")) == shown(found)
    with mock.patch.object(inspect_report, "_plotly_script", return_value=""):
        assert write_lab(found, tmp_path / "lab.html") == (tmp_path / "lab.html").stat().st_size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(format="x"), "its format is not"),
        (lambda r: r.pop("about"), "there is no 'about'"),
        (lambda r: r["steps"][0].pop("claim"), "there is no 'claim'"),
        (lambda r: r["steps"][0]["finding"].update(verdict="sure"), "the verdict is none of"),
        (lambda r: r["steps"][0]["finding"]["numbers"][0].update(value="1"), "no number"),
        (lambda r: r["steps"][0]["finding"]["drawings"][0].update(kind="pie"), "no kind of drawing 'pie'"),
        (lambda r: r["steps"][0]["finding"]["drawings"][0]["series"]["rnn"]["y"].pop(), "3 values of x and 2 of y"),
        (lambda r: r["steps"][0]["finding"]["drawings"][2]["series"]["product"]["z"].pop(), "z is not one row"),
        (lambda r: r["rungs"]["rnn"].update(difference=[1]), "rung rnn: a line is no text"),
        (lambda r: r.update(steps=3), "not iterable"),
    ],
)
def test_what_is_no_record_is_refused_and_says_why(change, message: str, tmp_path: Path) -> None:
    found = json.loads(text_of(a_record({"memory": FOUND})))
    change(found)
    (tmp_path / "lab.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(FileError, match=message):
        read(tmp_path / "lab.json")


@pytest.mark.parametrize("latex", [r"\text{<script>alert(1)</script>}", r"\text{<b onclick=x>}", r"\text{a&b}", "a<b"])
def test_markup_in_a_formula_does_not_come_through(latex: str) -> None:
    text = shown(a_record({}, Told("memory", formula=latex)))
    part = section(text, "memory")
    assert not [inner for inner in ("<b", "<script", "onclick=x>") if inner in part]
    assert Page(text).scripts[0][0] == {"type": "application/json", "id": "page-data"}


@pytest.mark.parametrize("content", ["", "[" * 100_000, "[]", "\ud800", "{"])
def test_any_other_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(FileError, match=r"lab\.json is not"):
        read(tmp_path / "lab.json")
