"""Tokens, shares and tables as text."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from unicodedata import east_asian_width

from handgrad.core.errors import HandgradError, cut, printable

MOST, BEFORE = 24, 16  # characters of a token, and of the text before it
TOKENS_BEFORE = 16


def word(tokenizer: Any, i: int) -> str:
    """A token in quotes, with what cannot be shown spelled out; its id where there is no tokenizer.

    >>> from handgrad.data.tokenizers import Bytes
    >>> word(Bytes(), 104), word(Bytes(), 10), word(Bytes(), 200), word(None, 3)
    ("'h'", "'\\\\n'", "'\\\\xc8'", '3')
    """
    if tokenizer is None:
        return str(i)
    text = decoded(tokenizer, [i])
    if "\ufffd" in text and hasattr(tokenizer, "piece"):
        with suppress(HandgradError, TypeError, ValueError):
            text = bytes(tokenizer.piece(i)).decode("utf-8", "backslashreplace")
    return f"'{cut(text, MOST)}'"


def before(tokenizer: Any, ids: Sequence[int]) -> str:
    """The last characters of the text that these ids end with."""
    if tokenizer is None:
        return ""
    text = printable(decoded(tokenizer, ids[-TOKENS_BEFORE:]))
    return text if len(text) <= BEFORE else "…" + text[-BEFORE + 1 :]


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    try:
        return str(tokenizer.decode(list(ids)))
    except HandgradError:  # an id of the vocabulary's padding has no text
        return "\ufffd"


def percent(share: float, sign: str = "+") -> str:
    """A share as a signed percentage.

    >>> percent(0.1234), percent(-2.5), percent(0.61, ""), percent(0.012, "")
    ('+12.3 %', '-250 %', '61 %', '1.2 %')
    """
    digits = 1 if abs(share) < (1 if sign else 0.1) else 0
    return f"{100 * share:{sign},.{digits}f} %"


def width(text: str) -> int:
    """Columns of a terminal.

    >>> width("ab"), width("漢")
    (2, 2)
    """
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def as_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Columns as wide as what stands in them; numbers, which have no quotes, to the right.

    >>> print(as_text([{"share": "+5.0 %", "token": "'a'"}, {"share": "-12.0 %", "token": "'bc'"}]))
      share  token
     +5.0 %  'a'
    -12.0 %  'bc'
    """
    if not rows:
        return "no terms"
    lines = [dict(zip(rows[0], rows[0], strict=True)), *rows]
    widths = {name: max(width(line[name]) for line in lines) for name in rows[0]}
    right = {name for name in rows[0] if name not in ("token", "place", "part")}
    texts = []
    for line in lines:
        cells = []
        for name, text in line.items():
            gap = " " * (widths[name] - width(text))
            cells.append(gap + text if name in right else text + gap)
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def as_html(rows: Sequence[Mapping[str, str]]) -> str:
    """The same as a table for a notebook; nothing in it acts as markup."""
    if not rows:
        return "<p>no terms</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(x)}</td>" for x in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
