"""A small report and a reader of its page, for the tests of the training report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from unittest import mock

import numpy as np
import pytest

from handgrad.inspect import Curve, ParameterRow, ReportData, render
from handgrad.inspect import report as report_module

NAN, INF = float("nan"), float("inf")

# three tokens, two heads; every row sums to 1 and no row looks ahead
CAUSAL = np.array(
    [
        [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.2, 0.3, 0.5]],
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.12345, 0.0, 0.87655]],
    ]
)

DATA = ReportData(
    title="demo: 1 layer",
    facts={"data": "embedded", "parameters": "1,234"},
    train=Curve([1, 2, 3], [4.5, 3.5, 3.0]),
    validation=Curve([0, 3], [4.6, 3.1]),
    reference_losses={"uniform guess": 4.6, "unigram": 3.3},
    learning_rate=Curve([1, 2, 3], [1e-4, 1e-3, 5e-4]),
    tokens=["the", " ", "end\n"],
    attention={"block 0": CAUSAL},
    error_sizes=[("Delta_logits", 1e-3), ("blocks.0.Delta_a", 1e-4), ("Delta_embedded", 2e-4)],
    parameters=[
        ParameterRow("tokens.w_emb", (7, 3), "OHEᵗ Δ", 21, 3.0, 0.3),
        ParameterRow("blocks.0.w", (3, 5), "aᵗ Δ", 15, 4.0, 0.4),
        ParameterRow("head.w", (3, 7), "aᵗ Δ", 21, 3.0, 0.3, tied_to="tokens.w_emb"),
    ],
    sample="once upon a time",
    prompt="once",
    commands=["handgrad generate runs/demo"],
)


class Page(HTMLParser):
    """Tags with their attributes, the text of each element name, and scripts as (attributes, content)."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)
        self.close()
        data = next(content for attributes, content in self.scripts if attributes.get("id") == "page-data")
        self.data = json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        self.raw_data = data
        prose = [piece for tag, pieces in self.texts.items() if tag not in ("script", "style") for piece in pieces]
        self.prose = re.sub(r"\s+", " ", " ".join(prose))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("meta", "img", "link", "br"):
            return
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, text: str) -> None:
        if self._open and self._open[-1] == "script":
            attributes, content = self.scripts[-1]
            self.scripts[-1] = (attributes, content + text)
        for tag in dict.fromkeys(self._open):
            self.texts[tag][-1] += text


def rendered(data: ReportData) -> str:
    """The page with a stand-in for plotly's script, whose five million characters would make every test slow."""
    with mock.patch.object(report_module, "_plotly_script", return_value="/**\n* plotly.js v0\n*/"):
        return render(data)


def page(**changes: object) -> Page:
    """The page of `DATA` with some fields changed, as read."""
    return Page(rendered(replace(DATA, **changes)))
