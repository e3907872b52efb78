"""`hg.load`: a run or a checkpoint becomes a model with its tokenizer; anything else is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import handgrad as hg
from handgrad.core.errors import FileError
from handgrad.data.tokenizers import Chars
from handgrad.train.checkpoint import Progress, save
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State

TOKENIZER = Chars(("a", "b", "c"))


def written(run: Path, step: int, **shape) -> hg.Model:
    config = hg.GPT2Config(**{"vocabulary": 3, "context": 4, "n_layers": 1, "n_heads": 2, "d_model": 8, **shape})
    model = hg.build(config, seed=step)
    save(run, model, State.zeros(model.params.flat), Progress(step), TrainConfig(), TOKENIZER)
    return model


def test_a_run_folder_gives_its_newest_checkpoint(tmp_path: Path) -> None:
    older, newer = written(tmp_path, 5), written(tmp_path, 12)
    tokens = torch.tensor([[0, 1, 2, 1]])
    for path, model in (
        (tmp_path, newer),
        (str(tmp_path), newer),
        (tmp_path / "checkpoints" / "step_000005", older),
        (tmp_path / "checkpoints" / "step_000012", newer),
    ):
        loaded = hg.load(path)
        assert torch.equal(loaded(tokens), model(tokens))
        assert loaded.config == model.config
        assert loaded.tokenizer == TOKENIZER
    assert not torch.equal(older(tokens), newer(tokens))


def test_tying_lives_on(tmp_path: Path) -> None:
    written(tmp_path, 1)
    model = hg.load(tmp_path)
    model.params["embedding.token.w_emb"][1, 2] = 42.0
    assert model.params["head.w_emb"][1, 2] == 42.0


@pytest.mark.parametrize("shape", [{"tied": False}, {"bias": False}, {"n_layers": 0}, {"d_mlp": 5}])
def test_every_shape_comes_back(tmp_path: Path, shape: dict) -> None:
    model = written(tmp_path, 1, **shape)
    loaded = hg.load(tmp_path)
    assert loaded.config == model.config
    assert all(torch.equal(loaded.params[name], model.params[name]) for name in model.params)


def test_the_loaded_model_trains_on(tmp_path: Path) -> None:
    written(tmp_path, 1)
    model = hg.load(tmp_path)
    model.loss(torch.tensor([[0, 1, 2]]))
    model.params.flat.sub_(model.backward().flat)
    assert torch.isfinite(model.params.flat).all()


def test_loading_needs_no_optimiser_file(tmp_path: Path) -> None:
    written(tmp_path, 1)
    os.remove(tmp_path / "checkpoints" / "step_000001" / "optimiser.safetensors")
    assert hg.load(tmp_path).config.d_model == 8


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no model '.*gone'; expected a run folder or a checkpoint folder"):
        hg.load(tmp_path / "gone")
    (tmp_path / "model.pt").write_bytes(b"\x80\x04")
    with pytest.raises(FileError, match=r"model.pt' is a file; expected a run folder"):
        hg.load(tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"holds no model; expected a run folder \(with checkpoints/\)"):
        hg.load(tmp_path)
    (tmp_path / "run" / "checkpoints" / ".unfinished-step_000003-1").mkdir(parents=True)
    with pytest.raises(FileError, match="has no checkpoint yet"):
        hg.load(tmp_path / "run")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "params.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match=r"half is not a checkpoint: state.json is missing"):
        hg.load(tmp_path / "half")


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    """The bytes would make a file when unpickled; under every name that load reads they make none."""
    marker = tmp_path / "marker"
    bomb = f"cos\nsystem\n(S'touch {marker}'\ntR.".encode()
    for name in ("params.safetensors", "state.json", "tokenizer.json"):
        run = tmp_path / name
        written(run, 1)
        (run / "checkpoints" / "step_000001" / name).write_bytes(bomb)
        with pytest.raises(FileError, match=r"damaged|is not JSON"):
            hg.load(run)
    (tmp_path / "model.pkl").write_bytes(bomb)
    with pytest.raises(FileError, match="is a file"):
        hg.load(tmp_path / "model.pkl")
    assert not marker.exists()
