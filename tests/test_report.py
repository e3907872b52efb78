"""The page of the training report: one safe file that says in words what it shows, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from report_page import CAUSAL, DATA, INF, NAN, Page, page, rendered

from handgrad.core.errors import FileError
from handgrad.inspect import Curve, ParameterRow, ReportData, render, write_report
from handgrad.inspect import report as report_module

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)>" onclick="alert(3)\' --> <!-- {{ 7*7 }} $x$'


# ---- one file, no network, nothing that runs but our two scripts -----------------------------------------------------


def test_the_page_asks_the_network_for_nothing() -> None:
    text = render(DATA)
    made = Page(text)
    for tag, attributes in made.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"@import|url\(|@font-face", "".join(made.texts["style"]))
    own = [content for attributes, content in made.scripts if not content.lstrip().startswith("/**\n* plotly.js")]
    assert len(own) == 2
    assert "http" not in "".join(own)
    assert text.count("* plotly.js v") == 1


def test_the_policy_forbids_the_network_and_names_exactly_the_two_scripts_by_hash() -> None:
    made = page()
    policies = [a["content"] for _, a in made.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))
    running = [content for attributes, content in made.scripts if attributes.get("type") != "application/json"]
    hashes = ["sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert rules.pop("script-src").split() == [f"'{value}'" for value in hashes]
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    before_policy = [tag for tag, _ in made.tags[: [t for t, _ in made.tags].index("style")]]
    assert "script" not in before_policy


def test_plotlys_script_can_stand_inside_a_script_element() -> None:
    script = report_module._plotly_script()
    assert len(script) > 1_000_000
    for breaks_out in ("</script", "<!--", "\r", "\0"):
        assert breaks_out not in script


def test_hostile_text_is_shown_and_never_becomes_markup() -> None:
    plain = page()
    made = page(
        title=HOSTILE,
        facts={HOSTILE: HOSTILE},
        reference_losses={HOSTILE: 3.3},
        tokens=[HOSTILE, "</script>", "<b>"],
        attention={HOSTILE: CAUSAL},
        error_sizes=[(HOSTILE, 1e-3), (HOSTILE, 0.0)],
        parameters=[ParameterRow(HOSTILE, (2,), HOSTILE, 2, 1.0, 1.0, tied_to=HOSTILE)],
        sample=HOSTILE,
        prompt=HOSTILE[:30],
        commands=[HOSTILE],
    )
    assert len(made.scripts) == 3
    assert {tag for tag, _ in made.tags} <= {tag for tag, _ in plain.tags}
    names = {name for _, attributes in made.tags for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert "<" not in made.raw_data
    assert made.texts["h1"] == [HOSTILE]
    assert made.texts["dt"] == made.texts["dd"] == [HOSTILE]
    assert made.texts["code"] == [HOSTILE]
    assert "".join(made.texts["pre"][0]) == HOSTILE
    assert made.data["attention"]["tokens"][1:] == ["</script>", "<b>"]


def test_plotly_gets_no_tags_and_no_tex() -> None:
    figures = page(reference_losses={'<a href="http://example.org">$x$': 3.3}, error_sizes=[("<b>x</b>", 1e-3)]).data[
        "figures"
    ]
    assert figures["loss"]["layout"]["annotations"][0]["text"] == (
        '&lt;a href="http://example.org"&gt;&#36;x&#36;: 3.3'
    )
    assert figures["error"]["layout"]["yaxis"]["ticktext"] == ["&lt;b&gt;x&lt;/b&gt;"]
    assert figures["error"]["data"][0]["customdata"] == ["&lt;b&gt;x&lt;/b&gt;"]
    assert figures["error"]["layout"]["meta"]["narrow_ticktext"] == ["&lt;b&gt;x&lt;/b&gt;"]


def test_text_that_utf8_or_a_reader_cannot_take_is_made_visible() -> None:
    odd = "\ud800\x00\x1b\u202e\x85"
    shown = "\ufffd␀␛⟨202E⟩⟨0085⟩"
    text = rendered(
        replace(
            DATA,
            title=odd,
            facts={odd: odd},
            tokens=[odd, "", "\t"],
            attention={odd: CAUSAL},
            parameters=[ParameterRow(odd, (2,), odd, 2, 1.0, 1.0, tied_to=odd)],
            error_sizes=[(odd, 1.0), (odd, 0.0)],
            reference_losses={odd: 3.0, odd + "x": NAN},
            sample="a\n\tb" + odd,
            prompt="",
            commands=[odd],
        )
    )
    assert text.encode("utf-8")
    made = Page(text)
    assert made.texts["h1"] == [shown]
    assert made.texts["pre"][0] == "a\n\tb" + shown
    assert made.data["attention"]["tokens"] == [shown, "(empty)", "⇥"]
    assert made.data["attention"]["maps"][0]["block"] == shown
    rest = text.replace("\n", "").replace(made.scripts[1][1].replace("\n", ""), "")
    assert not [char for char in rest if ord(char) < 32 and char != "\t"]


# ---- what a person reads ---------------------------------------------------------------------------------------------


def test_headings_go_down_one_level_at_a_time_and_sections_are_in_order() -> None:
    made = page()
    levels = [int(tag[1]) for tag, _ in made.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    sections = [attributes["id"] for tag, attributes in made.tags if tag == "section"]
    assert sections == ["facts", "loss", "sample", "attention", "error", "parameters", "next"]
    links = [attributes["href"] for tag, attributes in made.tags if tag == "a"]
    assert links == [f"#{section}" for section in sections]
    ids = [attributes["id"] for _, attributes in made.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_plot_says_in_words_what_it_shows() -> None:
    labels = {a.get("data-plot"): a["aria-label"] for _, a in page().tags if a.get("role") == "img"}
    assert labels == {
        "loss": "Loss over training steps. Training loss from 4.5 to 3. Validation loss from 4.6 to 3.1.",
        "rate": "Learning rate over training steps. Highest 0.001, last 5×10⁻⁴.",
        "error": "Size of the error signal from the loss down to the embedding. "
        "Largest 0.001 at Delta_logits, smallest 10⁻⁴ at blocks.0.Delta_a.",
        None: "Heat map of attention weights, 3 tokens by 3 tokens; rows are queries, columns are keys. "
        "The same weights follow as text for a chosen token.",
    }


def test_the_lead_says_what_the_loss_means() -> None:
    # e^4.6 = 99.48 and e^3.1 = 22.2, to two digits
    assert (
        "Validation loss went from 4.6 to 3.1 nats a token: the doubt of a choice among about 99 equally likely tokens "
        "at first, and among about 22 at the end."
    ) in page().prose
    assert "Training loss went from 4.5 to 3 nats a token" in page(validation=None).prose
    assert "went from" not in page(validation=None, train=Curve([1], [4.5])).prose
    one_finite = Curve([0, 1, 2], [NAN, 3.0, INF])
    assert "Training loss went from 4.5 to 3 nats a token" in page(validation=one_finite).prose
    skipped = Curve([0, 1, 2, 3], [NAN, 4.0, INF, 3.0])
    assert "Validation loss went from 4 to 3 nats a token" in page(validation=skipped).prose


def test_the_sign_of_delta_is_stated() -> None:
    sentence = "Δx is the derivative of the loss by x; the direction of descent is −Δx."
    assert sum(text.startswith(sentence) for text in page().texts["p"]) == 1


def test_facts_and_commands_are_there_in_order() -> None:
    made = page(commands=["handgrad one", 'handgrad two --prompt "a  b"'])
    assert made.texts["dt"] == ["data", "parameters"]
    assert made.texts["dd"] == ["embedded", "1,234"]
    assert made.texts["code"] == ["handgrad one", 'handgrad two --prompt "a  b"']


@pytest.mark.parametrize("sample", ["once upon a time", " upon a time"])
def test_the_prompt_is_marked_once_whether_or_not_the_sample_repeats_it(sample: str) -> None:
    made = page(sample=sample)
    assert made.texts["pre"][0] == "once upon a time"
    assert made.texts["mark"] == ["the marked words", "once"]


def test_a_sample_keeps_its_first_line_break_and_has_a_limit() -> None:
    assert page(sample="\n\nx", prompt="").texts["pre"][0] == "\n\nx"
    assert page(sample="", prompt="").texts["pre"] == ["handgrad generate runs/demo"]
    assert "No sample was taken." in page(sample="", prompt="").prose
    long = page(sample="y" * 20_007, prompt="")
    assert long.texts["pre"][0] == "y" * 20_000
    assert "7 further characters are not shown." in long.prose


def test_nothing_recorded_is_said_in_words() -> None:
    nothing = Curve([], [])
    made = Page(rendered(ReportData("t", {}, nothing, nothing, {"a": 1.0}, nothing, [], {}, [], [], "", "", [])))
    for text in (
        "No facts were recorded.",
        "No steps yet: there is no loss to draw.",
        "No sample was taken.",
        "No attention map was recorded.",
        "No error signals were recorded.",
        "No parameters were recorded.",
        "No commands were suggested.",
    ):
        assert text in made.prose
    assert made.data["figures"] == {}
    assert made.data["attention"]["maps"] == []


def test_validation_off_is_said() -> None:
    assert "validation was off" in page(validation=None).prose
    assert "validation was off" not in page().prose


# ---- the file --------------------------------------------------------------------------------------------------------


def test_the_file_holds_what_was_rendered_and_its_size_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    size = write_report(DATA, path)
    assert size == path.stat().st_size
    assert path.read_bytes() == render(DATA).encode("utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_new_report_takes_the_place_of_the_old_one_and_never_writes_into_it(tmp_path: Path) -> None:
    path, held = tmp_path / "report.html", tmp_path / "held.html"
    path.write_text("old", encoding="utf-8")
    os.link(path, held)
    write_report(DATA, path)
    assert held.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == render(DATA)


def test_a_full_disk_leaves_the_old_report_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"cannot write the report .*report\.html \([\d,]+ bytes\): No space left"):
        write_report(DATA, path)
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no folder .*absent\. Create it first"):
        write_report(DATA, tmp_path / "absent" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="cannot write the report"):
        write_report(DATA, tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
