"""Every case is held to every law; every rule and every layer has a case."""

import inspect
import pkgutil
from dataclasses import replace

import pytest
import torch

import handgrad.layers
import handgrad.rules
from handgrad.check import cases, laws
from handgrad.check.plant import Mistake, planted
from handgrad.check.report import LawBroken
from handgrad.core import combine
from handgrad.rules import additive


@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("law", laws.LAWS, ids=lambda f: f.__name__)
def test_law(case, law):
    law(case)


def test_every_rule_has_a_case_with_a_reference():
    rules = {m.name for m in pkgutil.iter_modules(handgrad.rules.__path__) if not m.ispkg}
    assert rules == {c.rule for c in cases.CASES if c.rule}


def layers_inside(layer):
    """The classes of a layer tree."""
    yield type(layer)
    for value in [getattr(layer, n) for n in dir(layer) if not n.startswith("__")]:
        values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        for part in values:
            if callable(getattr(part, "backward", None)) and callable(getattr(part, "slots", None)):
                yield from layers_inside(part)


def test_every_layer_has_a_case():
    modules = [combine]
    for m in pkgutil.iter_modules(handgrad.layers.__path__):
        modules.append(__import__(f"handgrad.layers.{m.name}", fromlist=["x"]))
    exported = {
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and callable(getattr(cls, "backward", None))
    }
    tested = {cls for c in cases.CASES for cls in layers_inside(c.layer)}
    assert exported - tested == set()
    assert len(exported) >= 12


def test_cases_without_a_reference_are_random_or_made_of_parts_that_have_one():
    assert {c.name for c in cases.CASES if c.reference is None} == {
        "dropout",
        "block with dropout",
        "chain",
        "recomputed block",
    }


def wrong_backward(case, change):
    """The case with a backward pass spoilt by `change(Delta_below)`."""

    class Spoilt(type(case.layer)):
        def backward(self, p, Delta, saved, grads, run):
            return change(super().backward(p, Delta, saved, grads, run), p, Delta, saved, grads)

    spoilt = Spoilt(**{f: getattr(case.layer, f) for f in case.layer.__dataclass_fields__})
    return replace(case, layer=spoilt)


def leak(D, *_):
    D = D.clone()
    D[:, -1] += D[:, 0] + 1
    return D


def overwrite(D, p, Delta, saved, grads):
    Delta += 1
    return D


def assign(D, p, Delta, saved, grads):
    grads.tree["b"].copy_(Delta.sum((0, 1)))
    return D


@pytest.mark.parametrize(
    ("law", "change"),
    [
        ("oracle", lambda D, *_: 2 * D),
        ("adjoint", lambda D, *_: 1.00001 * D),
        ("linearity", lambda D, *_: D.square()),
        ("linearity", lambda D, *_: D + 1),
        ("accumulation", assign),
        ("purity", overwrite),
        ("causality", leak),
        ("batch", lambda D, *_: D.flip(0)),
        ("batch", lambda D, *_: D / len(D)),
    ],
)
def test_each_law_can_fail(law, change):
    with pytest.raises(LawBroken):
        getattr(laws, law)(wrong_backward(cases.case("linear"), change))


def test_the_recompute_law_can_fail():
    class Forgetful(type(cases.case("dropout").layer)):
        def forward(self, p, a, run):
            return super().forward(p, a, replace(run, seed=int(torch.randint(1 << 40, ())), path=run.path))

    with pytest.raises(LawBroken, match="changes under Recompute"):
        laws.recompute(replace(cases.case("dropout"), layer=Forgetful(0.3)))


def test_the_reference_law_can_fail():
    spoilt = replace(cases.case("gelu tanh"), reference=cases.case("gelu erf").reference)
    with pytest.raises(LawBroken, match=r"forward differs by \d"):
        laws.reference(spoilt)


def test_the_agreement_law_can_fail():
    mistake = Mistake(
        "twice",
        additive.chunked_forward,
        "return torch.cat(scores, 2)",
        "return 2 * torch.cat(scores, 2)",
        "additive",
        "agreement",
    )
    laws.agreement(cases.case("additive"))
    with planted(mistake), pytest.raises(LawBroken, match="the fused output differs"):
        laws.agreement(cases.case("additive"))
