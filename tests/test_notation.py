"""Every signal and parameter that the code shows is in the glossary, and the glossary names nothing else."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

import handgrad as hg
from handgrad.check.cases import CASES
from handgrad.core import Accumulate, Watch

# Parts that a case of the law tests names itself.
CHOSEN = {"one", "two", "three"}
COUNTED = re.compile(r"^((?:Delta_|Delta_from_)?)[1-9]\d*$")
PAGE = Path(__file__).parents[1] / "docs" / "notation.md"


def first_column(heading):
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def of_gpt():
    model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=2, n_heads=2, d_model=6, dropout=0.1))
    with hg.watch(model, "*") as signals, model.running(seed=1):
        model.loss(torch.tensor([[1, 2, 3]]))
        model.backward()
    return signals, model.params


def of_case(case):
    p, a, Delta = case.draw(1)
    signals = Watch(("*",))
    run = replace(case.run, signals=signals)
    _, saved = case.layer.forward(p.tree, a, run)
    case.layer.backward(p.tree, Delta, saved, Accumulate(p.layout.zeros(p.flat.dtype).tree), run)
    return signals, p


@cache
def shown():
    """Last parts of the paths of all signals and parameters, of GPT-2 and of every case; parts are counted 0, 1."""
    signals, parameters = set(), set()
    for paths, names in [of_gpt(), *map(of_case, CASES)]:
        signals |= {COUNTED.sub(r"\g<1>1", path.rpartition(".")[2]) for path in paths}
        parameters |= {name.rpartition(".")[2] for name in names}
    chosen = {prefix + name for prefix in ("", "Delta_", "Delta_from_") for name in CHOSEN}
    return signals - chosen, parameters


def test_every_signal_is_in_the_glossary():
    signals, _ = shown()
    glossary = first_column("Signals")
    forward = {n for n in signals if not n.startswith("Delta_")}
    senders = {n for n in signals if n.startswith("Delta_from_")}
    assert forward == {n for n in glossary if not n.startswith("Delta_")}
    assert {n.removeprefix("Delta_") for n in signals - forward - senders} == forward
    assert {n.removeprefix("Delta_from_") for n in senders} <= forward
    assert {n for n in glossary if n.startswith("Delta_")} <= senders


def test_every_parameter_is_in_the_glossary():
    assert shown()[1] == first_column("Parameters")
