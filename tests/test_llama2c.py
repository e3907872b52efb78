"""llama2.c files: the real one writes its text, others are made here; whatever is not one is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from test_gguf import paired
from test_model import batch, randomised, relative

import handgrad as hg
from handgrad.core.errors import FileError
from handgrad.generate.generate import complete
from handgrad.generate.sample import Sampling

DATA = Path(__file__).parents[2] / "shared" / "data"
STORIES, GOLDEN = DATA / "stories260K.bin", DATA / "stories260K.golden.txt"
SHAPE = {"vocabulary": 11, "context": 13, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_model": 16, "d_mlp": 12}
ORDER = ["norm_1.gamma", "attention.query.w", "attention.key.w", "attention.value.w", "attention.out.w"]
ORDER += ["norm_2.gamma", "mlp.gate.w", "mlp.down.w", "mlp.up.w"]


def written(path: Path, model: hg.Model) -> Path:
    """A model of ours as llama2.c stores it."""
    c, p = model.config, model.params
    tokens = c.vocabulary if c.tied else -c.vocabulary
    numbers = (c.d_model, c.d_inner, c.n_layers, c.n_heads, c.n_kv_heads or c.n_heads, tokens, c.context)
    parts = [p["embedding.token.w_emb"]]
    for name in ORDER:
        for i in range(c.n_layers):
            w = p[f"blocks.{i}.{name}"]
            w = w.mT if name.endswith(".w") else w
            heads = {"attention.query.w": numbers[3], "attention.key.w": numbers[4]}.get(name)
            parts.append(paired(w, heads) if heads else w)
    parts += [p["norm.gamma"], torch.full((c.context * c.head,), 7.0)]
    parts += [] if c.tied else [p["head.w_emb"]]
    content = b"".join(x.float().contiguous().numpy().tobytes() for x in parts)
    path.write_bytes(struct.pack("<7i", *numbers) + content)
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_ours_comes_back(tmp_path: Path, tied: bool) -> None:
    model = randomised(hg.LlamaConfig(**SHAPE, tied=tied))
    found = hg.load(written(tmp_path / "m.bin", model))
    assert found.config == model.config
    assert found.tokenizer is None
    for name, w in model.params.items():
        assert torch.equal(found.params[name], w.float()), name
    assert relative(found(batch(1)).double(), model(batch(1))) < 1e-5


@pytest.mark.skipif(not STORIES.exists(), reason=f"{STORIES.name} is not there")
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_real_model_writes_its_story(use_cache: bool) -> None:
    model = hg.load(STORIES)
    assert (model.config.n_heads, model.config.n_kv_heads, model.tokenizer.vocab_size) == (8, 4, 512)
    ids = complete(model, torch.tensor([1]), 200, Sampling(greedy=True), use_cache=use_cache).tolist()
    story = GOLDEN.read_text(encoding="utf-8")
    assert model.tokenizer.decode(ids) == story
    assert story.startswith(model.tokenizer.decode(ids[:199]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:10], "a header of 28 bytes expected, 10 found"),
        (lambda b: b"", "a header of 28 bytes expected, 0 found"),
        (lambda b: b[:-4], r"cut short, damaged or no llama2.c file: [\d,]+ bytes expected, [\d,]+ found"),
        (lambda b: b + b"\0" * 4, r"[\d,]+ bytes expected, [\d,]+ found"),
        (lambda b: struct.pack("<7i", 0, *[4] * 6) + b[28:], "sizes must be above 0"),
        (lambda b: struct.pack("<7i", *[2**31 - 1] * 7) + b[28:], "no llama2.c file: it begins with"),
        (lambda b: struct.pack("<7i", 2**20, 2**23, 9999, 2**19, 1, 2**24, 2**24) + b[28:], "bytes expected"),
        (lambda b: struct.pack("<7i", 16, 12, 2, 4, 3, 11, 13) + b[28:], "n_kv_heads 3 does not divide n_heads 4"),
        (lambda b: struct.pack("<7i", 16, 12, 2, 5, 5, 11, 13) + b[28:], "d_model 16 is not a multiple of n_heads 5"),
        (lambda b: b"24ka" + b[4:], "version 1 or later; version 0 is read"),
        (lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 99\n", "Git LFS pointer"),
        (lambda b: b"PK\x03\x04" + b[4:], "pickle or an archive of torch, which can run code, and is never read"),
        (lambda b: b"\x80\x02" + b[2:], "pickle or an archive of torch"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change, message: str) -> None:
    whole = written(tmp_path / "m.bin", randomised(hg.LlamaConfig(**SHAPE, tied=True))).read_bytes()
    (tmp_path / "m.bin").write_bytes(change(whole))
    with pytest.raises(FileError, match=message) as found:
        hg.load(tmp_path / "m.bin")
    assert "\n" not in str(found.value)


def test_tokenizers_beside_it_that_are_not_its_own(tmp_path: Path) -> None:
    """Said, and not left out in silence: what is missing would look like a model without a tokenizer."""
    path = written(tmp_path / "m.bin", randomised(hg.LlamaConfig(**{**SHAPE, "vocabulary": 260})))
    for name in ("tok260.bin", "tokenizer.bin"):
        (tmp_path / name).write_bytes(pieces(261))
        with pytest.raises(FileError, match=rf"{name} has 261 tokens, and m.bin beside it 260: it is not this model's"):
            hg.load(path)
        assert hg.load(path, tokenizer=False).tokenizer is None
        (tmp_path / name).write_bytes(pieces(260))
        assert hg.load(path).tokenizer.vocab_size == 260
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 6227\n")
        with pytest.raises(FileError, match=f"{name} is a Git LFS pointer, not the file of 6227 bytes"):
            hg.load(path)
        (tmp_path / name).unlink()


def pieces(n: int) -> bytes:
    """A llama2.c tokenizer of so many tokens."""
    tokens = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{b:02X}>" for b in range(256)), *(f"x{i}" for i in range(n - 259))]
    return struct.pack("<i", 8) + b"".join(struct.pack("<fi", 0.0, len(t)) + t.encode() for t in tokens)
