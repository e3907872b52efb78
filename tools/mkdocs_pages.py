"""Pages of the docs that are made from the code when the site is built.

A hook of mkdocs. Three marks in the committed pages become tables:

    <!-- equations -->    the registry                         <!-- gradients -->    all gradients of a small GPT
    <!-- mistakes -->     docs/mistakes.csv

Every source file that one of these names gets a page of its own, `code/…html`, with an anchor at each line. Under each
heading with an anchor `{#eq-…}` that the registry knows, the links to its code and its check are put.
"""

from __future__ import annotations

import ast
import html
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from posixpath import relpath
from typing import Any

import handgrad as hg
from handgrad.check import laws, tables
from handgrad.check.equation import Equation
from handgrad.check.explain import explain, folded
from handgrad.check.registry import BY_NAME, EQUATIONS, ROOT, missing, place_of
from handgrad.core.errors import HandgradError

log = logging.getLogger("mkdocs.hooks.pages")

FOLDERS = ("core", "rules", "layers", "models", "generate", "receivers", "adapt", "who", "bridge", "check")
SHOWN = (*(f"src/handgrad/{part}" for part in FOLDERS), "tests")
HEADING = re.compile(r"^#+ .*\{[^{}\n]*#(eq-[\w-]+)[^{}\n]*\}[ \t]*$", re.MULTILINE)
SIGNS = {
    "ᵗ": r"^\top ", "²": "^2", "∘": r"\circ ", "·": r"\cdot ", "Σ": r"\sum ", "∂": r"\partial ", "∞": r"\infty ",
    "≤": r"\le ", "Δ": r"\Delta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "ε": r"\varepsilon ",
    "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "*": "^*", "{": "{", "}": "}",
}  # fmt: skip
WORD = "[A-Za-z]{2,}[₁₂]?"
WORDS = re.compile(rf" ?{WORD}(?:[ -]+(?:{WORD}|a(?= [a-z]{{2,}})))* ?")
LETTERS = "A-Za-z0-9α-ωΑ-Ω₁₂"
PART = re.compile(rf"√\(|√|[_^]\{{[^{{}}]*\}}|[_^][{LETTERS}]+|{WORDS.pattern}|.", re.DOTALL)


def latex(line: str) -> str:
    """A formula of the registry, which is one line of Unicode, as LaTeX; what is said in words stays words.

    >>> latex("Δ_raw = Δ_scaled/√d_ρ")
    '\\\\Delta _{\\\\text{raw}} = \\\\Delta _{\\\\text{scaled}}/\\\\sqrt{d_{\\\\rho }}'
    >>> latex("q kᵗ where it is seen")
    'q k^\\\\top \\\\text{ where it is seen}'
    >>> latex("√(σ² + ε)/2")
    '\\\\sqrt{\\\\sigma ^2 + \\\\varepsilon }/2'
    """
    out: list[str] = []
    parts = PART.findall(line)
    while parts:
        part = parts.pop(0)
        if part == "√":  # the root of one sign and its index
            inner = [parts.pop(0)] + ([parts.pop(0)] if parts and parts[0][0] in "_^" else [])
            out.append(rf"\sqrt{{{''.join(map(one, inner))}}}")
        elif part == "√(":
            inner, depth = [], 1
            while depth:
                inner.append(parts.pop(0))
                depth += {"(": 1, ")": -1}.get(inner[-1], 0)
            out.append(rf"\sqrt{{{''.join(map(one, inner[:-1]))}}}")
        else:
            out.append(one(part))
    return "".join(out)


def one(part: str) -> str:
    if part[0] in "_^" and len(part) > 1:
        inner = part[1:].strip("{}")
        is_word = re.fullmatch(r"[a-z]{3,}[₁₂]?", inner)
        shown = rf"\text{{{inner}}}" if is_word else "".join(map(one, PART.findall(inner)))
        return f"{part[0]}{{{shown}}}"
    return rf"\text{{{part}}}" if WORDS.fullmatch(part) else SIGNS.get(part, part)


def formula(line: str) -> str:
    """The parts of a registry formula, each for itself, as Markdown."""
    return "<br>".join(f"${latex(part.strip()).strip()}$" for part in line.split("; "))


def page_of(file: Path) -> str:
    """The page of a source file, from the root of the site.

    >>> page_of(ROOT / "src/handgrad/rules/attend.py"), page_of(ROOT / "tests/test_laws.py")
    ('code/rules/attend.html', 'code/tests/test_laws.html')
    """
    parts = file.relative_to(ROOT).as_posix().removeprefix("src/handgrad/")
    return f"code/{parts.removesuffix('.py')}.html"


def link(text: str, file: Path, line: int, from_page: str) -> str:
    target = relpath(page_of(file), str(Path(from_page).parent.as_posix()))
    return f'<a href="{target}#__codelineno-0-{line}">{html.escape(text)}</a>'


