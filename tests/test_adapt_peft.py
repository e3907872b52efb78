"""PEFT folders in and out, and the same loss, gradients and logits as peft on the same model, in float64."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import handgrad as hg
from handgrad.adapt.lora import LoRA, adapted, merge
from handgrad.adapt.peft import CONFIG, WEIGHTS, load_adapter, write_adapter
from handgrad.core.errors import ConfigError, FileError
from handgrad.models.model import Model

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

SHAPES = {
    "gpt2": hg.GPT2Config(vocabulary=23, context=13, n_layers=2, n_heads=2, d_model=14),
    "llama": hg.LlamaConfig(
        vocabulary=23, context=13, n_layers=2, n_heads=4, n_kv_heads=2, d_model=24, d_mlp=22, tied=True
    ),
}
ATTENTION = {"gpt2": ["c_attn"], "llama": ["q_proj", "k_proj", "v_proj"]}
EVERY = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "llama": [f"{n}_proj" for n in ("q", "k", "v", "o", "gate", "up", "down")],
}
LAYERS = ("attention.*", "mlp.*")
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]])


def drawn(kind: str) -> Model:
    return randomised(hg.build(SHAPES[kind], seed=0, dtype=torch.float64))


def randomised(model: Model, seed: int = 5) -> Model:
    for name, x in model.params.items():
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + len(name)), dtype=x.dtype) * 0.3)
    return model


def relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(((x - y).norm() / y.norm()).detach())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two models as Hugging Face folders."""
    found = {kind: tmp_path_factory.mktemp("hf") / kind for kind in SHAPES}
    for kind, folder in found.items():
        hg.export(drawn(kind), folder)
    return found


def theirs(folder: Path) -> torch.nn.Module:
    from test_llama import Angles

    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    if net.config.model_type == "llama":  # their angles and norms round to float32
        c = hg.load(folder).config
        net.model.rotary_emb = Angles(c, net.model.rotary_emb.inv_freq)
        for norm, parent, name in [
            (m, net.get_submodule(n.rpartition(".")[0]), n.rpartition(".")[2])
            for n, m in net.named_modules()
            if type(m).__name__ == "LlamaRMSNorm"
        ]:
            new = torch.nn.RMSNorm(c.d_model, c.epsilon, dtype=torch.float64)
            new.weight = norm.weight
            setattr(parent, name, new)
    return net


def with_peft(folder: Path, **how) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = peft.get_peft_model(theirs(folder), peft.LoraConfig(task_type="CAUSAL_LM", **how))
    torch.manual_seed(7)
    for name, w in net.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(w, std=0.3)
    return net.double().eval()


def from_peft(folder: Path, adapter: Path) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(theirs(folder), adapter, autocast_adapter_dtype=False).eval()


