"""`hg.as_module`: the same output and gradients as our own passes, as a module that behaves as torch's do."""

import copy
import re
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from test_model import SMALL, batch, randomised, relative

import handgrad as hg
from handgrad.bridge import function
from handgrad.check import cases, laws
from handgrad.core.errors import ConfigError, HandgradError, ShapeError, UnknownName
from handgrad.layers.multihead import MultiHead

DOCS = Path(__file__).resolve().parents[1] / "docs"


def nll(logits, tokens):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def model_and_gradient(**more):
    model = randomised(replace(SMALL, **more))
    model.loss(batch(1))
    return model, model.backward()


@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: c.name)
def test_every_layer_gives_the_same_output_and_gradients_as_a_module(case):
    p, a, Delta = case.draw(1)
    y, below, g = laws.passes(case, p, a, Delta)
    module = hg.as_module(case.layer, p, run=case.run).train(case.run.seed is not None)
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in (a if isinstance(a, tuple) else (a,))]
    found = module(*inputs)
    assert torch.equal(found, y)
    found.backward(Delta)
    for x, right in zip(inputs, below if isinstance(below, tuple) else (below,), strict=False):
        assert right is None or relative(x.grad, right) <= 1e-13
    for name in p:
        grad = module.get_parameter(name).grad
        assert (grad is None and not g[name].any()) or (grad - g[name]).norm() <= 1e-13 * g[name].norm()


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_as_a_module_twice_backward_is_exactly_twice_the_gradient(tied):
    model, g = model_and_gradient(tied=tied)
    module, tokens = hg.as_module(model), batch(1)
    assert torch.equal(module(tokens), model(tokens))
    nll(module(tokens), tokens).backward()
    once = {name: w.grad.clone() for name, w in module.named_parameters()}
    assert list(once) == list(model.params)
    for name, right in g.items():
        assert relative(once[name], right) <= 1e-12 or name.endswith("key.b"), name
    nll(module(tokens), tokens).backward()
    for name, w in module.named_parameters():
        assert torch.equal(w.grad, 2 * once[name])
    loss = nll(module(tokens), tokens)
    module.zero_grad()
    loss.backward(retain_graph=True)
    loss.backward()
    assert all(torch.equal(w.grad, 2 * once[name]) for name, w in module.named_parameters())
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_gradient_is_not_differentiated_again():
    module = hg.as_module(MultiHead(6, 2), dtype=torch.float64)
    a = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad(module(a).square().sum(), a)
    (below,) = torch.autograd.grad(module(a).square().sum(), a, create_graph=True)
    assert torch.equal(below, plain)
    with pytest.raises(ConfigError, match="differentiated again"):
        below.sum().backward()
    assert torch.autograd.gradcheck(module, a)


def test_the_parameters_are_the_models_until_they_are_copied():
    model, tokens = randomised(SMALL), batch(1)
    module = hg.as_module(model)
    before = model.params.flat.clone()
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2)
    nll(module(tokens), tokens).backward()
    optimiser.step()
    assert not torch.equal(model.params.flat, before)
    assert torch.equal(module(tokens), model(tokens))
    trained, other = model.params.flat.clone(), copy.deepcopy(module)
    nll(other(tokens), tokens).backward()
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert torch.equal(model.params.flat, trained)
    assert other.get_parameter("head.w_emb") is other.get_parameter("embedding.token.w_emb")
    assert not torch.equal(other(tokens), module(tokens))
    single = copy.deepcopy(module).to(torch.float32)
    assert single(tokens).dtype == torch.float32
    assert relative(single(tokens).double(), module(tokens)) < 1e-5
    nll(single(tokens), tokens).backward()
    assert {w.grad.dtype for w in single.parameters()} == {torch.float32}