def case_place(name: str) -> tuple[Path, int]:
    """File and line of the case of that name."""
    for file in sorted((ROOT / "src/handgrad/check/cases").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and getattr(node.func, "id", "") == "Case":
                first = node.args[0]
                if isinstance(first, ast.Constant) and first.value == name:
                    return file, node.lineno
    raise LookupError(f"no case named {name} is written out in check/cases")


def code_link(e: Equation, from_page: str) -> str:
    file, line = place_of(e.code)
    name = e.code.partition(":")[2]
    return link(f"{file.relative_to(ROOT / 'src/handgrad').as_posix()}: {name}", file, line, from_page)


def check_link(e: Equation, from_page: str) -> str:
    return "<br>".join(one_check(check, from_page) for check in e.checks)


def one_check(check: str, from_page: str) -> str:
    what, _, name = check.partition(":")
    if what not in BY_NAME:
        file, line = place_of(check)
        return link(f"{file.stem}: {name}", file, line, from_page)
    laws_of = ", ".join(link(law, *place_of(f"{laws.__name__}:{law}"), from_page) for law in which_laws(what))
    return f"{link(f'case: {name}', *case_place(name), from_page)} ({laws_of})"


def which_laws(what: str) -> list[str]:
    return [law.__name__ for law in BY_NAME[what]]


def reach(e: Equation, from_page: str) -> str:
    """The line under an equation's heading."""
    try:
        checks = check_link(e, from_page).replace("<br>", ", ")
        return f'<p class="reach">code {code_link(e, from_page)} · check {checks}</p>'
    except (HandgradError, LookupError) as error:
        log.warning(f"{e.page}: {error}")
        return ""


def equations(from_page: str) -> str:
    """The registry as Markdown tables, one for each section."""
    out, section = [], ""
    for e in EQUATIONS:
        if absent := missing(e):
            log.warning(f"the equation {e.id} is not complete: {'; '.join(absent)}")
            continue
        if e.section != section:
            section = e.section
            out += ["", f"## {section.capitalize()}", ""]
            out += ["| equation | forward | backward | code and check |", "|---|---|---|---|"]
        name = f"[{e.id}]({e.page})" + (" (optional)" if e.optional else "")
        places = f"{code_link(e, from_page)}<br>{check_link(e, from_page)}"
        cells = (name, formula(e.forward), formula(e.backward), places)
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def gradients() -> str:
    """All gradients of a small GPT, as `handgrad explain` shows them, and the equations of each layer."""
    config = hg.GPT2Config(vocabulary=65, context=64, n_layers=2, n_heads=4, d_model=128)
    found = explain(hg.build(config, seed=0))
    out = ["| layer | how many | kind | rule | equations |", "|---|---|---|---|---|"]
    for r, n in folded(found.layers, "path"):
        pages = {e.id: e.page for e in EQUATIONS if not missing(e)}
        ids = ", ".join(f"[{id}]({pages[id]})" if id in pages else id for id in r.equations)
        out.append(f"| `{r.path}` | {n} | {r.layer} | `{r.rule}` | {ids} |")
    out += ["", "| gradient of | how many | shape | formula | parameters in each |", "|---|---|---|---|---|"]
    for r, n in folded(found.gradients, "name"):
        shape = " × ".join(map(str, r.shape))
        text = r.formula if r.tied_to else f"${latex(re.sub('_([12])', subscript, r.formula))}$"
        out.append(f"| `{r.name}` | {n} | {shape} | {text} | {r.count:,} |")
    out += ["", f"Together {found.total:,} parameters; the tied tensor is counted once."]
    return "\n".join(out)


def subscript(m: re.Match[str]) -> str:
    return {"1": "₁", "2": "₂"}[m.group(1)]


def mistakes() -> str:
    """The table of `make mistakes`."""
    rows = tables.from_csv((ROOT / "docs" / "mistakes.csv").read_text(encoding="utf-8"))
    out = ["| file | what was planted | instead of | stands | seen first at | expected |", "|---|---|---|---|---|---|"]
    for r in rows:
        cells = (r["rule"], r["planted"], *map(code, (r["line"], r["wrong"], r["seen"], r["expected"])))
        out.append("| " + " | ".join(cells) + " |")
    right = sum(r["ok"] == "yes" for r in rows)
    return "\n".join([*out, "", f"{len(rows)} mistakes planted, {right} seen at the place that was expected."])


def code(text: str) -> str:
    """Source on one line, safe in a cell of a table."""
    shown = html.escape(" ".join(text.split())).translate({ord(c): f"&#{ord(c)};" for c in "|*_`[]\\$"})
    return f"<code>{shown}</code>" if text else "nothing"


def source_files() -> Iterable[Path]:
    for folder in SHOWN:
        yield from sorted(f for f in (ROOT / folder).rglob("*.py") if f.read_text(encoding="utf-8").strip())


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Each source file becomes a page."""
    from mkdocs.structure.files import File

    for file in source_files():
        name = file.relative_to(ROOT).as_posix()
        text = file.read_text(encoding="utf-8")
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
        head = f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n# {name}\n\n"
        page = f'{head}{fence}{{.python linenums="1"}}\n{text}{fence}\n'
        uri = page_of(file).removesuffix(".html") + ".md"
        files.append(File.generated(config, uri, content=page))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links under the headings of equations, and tables where the marks are."""
    here = page.file.src_uri
    if here.startswith("code/"):
        return markdown
    known = {(e.file, e.anchor): e for e in EQUATIONS}

    def reached(m: re.Match[str]) -> str:
        e = known.get((here, m.group(1)))
        return m.group() if e is None else f"{m.group()}\n\n{reach(e, here)}\n"

    markdown = HEADING.sub(reached, markdown)
    for mark, made in (("equations", lambda: equations(here)), ("gradients", gradients), ("mistakes", mistakes)):
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", made())
    return markdown
