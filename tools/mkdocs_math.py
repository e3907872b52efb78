"""Formulas of the docs become MathML when the site is built, so that a page shows them offline and without a script.

A hook of mkdocs. `$...$` in a line and `$$...$$` by itself are formulas; code, in fences or backticks, is left alone,
and `\\$` is a dollar. A command that is not known, or a dollar without its partner, is a warning; a strict build stops.
"""

from __future__ import annotations

import html
import logging
import re
from typing import Any

from handgrad.lab.formula import mathml

log = logging.getLogger("mkdocs.hooks.math")

CODE = re.compile(
    r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2[`~]*[ \t]*$"  # a fence
    r"|(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\3(?!`)",  # code in a line
    re.DOTALL | re.MULTILINE,
)
FORMULA = re.compile(
    r"(?<!\\)\$\$(.+?)(?<!\\)\$\$"  # by itself
    r"|(?<![\\$])\$(?![\s$])((?:[^$\n\\]|\\.|\n(?!\s*\n))+?)(?<!\s)\$",  # in a line
    re.DOTALL,
)
LONE = re.compile(r"(?<!\\)\$")
HELD = re.compile("\ue000(\\d+)\ue001")

# Commands that arrange or space what they stand before, and are no symbols of their own.
ARRANGING = frozenset(
    re.findall(
        r"\w+",
        "frac dfrac tfrac sqrt left right big Big bigl bigr Bigl Bigr begin end text mathrm operatorname mathbf mathit "
        "quad qquad underbrace overbrace hat tilde bar widehat widetilde dot displaystyle limits ldots cdots dots "
        "vdots substack middle hspace phantom",
    )
)
WORD = re.compile(r"\\(?:text|mathrm|operatorname|mathbf)\s*\{([^{}]*)\}")
COMMAND = re.compile(r"\\([A-Za-z]+)")


def pieces(markdown: str) -> list[tuple[bool, str]]:
    """(is it code, text), in order; together they are the page.

    >>> pieces("a `$b` c")
    [(False, 'a '), (True, '`$b`'), (False, ' c')]
    """
    found, at = [], 0
    for code in CODE.finditer(markdown):
        found += [(False, markdown[at : code.start()]), (True, code.group())]
        at = code.end()
    return [(is_code, text) for is_code, text in [*found, (False, markdown[at:])] if text]


def formulas(markdown: str) -> list[str]:
    """The LaTeX of every formula of a page.

    >>> formulas("$a$ and `$b$` and $$c + d$$")
    ['a', 'c + d']
    """
    prose = [text for is_code, text in pieces(markdown) if not is_code]
    return [(m.group(1) or m.group(2)).strip() for text in prose for m in FORMULA.finditer(text)]


def symbols(formula: str) -> set[str]:
    """What a reader must know to read it: single letters, commands that are signs, and words set upright.

    >>> sorted(symbols(r"\\Delta_{q} = \\frac{x}{\\sqrt{d_\\rho}} \\quad \\mathrm{softmax}(x) \\text{ if it is so}"))
    ['\\\\Delta', '\\\\rho', 'd', 'q', 'softmax', 'x']
    """
    words = {w.strip() for w in re.findall(r"\\(?:mathrm|operatorname|mathbf)\s*\{([^{}]*)\}", formula)}
    rest = re.sub(r"\\(?:begin|end)\s*\{[^{}]*\}(\{[^{}]*\})?", " ", WORD.sub(" ", formula))
    commands = {f"\\{name}" for name in COMMAND.findall(rest) if name not in ARRANGING}
    rest = COMMAND.sub(" ", rest)
    return {w for w in words if re.search(r"[^\W\d]", w)} | commands | set(re.findall(r"[^\W\d_]", rest))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Each formula is held back behind a mark, so that Markdown sees none of its signs."""
    page.formulas = []

    def held(m: re.Match[str]) -> str:
        latex = (m.group(1) or m.group(2)).strip()
        try:
            page.formulas.append(mathml(latex, display=m.group(1) is not None))
        except ValueError as error:
            log.warning(f"{page.file.src_uri}: the formula ${latex}$ cannot be shown: {error}")
            page.formulas.append(f"<code>{html.escape(latex)}</code>")
        return f"\ue000{len(page.formulas) - 1}\ue001"

    out = []
    for is_code, text in pieces(markdown):
        if not is_code:
            text = FORMULA.sub(held, text)
            if lone := LONE.search(text):
                before = text[: lone.start()].rpartition("\n")[2][-60:]
                log.warning(f"{page.file.src_uri}: a dollar without its partner after '{before}'; write \\$ for one")
        out.append(text if is_code else text.replace("\\$", "$"))
    return "".join(out)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """The marks become the formulas, in the page and in its list of headings."""
    put = lambda text: HELD.sub(lambda m: page.formulas[int(m.group(1))], text)  # noqa: E731

    def walk(items: Any) -> None:
        for item in items:
            item.title = put(item.title)
            walk(item.children)

    walk(page.toc.items if hasattr(page.toc, "items") else page.toc)
    return put(content)
