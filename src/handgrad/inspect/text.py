"""Text and numbers as a page shows them: nothing unprintable, nothing too long, nothing that acts as markup.

Escaping for HTML is the template's work (autoescape); what is made here is still plain text.
"""

from __future__ import annotations

import html
import math

_KEPT_IN_PROSE = frozenset("\n\t\u200c\u200d")
_MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "": "(empty)"}


def _picture(char: str) -> str:
    """A sign for a character that has none: Unicode's control pictures, otherwise its number in brackets."""
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"⟨{code:04X}⟩"


def printable(text: str) -> str:
    """Running text without control characters, reading-direction overrides or lone surrogates; lines are kept.

    >>> print(printable("a\\x00b\\u202ec"))
    a␀b⟨202E⟩c
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in _KEPT_IN_PROSE or (char.isspace() and ord(char) > 0x9F)
        else _picture(char)
        for char in text
    )


def visible(token: str) -> str:
    """A token so that every character of it can be seen: a space becomes `·`, a line end `⏎`.

    >>> visible("the end\\n"), visible("\\t"), visible("\\x1b"), visible("")
    ('the·end⏎', '⇥', '␛', '(empty)')
    """
    if token == "":
        return _MARKS[""]
    return "".join(_MARKS.get(char) or (char if char.isprintable() else _picture(char)) for char in token)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of a label: its start and its end, `…` for what is gone between them.

    >>> shorten("blocks.3.attention.Delta_raw", 20), shorten("abc", 3)
    ('blocks.3.…Delta_raw', 'abc')
    """
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return text[:half] + "…" + text[len(text) - half :]


def plot_text(text: str) -> str:
    """A label for plotly, which reads a small set of tags and TeX between dollars: here both are only text.

    >>> plot_text('<a href="x">'), plot_text("$5")
    ('&lt;a href="x"&gt;', '&#36;5')
    """
    return html.escape(printable(text), quote=False).replace("$", "&#36;")


def number(value: float) -> str:
    """Four significant digits, powers of ten written out, and words where there is no number.

    >>> number(0.0123456), number(12345.6), number(1.5e-7), number(0.0), number(float("nan"))
    ('0.01235', '12,346', '1.5×10⁻⁷', '0', 'not a number')
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "−infinite"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e7:
        return (f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}").replace("-", "−")
    mantissa, exponent = f"{value:.3e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    power = power_of_ten(int(exponent))
    return power if mantissa == "1" else f"{mantissa}×{power}"


def power_of_ten(exponent: int) -> str:
    """Ten to a whole power, with raised digits.

    >>> power_of_ten(-12)
    '10⁻¹²'
    """
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def places(positions: list[int], steps: list[int]) -> str:
    """Where something happened, by step, without listing more than three.

    >>> places([0, 2], [10, 20, 30]), places([0, 1, 2, 3], [10, 20, 30, 40])
    ('step 10, 30', 'step 10, 20, 30 and 1 more')
    """
    shown = ", ".join(f"{steps[i]:,}" for i in positions[:3])
    more = len(positions) - 3
    return f"step {shown}" + (f" and {more:,} more" if more > 0 else "")
