"""Checkpoints: whole or absent, through kill -9, a full disk, and files that are not what they should be."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import handgrad as hg
from handgrad.core.errors import FileError, NumericError
from handgrad.data.tokenizers import Chars, save_tokenizer
from handgrad.train import checkpoint
from handgrad.train.checkpoint import Progress, clean, latest, load, save
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State

SHAPE = hg.GPT2Config(vocabulary=3, context=4, n_layers=1, n_heads=1, d_model=8)
TOKENIZER = Chars(("a", "b", "c"))
CONFIG = TrainConfig(steps=50, seed=5, lr=0.1 + 0.2)


def made(step: int, dtype: torch.dtype = torch.float32, shape: hg.GPT2Config = SHAPE):
    model = hg.build(shape, seed=step, dtype=dtype)
    state = State(torch.randn_like(model.params.flat), torch.rand_like(model.params.flat), step)
    for moment in (state.m, state.v):  # gaps of the layout are 0, and are not stored
        gaps = torch.ones_like(moment, dtype=torch.bool)
        for name in model.params:
            model.params.like(gaps)[name].fill_(False)
        moment[gaps] = 0
    return model, state, Progress(step, 1.5, 1.25, 1.0, 2, 3.5, 100 * step)


def written(folder: Path, step: int, **how) -> Path:
    return save(folder, *made(step, **how), CONFIG, TOKENIZER)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    model, state, progress = made(7, dtype)
    folder = save(tmp_path, model, state, progress, CONFIG, TOKENIZER)
    assert folder == tmp_path / "checkpoints" / "step_000007" == latest(tmp_path)
    found = load(folder)
    assert torch.equal(found.model.params.flat, model.params.flat)
    assert found.model.params.flat.dtype == dtype
    assert torch.equal(found.state.m, state.m)
    assert torch.equal(found.state.v, state.v)
    assert found.state.step == 7
    assert (found.progress, found.config, found.model.config) == (progress, CONFIG, SHAPE)
    assert found.model.tokenizer == TOKENIZER


def test_the_files_are_as_described(tmp_path: Path) -> None:
    folder = written(tmp_path, 500)
    names = ["optimiser.safetensors", "params.safetensors", "state.json", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    stored = load_file(folder / "params.safetensors")
    model = made(500)[0]
    assert set(stored) == set(model.params)
    assert "head.w_emb" in model.params.layout.slots
    assert "head.w_emb" not in stored, "a tied parameter is stored once"
    assert set(load_file(folder / "optimiser.safetensors")) == {f"{m}.{name}" for m in "mv" for name in model.params}
    with safe_open(folder / "params.safetensors", "pt") as file:
        assert file.metadata()["handgrad_checkpoint"] == "1"
        assert json.loads(file.metadata()["config"])["d_model"] == 8
    state = json.loads((folder / "state.json").read_text())
    assert state["step"] == 500
    assert state["seed"] == 5
    assert state["best_val_loss_nats"] == 1.0
    assert state["tokens_seen"] == 50000
    assert state["model"]["kind"] == "gpt2"
    assert state["train"]["lr"] == 0.1 + 0.2
    assert set(state["versions"]) == {"handgrad", "torch", "numpy", "python"}


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (9, 100, 999_999, 1_000_000):
        written(tmp_path, step)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step_1000000", "step_999999"]
    assert latest(tmp_path).name == "step_1000000"


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    written(tmp_path, 3)
    model, state, progress = made(4)
    save(tmp_path, model, state, replace(progress, step=3), CONFIG, TOKENIZER)
    assert torch.equal(load(latest(tmp_path)).model.params.flat, model.params.flat)
    assert os.listdir(tmp_path / "checkpoints") == ["step_000003"]


def test_a_checkpoint_is_hidden_before_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in the middle of removing an old checkpoint must not leave half of it under a name that counts."""
    removed = []
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **_: removed.append(Path(path).name))
    for step in (1, 2, 3):
        written(tmp_path, step)
    assert [name for name in removed if "step_000001" in name and "old" in name]
    assert all(name.startswith(".unfinished-") for name in removed)


