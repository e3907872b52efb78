"""Recorded signals as a table, for a terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import islice

import torch

from handgrad.core.errors import printable

HEADINGS = ("signal", "shape", "type", "norm")
SIGN = "Delta_x is the derivative of the loss by x: where it is positive, the loss rises when x rises."


def as_text(heading: str, signals: Mapping[str, torch.Tensor], most: int = 30) -> str:
    """
    >>> print(as_text("1 signal", {"norm": torch.ones(2, 2)}))
    1 signal
      signal  shape   type     norm
      norm    (2, 2)  float32  2
    """
    shown = [tuple(map(printable, row)) for row in islice(rows(signals), most)]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *shown, strict=True)]
    lines = [
        "  ".join(f"{word:<{n}}" for word, n in zip(row, widths, strict=True)).rstrip() for row in (HEADINGS, *shown)
    ]
    text = [heading, *(f"  {line}" for line in lines if shown), *notes(signals, most)]
    return "\n".join(text)


def as_html(heading: str, signals: Mapping[str, torch.Tensor], most: int = 200) -> str:
    """
    >>> as_html("1 signal", {"a<b": torch.ones(1)}).count("a&lt;b")
    1
    """

    def row(words: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} style="text-align:left">{escape(word)}</{tag}>' for word in words) + "</tr>"

    body = "".join(row(words, "td") for words in islice(rows(signals), most))
    below = "".join(f"<p>{escape(note)}</p>" for note in notes(signals, most))
    head = f"<thead>{row(HEADINGS, 'th')}</thead>" if signals else ""
    return f"<table><caption>{escape(heading)}</caption>{head}<tbody>{body}</tbody></table>{below}"


def rows(signals: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, ...]]:
    for path, x in signals.items():
        norm = (
            float(torch.linalg.vector_norm(x.detach(), dtype=torch.float64)) if x.is_floating_point() else float("nan")
        )
        yield path, str(tuple(x.shape)), str(x.dtype).removeprefix("torch."), f"{norm:.4g}"


def notes(signals: Mapping[str, torch.Tensor], most: int) -> Iterator[str]:
    if len(signals) > most:
        yield f"… and {len(signals) - most} more"
    if any(path.rpartition(".")[2].startswith("Delta_") for path in signals):
        yield SIGN


def sized(n_bytes: int) -> str:
    """
    >>> sized(999), sized(2_500_000)
    ('999 bytes', '2.5 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
