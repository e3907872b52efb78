"""The notebooks run from top to bottom, and what they show is there."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def tool():
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "tools" / "notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_holds_what_it_shows(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    done = tool().run(json.loads(path.read_text(encoding="utf-8")))
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code)
    kinds = [[one["output_type"] for one in cell["outputs"]] for cell in code]
    again = [[one["output_type"] for one in cell["outputs"]] for cell in done["cells"] if cell["cell_type"] == "code"]
    assert kinds == again


def test_there_is_a_notebook_on_factors():
    assert [path.name for path in NOTEBOOKS] == ["gradients.ipynb"]


def test_a_cell_that_raises_is_not_swallowed():
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": [], "execution_count": None}
    with pytest.raises(ZeroDivisionError):
        tool().run({"cells": [cell]})
