"""GGUF files: every type of number, both orders of rotary features, and files that are damaged or hostile."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_llama import CASES
from test_model import batch, randomised, relative

import handgrad as hg
from handgrad.core.errors import FileError
from handgrad.layers.frequencies import LinearScaling, Llama3, Plain
from handgrad.models.gguf_header import KINDS, read_header
from handgrad.models.load import config_of

gguf = pytest.importorskip("gguf")

PARTS = {
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.out": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "norm_1": "attn_norm",
    "norm_2": "ffn_norm",
}
WHOLE = {
    "embedding.token.w_emb": "token_embd.weight",
    "norm.gamma": "output_norm.weight",
    "head.w_emb": "output.weight",
}
BLOCKS = {"vocabulary": 11, "context": 29, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "d_model": 64, "d_mlp": 96}


def theirs(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    _, i, rest = name.split(".", 2)
    part, _, leaf = rest.rpartition(".")
    return f"blk.{i}.{PARTS[part]}.{'bias' if leaf == 'b' else 'weight'}"


def paired(w: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a q or k matrix as the converter of that program orders them: first and second halves alternate."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def written(path: Path, model: hg.Model, kind: str = "F32", arch: str = "llama", more=None, tensors=None) -> Path:
    """`model` as a GGUF file, matrices in `kind`; `more` are further fields, `tensors` further tensors."""
    c = model.config
    file = gguf.GGUFWriter(str(path), arch)
    file.add_context_length(c.context)
    file.add_embedding_length(c.d_model)
    file.add_block_count(c.n_layers)
    file.add_feed_forward_length(c.d_inner)
    file.add_head_count(c.n_heads)
    file.add_head_count_kv(c.n_kv_heads or c.n_heads)
    file.add_key_length(c.head)
    file.add_value_length(c.head)
    file.add_layer_norm_rms_eps(c.epsilon)
    file.add_rope_freq_base(c.rope.base)
    for add in more or ():
        add(file)
    for name, w in model.params.items():
        w = w.mT if name.endswith(".w") else w
        heads = {"query": c.n_heads, "key": c.n_kv_heads or c.n_heads}.get(name.split(".")[-2], 0)
        if heads and arch == "llama":
            w = paired(w, heads)
        numbers = w.contiguous().float().numpy()
        if numbers.ndim == 2 and kind != "F32":
            quant = gguf.GGMLQuantizationType[kind]
            file.add_tensor(theirs(name), gguf.quants.quantize(numbers, quant), raw_dtype=quant)
        else:
            file.add_tensor(theirs(name), numbers)
    for name, x in (tensors or {}).items():
        file.add_tensor(name, x)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def rounded(name: str, w: torch.Tensor, kind: str) -> torch.Tensor:
    """`w` after it was stored in `kind`."""
    if w.ndim < 2 or kind == "F32":
        return w.float()
    quant, x = gguf.GGMLQuantizationType[kind], (w.mT if name.endswith(".w") else w).contiguous().float().numpy()
    back = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(x, quant), quant))
    return back.mT if name.endswith(".w") else back


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_type_of_number(tmp_path: Path, kind: str) -> None:
    model = randomised(hg.LlamaConfig(**BLOCKS))
    found = hg.load(written(tmp_path / "m.gguf", model, kind))
    assert found.config == model.config
    for name, w in model.params.items():
        assert torch.equal(found.params[name], rounded(name, w, kind)), name
    assert relative(found(batch(1)).double(), model(batch(1))) < {"F32": 1e-5, "F16": 1e-2}.get(kind, 0.5)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_what_that_package_makes_of_them(tmp_path: Path, kind: str) -> None:
    config = hg.LlamaConfig(**{**BLOCKS, "d_model": 256, "d_mlp": 256, "n_heads": 4, "n_layers": 1})
    model, quant = randomised(config), gguf.GGMLQuantizationType[kind]
    block, n_bytes = gguf.GGML_QUANT_SIZES[quant]
    assert KINDS[int(quant)] == (kind, block, n_bytes)
    raw = np.random.default_rng(0).integers(0, 60, (11, n_bytes), dtype=np.uint8)  # below 60: scales that are finite
    path = tmp_path / "m.gguf"
    file = gguf.GGUFWriter(str(path), "llama")
    add_shape(file, config)
    for name, w in model.params.items():
        if name == "embedding.token.w_emb":
            file.add_tensor(theirs(name), raw, raw_dtype=quant)
        else:
            file.add_tensor(theirs(name), (w.mT if name.endswith(".w") else w).contiguous().float().numpy())
    finish(file)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, quant))
    assert expected.isfinite().all()
    assert torch.equal(hg.load(path).params["embedding.token.w_emb"], expected)


def add_shape(file, c: hg.LlamaConfig) -> None:
    file.add_context_length(c.context)
    file.add_embedding_length(c.d_model)
    file.add_block_count(c.n_layers)
    file.add_feed_forward_length(c.d_inner)
    file.add_head_count(c.n_heads)
    file.add_head_count_kv(c.n_kv_heads or c.n_heads)
    file.add_layer_norm_rms_eps(c.epsilon)


def finish(file) -> None:
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def test_types_agree_with_that_package() -> None:
    for number, (name, block, n_bytes) in KINDS.items():
        quant = gguf.GGMLQuantizationType(number)
        assert (quant.name, *gguf.GGML_QUANT_SIZES[quant]) == (name, block, n_bytes)


@pytest.mark.parametrize("name", ["plain", "grouped, tied", "one key head", "offsets (Qwen2)"])
def test_both_orders_of_rotary_features(tmp_path: Path, name: str) -> None:
    model = randomised(CASES[name])
    found = hg.load(written(tmp_path / "m.gguf", model, arch="qwen2" if model.config.bias else "llama"))
    assert found.config == model.config
    assert relative(found(batch(1, length=19)).double(), model(batch(1, length=19))) < 1e-5
    twice = model.params.like(model.params.flat.clone())
    w = twice["blocks.0.attention.query.w"]
    w.copy_(paired(w.mT.contiguous(), model.config.n_heads).mT)
    model.params = twice
    assert relative(found(batch(1, length=19)).double(), model(batch(1, length=19))) > 1e-3  # the order matters


def test_scalings(tmp_path: Path) -> None:
    model = randomised(hg.LlamaConfig(**BLOCKS, rope=Plain(100.0)))
    linear = [
        lambda f: f.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
        lambda f: f.add_rope_scaling_factor(4.0),
    ]
    assert config_of(written(tmp_path / "l.gguf", model, more=linear)).rope == LinearScaling(4.0, 100.0)
    yarn = [lambda f: f.add_rope_scaling_type(gguf.RopeScalingType.YARN)]
    with pytest.raises(FileError, match=r"rope\.scaling\.type is yarn"):
        hg.load(written(tmp_path / "y.gguf", model, more=yarn))
    base, width = Plain(5e5), 64
    three = Llama3(8.0, 1.0, 4.0, 8192, 5e5)
    factors = torch.tensor(base.frequencies(width)) / torch.tensor(three.frequencies(width))
    wide = randomised(hg.LlamaConfig(**{**BLOCKS, "d_head": width}, rope=base))
    path = written(tmp_path / "3.gguf", wide, tensors={"rope_freqs.weight": factors.float().numpy()})
    assert hg.load(path).config.rope == three
    odd = written(tmp_path / "o.gguf", wide, tensors={"rope_freqs.weight": np.linspace(1, 3, 32, dtype=np.float32)})
    with pytest.raises(FileError, match=r"rope_freqs.weight slows rotary positions in a way that is not llama3's"):
        hg.load(odd)


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"rope.scaling.factor": 4.0}, LinearScaling(4.0, 100.0)),  # the type left out is linear
        ({"rope.scale_linear": 4.0}, LinearScaling(4.0, 100.0)),  # the older name
        ({"rope.scaling.factor": 1.0, "rope.scale_linear": 4.0}, Plain(100.0)),  # the newer one counts
        ({"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0}, Plain(100.0)),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, Plain(100.0)),
        ({"rope.scaling.type": "none", "rope.scale_linear": 4.0}, Plain(100.0)),
        ({"rope.scaling.type": "linear"}, Plain(100.0)),
    ],
)
def test_a_scaling_is_what_llama_cpp_makes_of_these_fields(tmp_path: Path, fields: dict, rope: object) -> None:
    model = randomised(hg.LlamaConfig(**BLOCKS, rope=Plain(100.0)))
    assert config_of(written(tmp_path / "m.gguf", model, more=[adding(fields)])).rope == rope


def adding(fields: dict):
    def add(file) -> None:
        for name, value in fields.items():
            (file.add_string if isinstance(value, str) else file.add_float32)(f"llama.{name}", value)

    return add


def test_two_scalings_at_once_are_refused(tmp_path: Path) -> None:
    base, width = Plain(5e5), 64
    three = Llama3(8.0, 1.0, 4.0, 8192, 5e5)
    factors = torch.tensor(base.frequencies(width)) / torch.tensor(three.frequencies(width))
    model = randomised(hg.LlamaConfig(**{**BLOCKS, "d_head": width}, rope=base))
    both = {"tensors": {"rope_freqs.weight": factors.float().numpy()}}
    for name in ("rope.scaling.factor", "rope.scale_linear"):
        path = written(tmp_path / f"{name}.gguf", model, more=[adding({name: 4.0})], **both)
        with pytest.raises(FileError, match=rf"{name} is 4.0, and rope_freqs.weight slows rotary positions besides"):
            hg.load(path)
    none = adding({"rope.scaling.type": "none", "rope.scaling.factor": 4.0})
    assert config_of(written(tmp_path / "n.gguf", model, more=[none], **both)).rope == three


def test_what_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    model = randomised(hg.LlamaConfig(**BLOCKS))
    cases = {
        "no architecture named 'falcon'": {"arch": "falcon"},
        "is one of 3 parts": {"more": [lambda f: f.add_uint16("split.count", 3)]},
        "expert_count is 8": {"more": [lambda f: f.add_expert_count(8)]},
        "rope.dimension_count is 8, and handgrad computes only": {"more": [lambda f: f.add_rope_dimension_count(8)]},
        "output_norm.bias found, and no part of": {"tensors": {"output_norm.bias": np.zeros(64, np.float32)}},
        "blk.0.attn_q.bias, blk.0.attn_k.bias, blk.0.attn_v.bias expected, and missing": {"arch": "qwen2"},
    }
    for i, (message, how) in enumerate(cases.items()):
        with pytest.raises(FileError, match=message) as found:
            hg.load(written(tmp_path / f"{i}.gguf", model, **how))
        assert "\n" not in str(found.value)


def test_cut_and_padded_files(tmp_path: Path) -> None:
    whole = written(tmp_path / "m.gguf", randomised(hg.LlamaConfig(**BLOCKS))).read_bytes()
    for n in (0, 3, 4, 7, 20, 24, 30, 100, 300, 900, len(whole) // 2, len(whole) - 40):
        (tmp_path / "cut.gguf").write_bytes(whole[:n])
        with pytest.raises(FileError, match="cut short"):
            hg.load(tmp_path / "cut.gguf")
    (tmp_path / "more.gguf").write_bytes(whole + b"\0" * 64)
    with pytest.raises(FileError, match=rf"its header says {len(whole):,} bytes, found {len(whole) + 64:,}"):
        hg.load(tmp_path / "more.gguf")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


HUGE = 2**60


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGML" + bytes(40), "begins with b'GGML'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF of version 1; versions 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF of version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "claims 1,152,921,504,606,846,976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "and 1,152,921,504,606,846,976 fields"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE), "takes 1,152,921,504,606,846,976 bytes at 32"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, HUGE), "list of 1,152"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**21), "list of 2,097,152"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(16), "type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (text("a") + struct.pack("<IB", 0, 1)), "a is there twice"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 9), "has 9 axes"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 4, 99, 0), "the type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 31, 8, 0), "rows of 31"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, HUGE, 0, 0), "header says 4,611"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 1, 0, HUGE), "header says 1,152"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "has no general.architecture"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n", "Git LFS pointer.*98362432"),
    ],
)
def test_hostile_headers(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(FileError, match=message) as found:
        hg.load(tmp_path / "m.gguf")
    assert "\n" not in str(found.value)


def test_tensors_that_lie_on_each_other(tmp_path: Path) -> None:
    entries = text("a") + struct.pack("<IQIQ", 1, 16, 0, 0) + text("b") + struct.pack("<IQIQ", 1, 16, 0, 32)
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entries + bytes(200))
    with pytest.raises(FileError, match="b begins within a"):
        read_header(tmp_path / "m.gguf")


@pytest.mark.parametrize(("first", "second", "n"), [(0, 96, 160), (32, 96, 160)])
def test_bytes_that_belong_to_no_tensor(tmp_path: Path, first: int, second: int, n: int) -> None:
    """Between two tensors there is what aligns the second one, and nothing else."""
    entries = text("a") + struct.pack("<IQIQ", 1, 16, 0, first) + text("b") + struct.pack("<IQIQ", 1, 16, 0, second)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entries
    (tmp_path / "m.gguf").write_bytes(head + bytes(-len(head) % 32) + bytes(n))
    with pytest.raises(FileError, match=r"32 bytes between (a and b|the header and a) belong to no tensor"):
        read_header(tmp_path / "m.gguf")


def test_any_damage_to_the_header_is_refused_or_harmless(tmp_path: Path) -> None:
    """Bytes changed at random: a model, or one line; never another kind of end."""
    whole = written(tmp_path / "m.gguf", randomised(hg.LlamaConfig(**BLOCKS)), "Q8_0").read_bytes()
    draw, messages = random.Random(0), []
    for _ in range(150):
        changed = bytearray(whole)
        for _ in range(draw.choice((1, 1, 4))):
            changed[draw.randrange(1300)] = draw.randrange(256)
        (tmp_path / "c.gguf").write_bytes(changed)
        try:
            hg.load(tmp_path / "c.gguf")
        except FileError as error:
            messages.append(str(error))
    assert len(messages) > 75
    assert not any("\n" in message for message in messages)


def test_without_that_package_plain_numbers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomised(hg.LlamaConfig(**BLOCKS))
    plain, short = (written(tmp_path / f"{kind}.gguf", model, kind) for kind in ("F16", "Q8_0"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert hg.load(plain).config == model.config
    with pytest.raises(FileError, match=r"holds Q8_0 numbers, .* package gguf: pip install \"handgrad\[gguf\]\""):
        hg.load(short)