def test_leftovers_do_not_count_and_are_cleaned(tmp_path: Path) -> None:
    folder = written(tmp_path, 3)
    left_over = tmp_path / "checkpoints" / ".unfinished-step_000009-1"
    left_over.mkdir()
    (left_over / "params.safetensors").write_bytes(b"half")
    (tmp_path / "checkpoints" / "step_000099").write_text("a file")
    assert latest(tmp_path) == folder
    clean(tmp_path)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step_000003", "step_000099"]
    assert latest(tmp_path / "nowhere") is None


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    folder = written(tmp_path, 3)
    model, state, progress = made(4)
    model.params["blocks.0.mlp.up.w"][0, 0] = float("inf")
    with pytest.raises(NumericError, match=r"step 4 is not written: blocks\.0\.mlp\.up\.w is no longer finite"):
        save(tmp_path, model, state, progress, CONFIG, TOKENIZER)
    assert latest(tmp_path) == folder


# A full disk, at every call that can meet it.


@pytest.mark.parametrize("at", range(9))
def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    folder = written(tmp_path, 3)
    calls = 0

    def failing(real):
        def call(*given, **how):
            nonlocal calls
            calls += 1
            if calls == at + 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*given, **how)

        return call

    monkeypatch.setattr(checkpoint, "save_file", failing(checkpoint.save_file))
    monkeypatch.setattr(checkpoint.Path, "write_bytes", failing(Path.write_bytes))
    monkeypatch.setattr(checkpoint.os, "fsync", failing(os.fsync))
    with pytest.raises(FileError) as caught:
        written(tmp_path, 4)
    monkeypatch.undo()
    assert calls == at + 1
    assert str(caught.value) == (
        f"cannot write the checkpoint {tmp_path}/checkpoints/step_000004: No space left on device. "
        f"The checkpoint {folder} is complete and unchanged; free some space or check permissions, then resume"
    )
    assert load(latest(tmp_path)).progress.step == 3
    assert os.listdir(tmp_path / "checkpoints") == ["step_000003"]


def test_what_the_library_says_of_a_full_disk_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given, **how):
        raise checkpoint.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(FileError, match=r"No space left on device.*No earlier checkpoint was there to lose"):
        written(tmp_path, 4)


# kill -9 at random moments. One process forks savers and kills them: starting Python anew each time would take minutes.

KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import handgrad as hg
from handgrad.data.tokenizers import Chars
from handgrad.train.checkpoint import Progress, clean, latest, load, save
from handgrad.train.config import TrainConfig
from handgrad.train.optimiser import State

run = Path(sys.argv[1])
tokenizer = Chars(("a", "b", "c"))
shape = hg.GPT2Config(vocabulary=3, context=4, n_layers=2, n_heads=1, d_model=32)

def save_on(step):
    model = hg.build(shape, seed=0)
    state = State.zeros(model.params.flat)
    while True:
        step += 1
        for flat, value in ((model.params.flat, step), (state.m, step + 0.25), (state.v, step + 0.5)):
            flat.fill_(value)
        state.step = step
        save(run, model, state, Progress(step=step, tokens_seen=step), TrainConfig(), tokenizer)

draw = random.Random(1)
step, left_over = 0, 0
for attempt in range(16):
    child = os.fork()
    if child == 0:
        save_on(step)
    began, before = time.perf_counter(), latest(run)
    while latest(run) == before and time.perf_counter() - began < 60:
        time.sleep(0.001)
    a_save = min(1.0, time.perf_counter() - began)  # one save at least, then somewhere within the next two
    time.sleep(draw.uniform(0.0, 2.0) * a_save)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = load(latest(run))
    assert found.progress.step >= step, "an older checkpoint than before"
    step = found.progress.step
    for flat, value in ((found.model.params, step), (found.model.params.like(found.state.m), step + 0.25),
                        (found.model.params.like(found.state.v), step + 0.5)):
        assert all(bool((flat[name] == value).all()) for name in flat), "a set of two moments"
    assert found.state.step == found.progress.tokens_seen == step
    left_over += len(list((run / "checkpoints").glob(".*")))
    if attempt % 3 == 2:
        clean(run)
        assert all(name.startswith("step_") for name in os.listdir(run / "checkpoints"))
