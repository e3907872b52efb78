"""A trained model of another library, with every intermediate that it stored: our forward pass, signal by signal.

The fixture is not part of the project; where it is absent these tests skip and name it.
"""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import handgrad as hg
from handgrad.generate.generate import complete
from handgrad.generate.sample import Sampling

DATA = Path(__file__).parents[2] / "shared" / "data"
MODEL, STORED = DATA / "gpt-nano-sort-model.json", DATA / "gpt-nano-sort-t0-partials.json"
LARGEST_GAP = 2e-6  # float32 on two machines

pytestmark = pytest.mark.skipif(not MODEL.exists() or not STORED.exists(), reason=f"{MODEL.name} is not there")


def arrays(node, at=""):
    """Name -> tensor of every array below a JSON node."""
    if isinstance(node, dict) and "data" in node:
        flat = np.frombuffer(base64.b64decode(node["data"]), dtype="<f4").copy()
        return {at: torch.from_numpy(flat).reshape(node["shape"])}
    if isinstance(node, dict):
        return {name: x for key, child in node.items() for name, x in arrays(child, key).items()}
    return {}


@pytest.fixture(scope="module")
def sorter():
    theirs = {k.removeprefix("transformer."): v for k, v in arrays(json.loads(MODEL.read_text())).items()}
    model = hg.build(
        hg.GPT2Config(vocabulary=3, context=11, n_layers=3, n_heads=3, d_model=48, activation="gelu_tanh", tied=False)
    )
    p = model.params
    p["embedding.token.w_emb"], p["embedding.position.w_pos"] = theirs["wte.weight"], theirs["wpe.weight"]
    p["norm.gamma"], p["norm.beta"], p["head.w_emb"] = (
        theirs["ln_f.weight"],
        theirs["ln_f.bias"],
        theirs["lm_head.weight"],
    )
    for i in range(3):
        ours, his = f"blocks.{i}.", f"h.{i}."
        for norm, ln in (("norm_1", "ln_1"), ("norm_2", "ln_2")):
            p[f"{ours}{norm}.gamma"], p[f"{ours}{norm}.beta"] = theirs[f"{his}{ln}.weight"], theirs[f"{his}{ln}.bias"]
        for name, his_name in (("attention.out", "attn.c_proj"), ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")):
            p[f"{ours}{name}.w"] = theirs[f"{his}{his_name}.weight"].mT
            p[f"{ours}{name}.b"] = theirs[f"{his}{his_name}.bias"]
        for k, branch in enumerate(("query", "key", "value")):
            rows = slice(48 * k, 48 * (k + 1))
            p[f"{ours}attention.{branch}.w"] = theirs[f"{his}attn.c_attn.weight"][rows].mT
            p[f"{ours}attention.{branch}.b"] = theirs[f"{his}attn.c_attn.bias"][rows]
    return model


def test_every_stored_intermediate_is_ours(sorter):
    stored = arrays(json.loads(STORED.read_text()))
    with hg.watch(sorter, "*") as ours:
        sorter(stored["idx"].long())
    pairs = {
        "tok_emb": ours["embedding.token"],
        "x": ours["embedding"],
        "ln1": ours["blocks.0.norm_1"],
        "q": ours["blocks.0.attention.q"],
        "k": ours["blocks.0.attention.k"],
        "v": ours["blocks.0.attention.v"],
        "att": ours["blocks.0.attention.causal"],
        "attSm": ours["blocks.0.attention.rho"],
        "y": ours["blocks.0.attention.out"].transpose(1, 2).flatten(2),
        "yProj": ours["blocks.0.attention"],
        "attnResid": ours["blocks.0.h"],
        "ln2": ours["blocks.0.norm_2"],
        "fc": ours["blocks.0.mlp.up"],
        "gelu": ours["blocks.0.mlp.activation"],
        "mlp": ours["blocks.0.mlp"],
        "block0": ours["blocks.0"],
        "block1": ours["blocks.1"],
        "block2": ours["blocks.2"],
        "ln_f": ours["norm"],
        "lm_head": ours["head"],
        "probs": ours["head"].softmax(-1),
    }
    gaps = {}
    for name, x in pairs.items():
        right = stored[name]
        assert x.shape == right.shape, name
        assert torch.equal(torch.isinf(x), torch.isinf(right)), name
        finite = torch.isfinite(right)
        gaps[name] = float(((x - right)[finite].abs() / right[finite].abs().clamp(min=1)).max())
    assert {name: gap for name, gap in gaps.items() if gap > LARGEST_GAP} == {}
    assert len(gaps) == 21


def test_it_sorts_two_hundred_of_two_hundred(sorter):
    digits = torch.randint(0, 3, (200, 6), generator=torch.Generator().manual_seed(0))
    found = complete(sorter, digits, 6, Sampling(greedy=True))
    assert torch.equal(found, digits.sort(-1).values)
