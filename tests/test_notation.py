"""Every signal and parameter that the code shows is in the glossary, and the glossary names nothing else."""

import re
from pathlib import Path

import torch

import handgrad as hg

PAGE = Path(__file__).parents[1] / "docs" / "notation.md"


def first_column(heading):
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def shown():
    model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=2, n_heads=2, d_model=6, dropout=0.1))
    with hg.watch(model, "*") as signals, model.running(seed=1):
        model.loss(torch.tensor([[1, 2, 3]]))
        model.backward()
    return {path.rpartition(".")[2] for path in signals}, {name.rpartition(".")[2] for name in model.params}


def test_every_signal_is_in_the_glossary():
    signals, _ = shown()
    glossary = first_column("Signals")
    forward = {n for n in signals if not n.startswith("Delta_")}
    errors = {n for n in signals if n.startswith("Delta_") and n not in glossary}
    assert forward == {n for n in glossary if not n.startswith("Delta_")}
    assert {n.removeprefix("Delta_") for n in errors} - {"from_token", "from_position"} == forward
    assert {n for n in signals if n.startswith("Delta_from_")} == {n for n in glossary if n.startswith("Delta_")}


def test_every_parameter_is_in_the_glossary():
    assert shown()[1] == first_column("Parameters")