def test_state_dicts_have_the_names_of_the_parameters_and_load(tmp_path):
    model, other = randomised(SMALL), randomised(SMALL, seed=5)
    module, second, tokens = hg.as_module(model), hg.as_module(other), batch(1)
    state = module.state_dict()
    assert list(state) == list(model.params.layout.slots)
    assert all(torch.equal(state[name], model.params[name]) for name in state)
    second.load_state_dict(state)
    assert torch.equal(second(tokens), module(tokens))
    assert torch.equal(other.params.flat, model.params.flat)
    with pytest.raises(RuntimeError, match="Missing key"):
        second.load_state_dict({})
    save_model(module, tmp_path / "tied.safetensors")
    third = hg.as_module(randomised(SMALL, seed=6))
    load_model(third, tmp_path / "tied.safetensors")
    assert torch.equal(third(tokens), module(tokens))
    untied = hg.as_module(randomised(replace(SMALL, tied=False)))
    save_file(untied.state_dict(), tmp_path / "untied.safetensors")
    fourth = hg.as_module(randomised(replace(SMALL, tied=False), seed=6))
    fourth.load_state_dict(load_file(tmp_path / "untied.safetensors"), assign=True)
    assert torch.equal(fourth(tokens), untied(tokens))


def test_a_frozen_parameter_is_absent_from_the_receiver(monkeypatch):
    received = set()

    class Spy(function.Accumulate):
        def outer(self, name, a, Delta):
            received.add((name, self._of(name) is not None))
            super().outer(name, a, Delta)

    monkeypatch.setattr(function, "Accumulate", Spy)
    module = hg.as_module(hg.Linear(3, 2), dtype=torch.float64)
    module.w.requires_grad_(False)
    module(torch.ones(5, 3, dtype=torch.float64)).sum().backward()
    assert received == {("w", False)}
    assert module.w.grad is None
    assert module.b.grad.tolist() == [5.0, 5.0]
    module.requires_grad_(False)
    assert not module(torch.ones(5, 3, dtype=torch.float64)).requires_grad


def test_training_drops_by_torchs_generator_and_evaluation_does_not():
    model, tokens = randomised(replace(SMALL, dropout=0.3)), batch(1)
    module = hg.as_module(model)
    torch.manual_seed(1)
    first = module(tokens)
    assert not torch.equal(module(tokens), first)
    torch.manual_seed(1)
    assert torch.equal(module(tokens), first)
    assert torch.equal(module.eval()(tokens), model(tokens))
    fixed = hg.as_module(model, run=hg.Run(implementation="auto", seed=7))
    with model.running(seed=7):
        assert torch.equal(fixed(tokens), model(tokens))
    assert torch.equal(fixed.eval()(tokens), model(tokens))


def test_autocast_computes_as_our_half_precision_does():
    model, tokens = randomised(SMALL, dtype=torch.float32), batch(1)
    module, half = hg.as_module(model), model.shadowed(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        logits = module(tokens)
    assert logits.dtype == torch.bfloat16
    assert torch.equal(logits, half(tokens))
    nll(logits.float(), tokens).backward()
    half.loss(tokens)
    for name, right in half.backward().items():
        found = module.get_parameter(name).grad
        assert found.dtype == torch.float32
        assert relative(found, right) < 0.05 or name.endswith("key.b"), name
    with pytest.raises(ConfigError, match=r"computes in torch\.bfloat16 on a copy"):
        hg.as_module(half)
    double, a = hg.as_module(hg.Linear(3, 2), dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(double(a), double(a.clone()))
        assert double(a).dtype == torch.float64


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_form_a_block_again_instead_of_keeping_it(reentrant):
    model, tokens = randomised(replace(SMALL, dropout=0.2)), batch(1)
    results = []
    for checkpointed in (False, True):
        module, packed = hg.as_module(model), []
        if checkpointed:
            for block in module.get_submodule("blocks").children():
                forward = block.forward
                block.forward = lambda a, forward=forward: torch.utils.checkpoint.checkpoint(
                    forward, a, use_reentrant=reentrant
                )
        torch.manual_seed(2)
        with torch.autograd.graph.saved_tensors_hooks(lambda x, p=packed: (p.append(x.numel()), x)[1], lambda x: x):
            loss = nll(module(tokens), tokens)
        kept = sum(packed)
        loss.backward()
        results.append((loss.detach(), {name: w.grad for name, w in module.named_parameters()}, kept))
    (loss, plain, kept), (again, formed, fewer) = results
    assert torch.equal(loss, again)
    assert all(torch.equal(plain[name], formed[name]) for name in plain)
    assert fewer < kept - 2 * prod((3, 3, 7, 7))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inside_a_compiled_module_the_results_are_the_same(backend):
    ours = hg.as_module(MultiHead(6, 2), dtype=torch.float64)
    network = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), ours, torch.nn.Linear(6, 6)).double()
    a = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    network(a).square().sum().backward()
    plain = [w.grad.clone() for w in network.parameters()]
    network.zero_grad()
    compiled = torch.compile(network, backend=backend)
    compiled(a).square().sum().backward()
    assert all(relative(w.grad, right) <= 1e-12 or right.norm() < 1e-12
               for w, right in zip(network.parameters(), plain, strict=True))  # fmt: skip
    torch._dynamo.reset()