def saved(net: torch.nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.save_pretrained(path)
    return path


def surprise(logits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("how", ["plain", "rslora", "every layer", "patterns"])
def test_loss_gradients_and_logits_are_those_of_peft(kind, how, folders, tmp_path) -> None:
    settings = {"r": 3, "lora_alpha": 7, "target_modules": ATTENTION[kind]}
    if how == "rslora":
        settings["use_rslora"] = True
    if how == "every layer":
        settings["target_modules"] = EVERY[kind]
    if how == "patterns":
        first = {"gpt2": "transformer.h.1.attn.c_attn", "llama": "model.layers.1.self_attn.k_proj"}[kind]
        settings |= {"rank_pattern": {first: 2}, "alpha_pattern": {first: 5}}
    net = with_peft(folders[kind], **settings)
    model = load_adapter(saved(net, tmp_path / "theirs"), hg.load(folders[kind]))
    logits = net(TOKENS).logits
    assert relative(model(TOKENS), logits) < 1e-10
    right = surprise(logits)
    right.backward()
    loss, grads = model.loss(TOKENS), model.backward()
    assert abs(float(loss) - right.item()) < 1e-12 * right.item()
    gradients = {n.replace(".default", ""): w.grad.mT for n, w in net.named_parameters() if w.grad is not None}
    assert len(gradients) == sum("lora_" in n for n, _ in net.named_parameters())
    seen = set()
    for module, members in pieces(model).items():
        for name, piece in members.items():
            for factor in "AB":
                right = gradients[f"base_model.model.{module}.lora_{factor}.weight"]
                if factor == "B" and piece.columns:
                    right = right[:, slice(*piece.columns)]
                assert relative(grads[f"{name}.lora.{factor}"], right) < 1e-10, (name, factor)
                seen.add((module, factor))
    assert len(seen) == len(gradients)


def pieces(model: Model) -> dict:
    from handgrad.adapt.lora import updates
    from handgrad.adapt.peft import modules

    return {m: members for m, members in modules(model).items() if any(n in updates(model) for n in members)}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_folder_of_peft_comes_back_as_it_was(kind, folders, tmp_path) -> None:
    net = with_peft(folders[kind], r=3, lora_alpha=7, lora_dropout=0.25, target_modules=ATTENTION[kind])
    there = saved(net, tmp_path / "theirs")
    back = write_adapter(load_adapter(there, hg.load(folders[kind])), tmp_path / "ours", str(folders[kind]))
    before, after = load_file(there / WEIGHTS), load_file(back / WEIGHTS)
    assert before.keys() == after.keys()
    for name, x in before.items():
        assert torch.equal(x, after[name]), name
    config, right = json.loads((back / CONFIG).read_text()), json.loads((there / CONFIG).read_text())
    for name in ("r", "lora_alpha", "lora_dropout", "use_rslora", "fan_in_fan_out", "bias", "peft_type", "task_type"):
        assert config[name] == right[name], name


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(
    "config",
    [
        LoRA(rank=3, alpha=7),
        LoRA(rank=3, alpha=7, targets=LAYERS, rslora=True),
        LoRA(rank=3, alpha=7, targets=("query", "value", "mlp.down")),
        LoRA(
            rank=3, targets=LAYERS, rank_pattern={"key": 2, "blocks.1.mlp.up": 5}, alpha_pattern={"value": 9, "up": 3}
        ),
    ],
    ids=["attention", "rslora", "some", "patterns"],
)
def test_what_we_write_peft_computes(kind, config, folders, tmp_path) -> None:
    model = randomised(adapted(hg.load(folders[kind]), config))
    adapter = write_adapter(model, tmp_path / "ours", str(folders[kind]))
    assert relative(from_peft(folders[kind], adapter)(TOKENS).logits, model(TOKENS)) < 1e-10
    again = load_adapter(adapter)
    assert relative(again(TOKENS), model(TOKENS)) < 1e-14
    assert relative(merge(again)(TOKENS), model(TOKENS)) < 1e-10


def test_an_adapter_names_its_model_and_may_stand_on_another(folders, tmp_path) -> None:
    one = randomised(adapted(hg.load(folders["gpt2"]), LoRA(rank=2)))
    write_adapter(one, tmp_path / "one", str(folders["gpt2"]))
    two = randomised(adapted(hg.load(tmp_path / "one"), LoRA(rank=3, targets=("query", "mlp.up"))), seed=9)
    write_adapter(two, tmp_path / "two", "../one")
    found = hg.load(tmp_path / "two")
    assert torch.equal(found(TOKENS), two(TOKENS))
    assert len(found.frozen) == 2
    assert found.params.layout.count == two.params.layout.count + 2 * 2 * 3 * 14  # key and value, updated by 0


def test_adapters_on_themselves_are_refused(folders, tmp_path) -> None:
    for name, below in (("one", "../two"), ("two", "../one")):
        write_adapter(adapted(hg.load(folders["gpt2"]), LoRA(rank=2)), tmp_path / name, below)
    with pytest.raises(FileError, match="more than 8 adapters, or on itself"):
        hg.load(tmp_path / "one")


BROKEN = {
    "use_dora": (True, "use_dora is 'True', which is not supported: DoRA"),
    "bias": ("lora_only", "bias is 'lora_only', which is not supported"),
    "modules_to_save": (["lm_head"], "modules_to_save .* replaces whole parts"),
    "layers_to_transform": ([0], "layers_to_transform .* target_modules"),
    "lora_bias": (True, "lora_bias"),
    "target_parameters": (["a"], "target_parameters"),
    "peft_type": ("IA3", "peft_type is 'IA3'"),
    "task_type": ("SEQ_CLS", "task_type"),
    "init_lora_weights": ("pissa", "init_lora_weights .* changes the model itself"),
    "some_new_thing": (3, "some_new_thing is '3', which is not supported"),
    "alpha_pattern": ({"^model.*": 3}, "regular expression"),
    "r": ("8", "r is '8', which has the wrong type"),
    "lora_alpha": (float("nan"), "JSON|nan"),
    "target_modules": (["c_attn", "mlp.c_fc"], "mlp.c_fc.* should have an update"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_plain_lora_is_refused_by_name(name, folders, tmp_path) -> None:
    model = adapted(hg.load(folders["gpt2"]), LoRA(rank=2))
    folder = write_adapter(model, tmp_path / "a", str(folders["gpt2"]))
    value, message = BROKEN[name]
    table = json.loads((folder / CONFIG).read_text()) | {name: value}
    (folder / CONFIG).write_text(json.dumps(table))
    with pytest.raises((ConfigError, FileError), match=message):
        load_adapter(folder)


def test_tensors_that_do_not_fit_are_refused(folders, tmp_path) -> None:
    folder = write_adapter(adapted(hg.load(folders["gpt2"]), LoRA(rank=2)), tmp_path / "a", str(folders["gpt2"]))
    right = load_file(folder / WEIGHTS)
    first = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"

    def refused(tensors: dict, message: str) -> None:
        save_file(tensors, folder / WEIGHTS)
        with pytest.raises(FileError, match=message):
            load_adapter(folder)

    refused({n.replace("transformer.h", "model.layers"): x for n, x in right.items()}, "none of its 4 tensors")
    refused(right | {"base_model.model.lm_head.weight": torch.zeros(2)}, "lm_head.weight found, and no low-rank update")
    refused({n: x for n, x in right.items() if n != first}, "c_attn has lora_B alone")
    refused({n: x.mT.contiguous() for n, x in right.items()}, r"needs lora_A \(r, 14\) and lora_B \(42, r\)")
    refused(
        {n: x[:1] if "A" in n.split(".")[-2] else x[:, :1].contiguous() for n, x in right.items()}, "rank 1, and its"
    )
    refused({n: x for n, x in right.items() if ".0." in n}, "h.1.attn.c_attn should have an update")
    (folder / WEIGHTS).unlink()
    with pytest.raises(FileError, match=r"adapter_model\.safetensors is missing"):
        load_adapter(folder)
    save_file(right, folder / WEIGHTS)
    table = json.loads((folder / CONFIG).read_text()) | {"base_model_name_or_path": "someone/on-a-hub"}
    (folder / CONFIG).write_text(json.dumps(table))
    with pytest.raises(FileError, match="there is no model"):
        load_adapter(folder)
