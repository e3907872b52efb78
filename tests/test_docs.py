"""The docs: every formula can be shown and read, every passage is known to the registry, every table is complete."""

import importlib.util
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from handgrad.check.mistakes import MISTAKES
from handgrad.check.registry import EQUATIONS, anchors
from handgrad.check.tables import COLUMNS, from_csv

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


math, pages = tool("mkdocs_math"), tool("mkdocs_pages")


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def page(uri: str = "a.md") -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=uri), toc=[])


def rendered(markdown: str, caplog: pytest.LogCaptureFixture) -> tuple[str, list[str]]:
    """The page with its formulas put back, and the warnings."""
    at = page()
    with caplog.at_level(logging.WARNING):
        held = math.on_page_markdown(markdown, at)
    return math.on_page_content(held, at), [record.getMessage() for record in caplog.records]


def test_formulas_become_mathml_and_code_stays(caplog: pytest.LogCaptureFixture) -> None:
    text = "a $b_c$ `$d$`\n\n```sh\necho $OUT $e$ \\$f\n```\n\n$$ f\n+ g $$\n\n``$`h`$`` costs \\$5\n"
    shown, warnings = rendered(text, caplog)
    assert warnings == []
    assert shown.count("<math") == 2
    assert shown.count('display="inline"') == shown.count('display="block"') == 1
    for kept in ("`$d$`", "echo $OUT $e$ \\$f", "``$`h`$`` costs $5"):
        assert kept in shown
    assert "<msub><mi>b</mi><mi>c</mi></msub>" in shown


def test_markdown_sees_no_sign_of_a_formula() -> None:
    held = math.on_page_markdown("| $a | b_c * d_e * f$ |", page())
    assert re.fullmatch(r"\| \ue0000\ue001 \|", held)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r"$\nosuch + b$", r"a.md: the formula $\nosuch + b$ cannot be shown: there is no command \nosuch"),
        (r"$\begin{pmatrix} a$", r"a.md: the formula $\begin{pmatrix} a$ cannot be shown: "),
        ("costs $5 here", "a.md: a dollar without its partner after 'costs '; write \\$ for one"),
    ],
)
def test_what_cannot_be_shown_is_a_warning(text: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = rendered(text, caplog)[1]
    assert warning.startswith(message)


def test_headings_in_the_list_of_contents_show_formulas() -> None:
    at = page()
    held = math.on_page_markdown("$a$", at)
    inner = SimpleNamespace(title=held, children=[])
    at.toc = [SimpleNamespace(title=f"On {held}", children=[inner])]
    math.on_page_content("", at)
    assert at.toc[0].title.startswith("On <math")
    assert inner.title.startswith("<math")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_formula_of_the_docs_can_be_shown(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert rendered(path.read_text(encoding="utf-8"), caplog)[1] == []


@pytest.mark.parametrize("e", EQUATIONS, ids=lambda e: e.id)
def test_every_formula_of_the_registry_can_be_shown(e) -> None:
    found = math.formulas(pages.formula(e.forward) + "\n" + pages.formula(e.backward))
    assert len(found) == len(e.forward.split("; ")) + len(e.backward.split("; "))
    assert all(math.mathml(latex, display=False) for latex in found)


def glossary() -> set[str]:
    section = (DOCS / "notation.md").read_text(encoding="utf-8").partition("## Symbols in formulas")[2]
    rows = [line.split(" | ")[0] for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {symbol for row in rows for symbol in re.findall(r"`([^`]+)`", row)}


def test_every_symbol_of_the_docs_is_in_the_glossary_and_no_other() -> None:
    used: dict[str, str] = {}
    for path in PAGES:
        for formula in math.formulas(path.read_text(encoding="utf-8")):
            used |= dict.fromkeys(math.symbols(formula), f"{name_of(path)}: ${formula}$")
    assert {symbol: where for symbol, where in used.items() if symbol not in glossary()} == {}
    assert glossary() - used.keys() == set()


def test_the_first_page_lists_every_other_and_the_readme_those_of_commands() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w/-]+\.md)\)", index)) == {name_of(path) for path in PAGES} - {"index.md"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("models", "plan", "speed", "tokenizers", "verify"):
        assert f"(docs/{name}.md)" in readme, name


@pytest.mark.parametrize("path", sorted((DOCS / "rules").glob("*.md")), ids=name_of)
def test_every_page_of_the_rules_includes_code(path: Path) -> None:
    """A formatter that takes the marks for Python spreads them, and the pages then show the marks."""
    text = path.read_text(encoding="utf-8")
    named = re.findall(r'^--8<-- "(.+)"$', text, re.MULTILINE)
    assert any("def forward" in (ROOT / "src" / name).read_text(encoding="utf-8") for name in named)
    assert len(named) == len(re.findall(r"8\s*<", text))


def test_every_passage_is_known_to_the_registry() -> None:
    found = {f"{name_of(path)}#{a}" for path in PAGES for a in anchors(path) if a.startswith("eq-")}
    assert found == {e.page for e in EQUATIONS}


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2].partition("\n\n")[0]
    assert sorted(re.findall(r": (\S+\.md)$", nav, flags=re.MULTILINE)) == [name_of(path) for path in PAGES]


@pytest.mark.parametrize("e", EQUATIONS, ids=lambda e: e.id)
def test_every_equation_has_links_to_its_code_and_its_check(e) -> None:
    made = pages.on_page_markdown(f"### Title {{#{e.anchor}}}\n\ntext\n", page(e.file))
    up = "../" if "/" in e.file else ""
    links = re.findall(rf'<a href="{re.escape(up)}(code/[^"]+)\.html#__codelineno-0-(\d+)">', made)
    module = e.code.partition(":")[0].removeprefix("handgrad.").replace(".", "/")
    assert links[0][0] == f"code/{module}"
    assert len(links) >= 2
    for file, line in links:
        source = ROOT / "src" / "handgrad" / f"{file.removeprefix('code/')}.py"
        at = source.read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert re.match(r" *(def |class |@|Case\()", at), (file, line, at)


def test_the_table_of_mistakes_is_complete_and_every_mistake_was_seen() -> None:
    text = (DOCS / "mistakes.csv").read_text(encoding="utf-8")
    rows = from_csv(text)
    assert text.startswith(",".join(COLUMNS) + "\n")
    assert [(r["rule"], r["planted"], r["line"], r["wrong"], r["on"], r["expected"]) for r in rows] == [
        (m.rule, m.what, m.line, m.wrong, m.on, m.where) for m in MISTAKES
    ], "run `make mistakes`"
    assert all(r["seen"] == r["expected"] and r["ok"] == "yes" for r in rows)
    shown = pages.mistakes()
    assert shown.count("\n| ") == len(MISTAKES)
    assert f"{len(MISTAKES)} mistakes planted, {len(MISTAKES)} seen at the place that was expected." in shown


def test_the_table_of_gradients_is_that_of_the_code() -> None:
    shown = pages.gradients()
    assert "| `blocks.*.mlp.up.w` | 2 | 128 × 512 | $\\text{norm₂}^\\top  \\Delta _{\\text{up}}$ | 65,536 |" in shown
    assert "Together 413,312 parameters; the tied tensor is counted once." in shown
    assert all(math.mathml(latex, display=False) for latex in math.formulas(shown))
