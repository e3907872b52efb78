"""docs/settings.md tells the truth: every key and its default, the file can be trained with, the Python runs."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import handgrad as hg
from handgrad.cli.settings import resolve
from handgrad.layers.frequencies import SCALINGS
from handgrad.layers.pointwise import ACTIVATIONS
from handgrad.train import TrainConfig

PAGE = (Path(__file__).parents[1] / "docs" / "settings.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in PAGE.splitlines() if line[:1] == "|"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def default(config: type, name: str) -> object:
    return next(f.default for f in fields(config) if f.name == name)


def told(cell: str) -> object:
    return {"true": True, "false": False}.get(cell, cell.strip('"`') if cell.startswith("`") else as_number(cell))


def as_number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def test_every_key_of_a_model_is_told_with_its_default() -> None:
    both = {row[0].strip("`"): row[2:] for row in ROWS if len(row) == 4 and row[0][0] == "`"}
    llama = {row[0].strip("`"): row[2] for row in ROWS if len(row) == 3 and row[0] in only_llama()}
    assert set(both) == {f.name for f in fields(hg.GPT2Config)}
    assert set(both) | set(llama) == {f.name for f in fields(hg.LlamaConfig)}
    for name, cells in both.items():
        for config, cell in zip((hg.GPT2Config, hg.LlamaConfig), cells, strict=True):
            assert default(config, name) in (told(cell), MISSING), (name, cell)
    for name, cell in llama.items():
        assert default(hg.LlamaConfig, name) in (told(cell), MISSING), (name, cell)
    assert ", ".join([*ACTIVATIONS][:-1]) + f" or {[*ACTIVATIONS][-1]}" in PAGE


def only_llama() -> set[str]:
    return {f"`{f.name}`" for f in fields(hg.LlamaConfig)} - {f"`{f.name}`" for f in fields(hg.GPT2Config)}


def test_every_rotary_scaling_is_told_with_its_keys() -> None:
    found = {row[0].strip('`"'): row[1] for row in ROWS if row[0].startswith('`"')}
    assert set(found) == set(SCALINGS)
    for kind, cell in found.items():
        keys = dict(re.findall(r"`(\w+)`(?: \((\d+)\))?", cell))
        assert set(keys) == {f.name for f in fields(SCALINGS[kind])}
        for f in fields(SCALINGS[kind]):
            assert keys[f.name] == "" if f.default is MISSING else float(keys[f.name]) == f.default, (kind, f.name)


def test_every_key_of_a_training_is_told() -> None:
    section = PAGE[PAGE.index("### `[train]`") : PAGE.index("### `[data]`")]
    assert {f.name for f in fields(TrainConfig)} == set(re.findall(r"`([a-z]\w+)`", section))


def test_the_file_can_be_trained_with(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "llama.toml").write_text(text)
    settings = resolve({}, [], None, str(tmp_path / "llama.toml"))
    shape = settings.model_config(256)
    assert isinstance(shape, hg.LlamaConfig)
    assert (shape.n_kv_heads, shape.rope.original, settings.train.steps) == (2, 32, 20)
    assert hg.build(shape).params.layout.count > 0


@pytest.mark.parametrize("block", blocks("python"))
def test_the_python_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "docs/settings.md", "exec"), {})  # noqa: S102  our own page
    assert capsys.readouterr().out.strip()
