"""The model that comes along: it loads by its name, is as good as its recipe says, and is small."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

import handgrad as hg
from handgrad import bundled
from handgrad.cli import main
from handgrad.core.errors import FileError
from handgrad.data.tokenizers import Bytes
from handgrad.models.store import described
from handgrad.train.config import read_toml

NAME = "docs-1m"
FOLDER = Path(bundled.__file__).parent / NAME
FIGURES = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))


def test_names_are_found_and_others_are_not() -> None:
    assert bundled.NAMES == (NAME,)
    assert bundled.find(NAME) == FOLDER
    for other in ("", ".", "..", f"{NAME}/", "docs-1M", f"../bundled/{NAME}"):
        assert bundled.find(other) is None


def test_it_loads_by_name_as_the_model_of_its_recipe() -> None:
    model = hg.load(NAME)
    recipe = read_toml(FOLDER / "recipe.toml")
    table = described(model.config)
    assert {name: table[name] for name in recipe.model} == dict(recipe.model)
    assert model.params.layout.count == FIGURES["parameters"] == 968_064
    assert model.tokenizer == Bytes()
    assert str(model.params.flat.dtype) == "torch.float32"
    state = json.loads((FOLDER / "state.json").read_text(encoding="utf-8"))
    assert (state["step"], state["stored_dtype"]) == (recipe.train["steps"], "bfloat16")
    assert {name: state["train"][name] for name in recipe.train} == dict(recipe.train)
    assert recipe.data == {"sources": ["embedded"], "tokenizer": "bytes"}


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ("int8", "stored_dtype is 'int8'; known: float32, float64, bfloat16"),
        (None, "stored_dtype is None"),
        ("float32", r"embedding.token.w_emb should be \(256, 128\) of F32, found \(256, 128\) of BF16"),
    ],
)
def test_a_wrong_type_of_the_stored_numbers_is_refused(tmp_path: Path, stored: str | None, message: str) -> None:
    shutil.copytree(FOLDER, tmp_path / NAME)
    state = json.loads((FOLDER / "state.json").read_text(encoding="utf-8"))
    (tmp_path / NAME / "state.json").write_text(json.dumps(state | {"stored_dtype": stored}), encoding="utf-8")
    with pytest.raises(FileError, match=message):
        hg.load(tmp_path / NAME)


def test_its_loss_is_the_one_that_is_stated() -> None:
    text = (FOLDER / "held_out.txt").read_text(encoding="utf-8")
    model = hg.load(NAME)
    found = hg.evaluate(model, model.tokenizer.encode(text), stride=FIGURES["held_out_stride"])
    assert found.nats_a_token == pytest.approx(FIGURES["rounded"]["held_out_nats_a_token"], abs=1e-4)
    assert found.n_bytes == len(text.encode()) - 1
    for part in ("validation_nats_a_token", "held_out_nats_a_token"):
        assert FIGURES["rounded"][part] == pytest.approx(FIGURES["as_trained"][part], abs=0.01)
        assert f"{FIGURES['rounded'][part]:.4f}" in (FOLDER / "README.md").read_text(encoding="utf-8")
        assert f"{FIGURES['as_trained'][part]:.4f}" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_it_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert sizes["params.safetensors"] == FIGURES["bytes"]
    assert sum(sizes.values()) <= 2_000_000
    assert set(sizes) == {
        *("params.safetensors", "state.json", "tokenizer.json"),
        *("recipe.toml", "figures.json", "held_out.txt", "README.md"),
    }


def test_the_commands_work_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["generate", NAME, "--prompt", "The ", "--max-new-tokens", "40", "--greedy", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert len(text) == 40
    assert sum(character.isalpha() or character.isspace() for character in text) > 30
    held_out = str(FOLDER / "held_out.txt")
    assert main.run(["eval", NAME, held_out, "--stride", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nats_a_token"] == pytest.approx(FIGURES["rounded"]["held_out_nats_a_token"], abs=1e-4)
    assert main.run(["explain", NAME]) == 0
    assert "968,064 parameters" in capsys.readouterr().out
    arguments = ["verify", NAME, "--text", "a list of names", "--dtype", "float64", "--no-transformers"]
    assert main.run(arguments) == 0
    assert "rows hold" in capsys.readouterr().out


def test_the_recipe_is_a_configuration_that_train_reads() -> None:
    with open(FOLDER / "recipe.toml", "rb") as file:
        assert set(tomllib.load(file)) == {"model", "train", "data"}