print(step, left_over)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork, so the killed savers cannot be made")
def test_killed_at_random_moments_the_last_checkpoint_loads_as_one_set(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert killed.returncode == 0, killed.stderr
    step, left_over = map(int, killed.stdout.split())
    assert step >= 16, "every saver finishes one save at least"
    assert left_over > 0, "no kill fell into a save, so nothing was tried"


# Files that are not what they should be.


def header(path: Path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def rewrite(path: Path, change) -> None:
    head, data = header(path)
    change(head)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def without(name: str):
    def change(path: Path) -> None:
        tensors = load_file(path)
        meta = header(path)[0]["__metadata__"]
        del tensors[name]
        save_file(tensors, path, meta)

    return change


def changed(name: str, f):
    def change(path: Path) -> None:
        tensors = load_file(path)
        meta = header(path)[0]["__metadata__"]
        tensors[name] = f(tensors.get(name))
        save_file(tensors, path, meta)

    return change


def fields(**new):
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **new}))

    return change


def model_fields(**new):
    def change(path: Path) -> None:
        state = json.loads(path.read_text())
        state["model"] |= new
        path.write_text(json.dumps(state))

    return change


UP = "blocks.0.mlp.up.w"
DAMAGE = [
    ("params.safetensors", Path.unlink, "is not a whole checkpoint: params.safetensors is missing"),
    ("params.safetensors", cut, "damaged or cut short: expected a whole safetensors file, [0-9]+ bytes found"),
    ("params.safetensors", lambda path: path.write_bytes(b""), "damaged or cut short.*0 bytes found"),
    ("params.safetensors", lambda path: path.write_bytes(b"\xff" * 64), "damaged or cut short"),
    ("params.safetensors", lambda path: path.write_bytes(b"\x80\x04K\x01." * 9), "damaged or cut short"),
    ("params.safetensors", without(UP), rf"{UP} expected, and missing"),
    ("params.safetensors", changed("extra", lambda _: torch.zeros(2)), "extra found, and not expected"),
    ("params.safetensors", changed(UP, lambda x: x.T.contiguous()), r"should be \(8, 32\) of F32, found \(32, 8\)"),
    ("params.safetensors", changed(UP, torch.Tensor.double), r"should be \(8, 32\) of F32, found \(8, 32\) of F64"),
    ("params.safetensors", lambda p: rewrite(p, lambda h: h["__metadata__"].update(step="4")), "step should be '3'"),
    ("params.safetensors", lambda p: rewrite(p, lambda h: h.pop("__metadata__")), "are not of one set"),
    ("optimiser.safetensors", Path.unlink, "optimiser.safetensors is missing"),
    (
        "optimiser.safetensors",
        changed(f"m.{UP}", lambda x: x * float("nan")),
        rf"damaged: [mv]\.{UP} has a number that is not finite",
    ),
    (
        "optimiser.safetensors",
        changed(f"v.{UP}", lambda x: x / 0),
        rf"damaged: [mv]\.{UP} has a number that is not finite",
    ),
    (
        "optimiser.safetensors",
        changed(f"v.{UP}", lambda x: -1 - 0 * x),
        rf"damaged: [mv]\.{UP} has -1 in it, and a mean of squares is never",
    ),
    ("optimiser.safetensors", cut, "optimiser.safetensors is damaged or cut short"),
    ("optimiser.safetensors", without(f"v.{UP}"), rf"v\.{UP} expected, and missing"),
    ("optimiser.safetensors", lambda p: rewrite(p, lambda h: h["__metadata__"].update(step="4")), "step should be '3'"),
    ("tokenizer.json", Path.unlink, "no tokenizer file"),
    ("tokenizer.json", lambda p: save_tokenizer(Chars(("a", "b")), p), "not the tokenizer .* fingerprint"),
    ("state.json", Path.unlink, "is not a checkpoint: state.json is missing"),
    ("state.json", lambda path: path.write_text('{"handgrad_checkpoint": 1'), "damaged, it is not JSON"),
    ("state.json", lambda path: path.write_text("[" * 100_000), "nested too deeply|not JSON"),
    ("state.json", lambda path: path.write_text(" " * (5 << 20)), "too many for such a file"),
    ("state.json", lambda path: path.write_text("[]"), "expected the field 'handgrad_checkpoint'"),
    ("state.json", fields(handgrad_checkpoint=2), "has format 2, and this version of handgrad reads 1"),
    ("state.json", fields(step="3"), "step is '3', which has the wrong type"),
    ("state.json", fields(step=True), "step is True, which has the wrong type"),
    ("state.json", fields(step=-1), "step is -1, and cannot be below 0"),
    ("state.json", fields(loss_nats=float("nan")), "NaN is not a number that JSON knows"),
    ("state.json", fields(dtype="float16"), "dtype is 'float16'; known: float32, float64"),
    ("state.json", fields(dtype="float64"), "of F64, found"),
    (
        "state.json",
        fields(optimiser_step=10**400),
        "optimiser_step is 10+[.]{3}, and cannot be above 9223372036854775807",
    ),
    ("state.json", fields(seed=-1), "seed is -1, and cannot be below 0"),
    ("state.json", fields(best_step=-1), "best_step is -1, and cannot be below 0"),
    ("state.json", fields(val_loss_nats=10**400), "val_loss_nats is 10+[.]{3}, and no loss is that large"),
    ("state.json", fields(elapsed_s=1e308), "elapsed_s is 1e[+]308, and cannot be above 1000000000000"),
    ("state.json", fields(tokens_sha256=None), "tokens_sha256 is None, which has the wrong type"),
    ("state.json", fields(train={"steps": -1}), "--steps is -1, and must be at least 1"),
    ("state.json", fields(train={"lrr": 1}), "named 'lrr'; did you mean 'lr'"),
    ("state.json", fields(train={"lr": -1.0}), "--lr is -1.0"),
    ("state.json", model_fields(d_model=16), "should be .* found"),
    ("state.json", model_fields(n_layers=10_000), "10000 layers are expected, [0-9]+ tensors found"),
    ("state.json", model_fields(n_layers=2), "expected, and missing"),
    ("state.json", model_fields(vocabulary=2), "should be .* found|3 tokens, more than the 2"),
    ("state.json", model_fields(n_heads=3), "d_model 8 is not a multiple of n_heads 3"),
    ("state.json", model_fields(kind="os.system"), "no kind of model"),
    ("state.json", model_fields(dropout=0.5), "config should be"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE, ids=[f"{d[0]}-{i}" for i, d in enumerate(DAMAGE)])
def test_damage_is_named_and_nothing_is_loaded(tmp_path: Path, name: str, damage, message: str) -> None:
    folder = written(tmp_path, 3)
    damage(folder / name)
    with pytest.raises(FileError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    folder = written(tmp_path, 3)
    for name in ("params.safetensors", "state.json"):
        (folder / name).rename(folder / "kept")
        os.mkfifo(folder / name)
        with pytest.raises(FileError, match="missing"):
            load(folder)
        (folder / name).unlink()
        (folder / "kept").rename(folder / name)
    assert load(folder).progress.step == 3


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(FileError, match=r"cannot write the checkpoint .*step_000003"):
        written(tmp_path, 3)