def test_hooks_of_torch_are_called_and_change_nothing():
    model, tokens = randomised(SMALL), batch(1)
    module, seen = hg.as_module(model), []
    nll(module(tokens), tokens).backward()
    plain = {name: w.grad.clone() for name, w in module.named_parameters()}
    module.zero_grad()
    block = module.get_submodule("blocks.1")
    block.register_forward_hook(lambda m, a, y: seen.append("forward"))
    block.register_full_backward_hook(lambda m, below, above: (seen.append("backward"), below)[1])
    module.get_parameter("norm.gamma").register_hook(lambda g: seen.append("gamma"))
    with hg.watch(module, "blocks.1.attention.*", "blocks.Delta_1", "blocks", "blocks.0") as signals:
        nll(module(tokens), tokens).backward()
    assert seen == ["forward", "gamma", "backward"]
    with hg.watch(model, "*") as ours:
        model.loss(tokens)
        model.backward()
    for path, x in signals.items():
        assert relative(x.clamp(min=-1e9), ours[path].clamp(min=-1e9)) <= 1e-12, path
        assert not x.requires_grad, path
    assert signals["blocks.1.attention.Delta_raw"].shape == (3, 3, 7, 7)
    assert all(
        relative(w.grad, plain[name]) <= 1e-12 or name.endswith("key.b") for name, w in module.named_parameters()
    )
    nll(module(tokens), tokens).backward()
    assert len(seen) == 6
    assert len(signals) == len([path for path in ours if path in signals])


def test_what_is_watched_in_a_module_holds_no_graph_and_is_replaced_as_in_a_model():
    model, tokens = randomised(replace(SMALL, dropout=0.3)), batch(1)
    module = hg.as_module(model).eval()
    with hg.watch(module, "*") as signals:
        logits = module(tokens)
        nll(logits, tokens).backward()
    assert torch.equal(signals["dropout"], signals["embedding"])
    assert not [path for path, x in signals.items() if x.requires_grad]
    assert logits.requires_grad
    module.zero_grad()
    changes = {"Delta_blocks": lambda x: 2 * x, "blocks.Delta_1": lambda x: x + 1, "blocks": lambda x: x * x}
    changes |= {"blocks.1": lambda x: x + 1}
    with hg.watch(module, replace=changes):
        nll(module(tokens), tokens).backward()
    with hg.watch(model, replace=changes):
        model.loss(tokens)
        g = model.backward()
    for name, w in module.named_parameters():
        assert relative(w.grad, g[name]) <= 1e-12 or name.endswith("key.b"), name


class Idle:
    """A layer that never uses one of its parameters."""

    def slots(self):
        return {"w": hg.Slot((3, 2)), "unused": hg.Slot((5, 5))}

    def forward(self, p, a, run):
        return a @ p["w"], a

    def backward(self, p, Delta, saved, grads, run):
        grads.outer("w", saved, Delta)
        return Delta @ p["w"].mT


def test_what_nobody_hands_over_is_zero():
    module = hg.as_module(Idle(), dtype=torch.float64)
    for _ in range(3):
        module(torch.ones(4, 3, dtype=torch.float64)).sum().backward()
    assert torch.equal(module.unused.grad, torch.zeros(5, 5, dtype=torch.float64))
    assert torch.equal(module.w.grad, torch.full((3, 2), 12.0, dtype=torch.float64))


