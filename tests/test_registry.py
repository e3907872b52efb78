"""Every equation of the catalogue has its code, its passage in the docs and its check, and each check can fail."""

import inspect
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from handgrad.check import registry
from handgrad.check.equation import Equation
from handgrad.check.mistakes import MISTAKES
from handgrad.check.plant import planted
from handgrad.check.registry import EQUATIONS, equation, missing, object_of, resolve, run_check, status
from handgrad.check.report import LawBroken
from handgrad.core.errors import HandgradError, UnknownName

CATALOGUE = Path(__file__).resolve().parents[2] / "shared" / "design" / "equations.md"
LAWS = "laws of a head"

# The catalogue's own list, kept apart from the registry: a row that goes missing there is missed here.
IDS = {
    "data and loss": "shift cross-entropy smoothing z-loss",
    "embedding": "token-embedding learned-position sinusoidal-position rotary alibi tying",
    "fully connected": "linear pointwise gated residual dropout",
    "normalisation": "layer-norm rms-norm",
    "one attention head": (
        "projections raw scaled causal softmax mixing downstream key-bias temperature windows fully-masked-row"
    ),
    LAWS: (
        "causality permutation-equivariance permutation-invariance shift-invariance quadratic-cost composition "
        "kv-cache qv-cache cache-bytes"
    ),
    "many heads": "multi-head sum-of-heads grouped-queries cross-attention block exact-split gpt lora",
    "recurrent": "rnn lstm growing-memory additive-score",
    "rebuilding the weights": (
        "fixed-weights source-only self-only source-and-end full-matrix-function diagonal one-hot-sum "
        "non-interaction-terms tanh-interaction bilinear low-rank normalisation heads mlp mlp-as-key-value-store "
        "rnn-against-parallel"
    ),
}
OPTIONAL = {"z-loss", "alibi"}


def test_the_registry_lists_the_catalogue_in_its_order() -> None:
    found: dict[str, list[str]] = {}
    for e in EQUATIONS:
        found.setdefault(e.section, []).append(e.id)
    assert found == {section: ids.split() for section, ids in IDS.items()}
    assert {e.id for e in EQUATIONS if e.optional} == OPTIONAL


def catalogue_rows(text: str) -> dict[str, list[str]]:
    """First cells of the tables below each heading; the line above a rule is a row too, unless it names columns."""
    rows: dict[str, list[str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:].partition(" (")[0].partition(",")[0].lower()
        elif line.startswith("| ") and (name := line.split("|")[1].strip()) not in ("id", "rung"):
            rows.setdefault(section, []).append(name)
    return rows


def slug(name: str) -> str:
    return re.sub(r"[^a-z]+", "-", re.sub(r"\([^()]*\)", "", name).lower()).strip("-")


def test_the_registry_has_a_row_for_each_row_of_the_catalogue() -> None:
    if not CATALOGUE.is_file():
        pytest.skip("shared/design/equations.md is not beside this checkout, so there is nothing to count")
    rows = catalogue_rows(CATALOGUE.read_text(encoding="utf-8"))
    names = {"recurrent models": "recurrent"}
    counted = {names.get(section, section): len(found) for section, found in rows.items()}
    assert counted == {s: n for s, n in Counter(e.section for e in EQUATIONS).items() if s != LAWS}
    ids = [e.id for e in EQUATIONS if e.section != LAWS]
    wanted = [slug(name) for found in rows.values() for name in found]
    assert all(want.startswith(id) for id, want in zip(ids, wanted, strict=True)), list(zip(ids, wanted, strict=True))


def test_no_two_rows_share_an_id_or_a_passage() -> None:
    assert [id for id, n in Counter(e.id for e in EQUATIONS).items() if n > 1] == []
    assert [page for page, n in Counter(e.page for e in EQUATIONS).items() if n > 1] == []
    assert all(e.anchor.startswith("eq-") for e in EQUATIONS)
    assert all(len(e.forward) > 3 and len(e.backward) > 3 for e in EQUATIONS)


@pytest.mark.parametrize("e", EQUATIONS, ids=lambda e: e.id)
def test_every_equation_has_code_a_passage_and_a_check(e: Equation) -> None:
    assert missing(e) == []
    if not registry.DOCS.is_dir():
        assert resolve(e).page is None


@pytest.mark.parametrize("e", EQUATIONS, ids=lambda e: e.id)
def test_the_check_of_every_equation_holds(e: Equation) -> None:
    run_check(e)


def plants_in(code: str) -> list:
    """Mistakes planted in this very function, or in a method of this class."""
    found = object_of(code)
    methods = list(vars(found).values()) if inspect.isclass(found) else [found]
    return [m for m in MISTAKES if any(m.function is method for method in methods)]


PLANTED = sorted({e.code for e in EQUATIONS if plants_in(e.code)})


@pytest.mark.parametrize("code", PLANTED)
def test_a_mistake_in_the_code_breaks_the_check_of_its_equation(code: str) -> None:
    rows = [e for e in EQUATIONS if e.code == code]
    for mistake in plants_in(code):
        with planted(mistake):
            if any(broken(e) for e in rows):
                return
    pytest.fail(f"no mistake in {code} breaks a check of {[e.id for e in rows]}")


def broken(e: Equation) -> bool:
    try:
        run_check(e)
    except (HandgradError, RuntimeError):  # a matrix that no longer fits is found before it is compared
        return True
    return False


def test_most_code_objects_have_planted_mistakes() -> None:
    assert len(PLANTED) >= 20


def test_what_is_missing_is_named() -> None:
    e = replace(equation("linear"), code="handgrad.rules.gone:backward", check="case:no such case", page="gone.md#eq-x")
    assert resolve(e).code is resolve(e).check is resolve(e).complete is False
    assert missing(e)[0] == "no code handgrad.rules.gone:backward"
    assert missing(e)[-1] == "no check case:no such case"
    if registry.DOCS.is_dir():
        assert missing(e)[1] == "no page gone.md#eq-x"
    assert status(e).startswith("no code handgrad.rules.gone:backward; ")
    with pytest.raises(LawBroken, match="the check of linear, case:no such case, does not exist"):
        run_check(e)
    assert missing(replace(e, code="handgrad.rules.linear:forwards"))[0] == "no code handgrad.rules.linear:forwards"
    assert not resolve(replace(e, check="handgrad.check.laws:no_such_law")).check


def test_an_unknown_equation_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no equation named 'softmx'; did you mean 'softmax'"):
        equation("softmx")


def test_a_page_without_the_anchor_is_missing(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    page = tmp_path / "rules" / "pointwise.md"
    page.write_text("### Linear {#eq-linears}\n")
    assert resolve(equation("linear"), tmp_path).page is False
    page.write_text("### Linear { .x #eq-linear }\n\ntext\n")
    assert resolve(equation("linear"), tmp_path).page is True
    assert resolve(equation("linear"), tmp_path / "none").page is None
