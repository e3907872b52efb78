"""A formula in LaTeX as MathML, which a page shows offline and without a script."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert

NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
ELEMENTS = re.compile(
    r"math|m(row|i|n|o|s|text|space|frac|sqrt|root|style|error|padded|phantom|fenced|enclose|sub|sup|subsup|under|over)"
    r"|munderover|mmultiscripts|mprescripts|none|m(table|tr|td|labeledtr)"
)
ATTRIBUTES = re.compile(r"on|href|src|style|\{", re.IGNORECASE)  # none that acts


def mathml(latex: str, display: bool) -> str:
    """The formula as MathML, and nothing but MathML. Raises ValueError for a command that is not known.

    >>> mathml("a + b", display=False).startswith("<math")
    True
    >>> mathml(r"\\nonsense", display=False)
    Traceback (most recent call last):
    ValueError: there is no command \\nonsense
    """
    try:
        found = convert(latex, display="block" if display else "inline")
    except Exception as error:
        raise ValueError(f"{type(error).__name__} {error}".strip()) from None
    if "\\" in (shown := html.unescape(found)):
        commands = re.findall(r"\\[A-Za-z]*", shown)
        raise ValueError(f"there is no command {commands[0]}")
    only_mathml(found)
    return found


def only_mathml(text: str) -> None:
    """Raises ValueError where markup that was written into a formula came through the converter.

    >>> only_mathml(convert(r"\\text{<b>x</b>}"))
    Traceback (most recent call last):
    ValueError: <b> is no part of a formula
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"it holds markup of its own: {error}") from None
    for element in root.iter():
        if not ELEMENTS.fullmatch(name := element.tag.removeprefix(NAMESPACE)):
            raise ValueError(f"<{name}> is no part of a formula")
        if any(ATTRIBUTES.match(attribute) for attribute in element.attrib):
            raise ValueError(f"<{name}> has an attribute that no formula has")