def test_other_doors_of_torch():
    model, tokens = randomised(SMALL), batch(1)
    module = hg.as_module(model)
    with torch.inference_mode():
        assert torch.equal(module(tokens), model(tokens))
    doubled = {name: 2 * w for name, w in module.named_parameters()}
    other = randomised(SMALL)
    other.params.flat.mul_(2)
    assert torch.equal(torch.func.functional_call(module, doubled, (tokens,)), other(tokens))
    layer = hg.as_module(hg.Linear(3, 2), dtype=torch.float64)
    torch.nn.utils.parametrizations.weight_norm(layer, "w")
    layer(torch.randn(4, 3, dtype=torch.float64)).square().sum().backward()
    assert layer.parametrizations.w.original1.grad.norm() > 0
    loss = nll(module(tokens), tokens)
    with torch.no_grad():
        module.get_parameter("blocks.0.mlp.up.w").add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_two_inputs_have_two_errors_and_several_outputs_come_as_a_tuple():
    fork = hg.Fork({"one": hg.Linear(3, 2), "two": hg.Linear(3, 4)})
    module = hg.as_module(fork, dtype=torch.float64)
    a = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    one, two = module(a)
    assert (one.shape, two.shape) == ((5, 2), (5, 4))
    one.sum().backward()  # nothing comes back from the second
    assert relative(a.grad, module.one.w.sum(1).expand(5, 3)) <= 1e-13
    assert not module.two.w.grad.any()


@pytest.mark.parametrize("page", ["bridge.md", "notation.md"])
def test_the_examples_of_the_pages_run(page, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})  # noqa: S102  our own page
    shown = capsys.readouterr().out
    if page == "bridge.md":
        loss, after = map(float, shown.split())
        assert after < loss
    else:
        assert shown.startswith("torch.Size([1, 2, 1, 9])\n2 signals recorded of")


class Awkward:
    """A layer with a parameter that no torch module can hold under its name."""

    def slots(self):
        return {"half.w": hg.Slot((1,))}

    def forward(self, p, a, run):
        return a, None

    def backward(self, p, Delta, saved, grads, run):
        return Delta


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"takes a model .* found Tensor"):
        hg.as_module(torch.ones(1))
    with pytest.raises(ConfigError, match="found type"):
        hg.as_module(hg.Linear)
    with pytest.raises(ConfigError, match="named 'half'"):
        hg.as_module(Awkward())
    with pytest.raises(UnknownName, match="no parameter named 'w'"):
        hg.as_module(hg.Linear(3, 2), hg.Layout({"b": hg.Slot((2,))}).zeros())
    model = randomised(SMALL)
    with pytest.raises(ConfigError, match="params were given too"):
        hg.as_module(model, model.params)
    module = hg.as_module(model)
    with pytest.raises(ShapeError, match="token id 11 at row 0, position 0"):
        module(batch(1) * 0 + 11)
    with pytest.raises(ShapeError, match="found list"):
        module([[1, 2]])
    with pytest.raises(ShapeError, match="found nothing"):
        module()
    with pytest.raises(ShapeError, match=r"token ids .* and nothing else, and gives logits; found 2"):
        module(batch(1), batch(1))
    with pytest.raises(ShapeError, match=r"float32 and float64; bring them into one type"):
        hg.as_module(hg.Linear(3, 2))(torch.ones(1, 3, dtype=torch.float64))
    with pytest.raises(TypeError, match="unexpected keyword argument 'sed'"):
        hg.as_module(model, sed=1)
    assert issubclass(ShapeError, HandgradError)


@pytest.mark.parametrize("strict", [False, True])
def test_a_hessian_is_refused_and_never_silently_zero(strict):
    module, x = hg.as_module(hg.Linear(3, 2), dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    with pytest.raises(ConfigError, match="differentiated again"):
        torch.autograd.functional.hessian(lambda a: module(a).pow(3).sum(), x, strict=strict)
