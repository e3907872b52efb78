"""Gradients and norms of single samples against autograd, sample by sample, over the whole table of cases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import handgrad as hg
from handgrad.check.case import Case
from handgrad.check.cases import CASES
from handgrad.check.tolerance import FLOAT64
from handgrad.core import Chain, Layout, Slot
from handgrad.core.errors import ConfigError, ShapeError, UnknownName
from handgrad.core.gradients import Accumulate, Unfinished
from handgrad.receivers import products
from handgrad.receivers.sample_gradients import SampleGradients
from handgrad.receivers.sample_norms import SampleNorms

WITH_PARAMETERS = [c for c in CASES if c.layer.slots() and not c.name.startswith("head and loss")]  # a loss is one


def by_autograd(case: Case, p: hg.Buffer, a: Any, Delta: Tensor) -> dict[str, Tensor]:
    """Every sample's gradient ~ (B, *shape), by one autograd pass for each."""
    theta = p.like(p.flat.detach().clone().requires_grad_())
    with torch.enable_grad():
        y, _ = case.layer.forward(theta.tree, a, case.run)
        flats = [torch.autograd.grad((y[b] * Delta[b]).sum(), theta.flat, retain_graph=True)[0] for b in range(len(y))]
    return {name: torch.stack([p.like(flat)[name] for flat in flats]) for name in p}


def backward(case: Case, p: hg.Buffer, a: Any, Delta: Tensor, grads: Any) -> Any:
    with torch.no_grad():
        _, saved = case.layer.forward(p.tree, a, case.run)
        case.layer.backward(p.tree, Delta, saved, grads, case.run)
    grads.finished()
    return grads


def apart(found: Tensor, right: Tensor, whole: float) -> float:
    """Relative distance; where a gradient must vanish, relative to the whole gradient."""
    size = float(right.norm())
    return float((found - right).norm()) / (size if size > 1e-9 * whole else whole)


@pytest.mark.parametrize("case", WITH_PARAMETERS, ids=lambda c: c.name)
def test_every_layer_tells_samples_apart(case: Case) -> None:
    p, a, Delta = case.draw(seed=5)
    right = by_autograd(case, p, a, Delta)
    whole = float(torch.stack([g.norm() for g in right.values()]).norm())
    gradients = backward(case, p, a, Delta, SampleGradients.of(p.layout))
    norms = backward(case, p, a, Delta, SampleNorms.of(p.layout))
    for name, g in right.items():
        assert apart(gradients[name], g, whole) < FLOAT64, name
        found = norms.squares[name].sqrt()
        if name in case.zeros:  # a difference of two Gram products that are equal: the root of a rounding
            assert float(found.norm()) < 1e-7 * whole, name
        else:
            assert apart(found, g.flatten(1).norm(dim=1), whole) < FLOAT64, name


GPT = hg.GPT2Config(vocabulary=23, context=7, n_layers=2, n_heads=3, d_model=12, std=0.3)
LLAMA = hg.LlamaConfig(vocabulary=23, context=7, n_layers=2, n_heads=4, n_kv_heads=2, d_model=24, d_mlp=13, tied=False)
TOKENS = torch.tensor([[3, 1, 3, 0, 3, 22, 1], [5, 5, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 5, 6]])


def random_model(config: Any, dtype: torch.dtype = torch.float64) -> hg.Model:
    """Never at its first values, where offsets are 0 and gains 1."""
    model = hg.build(config, seed=2, dtype=dtype)
    noise = torch.randn(model.params.flat.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    for name, (start, _) in model.params.layout.places.items():
        value = model.params[name]
        value += 0.2 * noise[start : start + value.numel()].view(value.shape).to(dtype)
    return model


def oracle(model: hg.Model, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Gradient of each sample's own mean loss, one sample after the other, by autograd and torch's loss."""
    flats = []
    for ids, aims in zip(tokens, targets, strict=True):
        theta = model.params.like(model.params.flat.detach().clone().requires_grad_())
        with torch.enable_grad():
            logits, _ = model.layer.forward(theta.tree, ids[None], hg.Run())
            torch.nn.functional.cross_entropy(logits[0], aims, ignore_index=-1).backward()
        flats.append(model.params.like(theta.flat.grad))
    return {name: torch.stack([flat[name] for flat in flats]) for name in model.params}


def some_targets() -> Tensor:
    """Three, one and five targets that count."""
    targets = torch.randint(23, TOKENS.shape, generator=torch.Generator().manual_seed(1))
    targets[0, 3:], targets[1, 1:], targets[2, 5:] = -1, -1, -1
    return targets


@pytest.mark.parametrize("implementation", ["auto", "explicit"])
@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["gpt-2, tied", "llama, untied"])
def test_norms_and_gradients_of_a_model(config: Any, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handgrad.rules.fused.headloss_chunked.CHUNK", 2 * 23 * 7 * 8)  # pieces of two samples and one
    model, targets = random_model(config), some_targets()
    right = oracle(model, TOKENS, targets)
    run = hg.Run(implementation=implementation)
    norms = hg.sample_norms(model, TOKENS, targets, run=run)
    gradients = hg.sample_gradients(model, TOKENS, targets, run=run)
    whole = float(torch.stack([g.norm() for g in right.values()]).norm())
    for name, g in right.items():
        assert apart(gradients[name], g, whole) < FLOAT64, name
        if not name.endswith("key.b"):
            assert apart(norms.by_parameter[name], g.flatten(1).norm(dim=1), whole) < FLOAT64, name
    total = torch.stack([g.flatten(1).square().sum(1) for g in right.values()]).sum(0).sqrt()
    assert apart(norms.norms, total, whole) < FLOAT64


def test_the_weights_make_the_gradient_of_the_batch() -> None:
    """Q03: three, one and five valid targets; the mean over samples would be another gradient."""
    model, targets = random_model(GPT), some_targets()
    found = hg.sample_gradients(model, TOKENS, targets)
    assert found.weights.tolist() == pytest.approx([3 / 9, 1 / 9, 5 / 9])
    model.loss(TOKENS, targets)
    whole = model.backward()
    for name, g in found.gradients.items():
        if name.endswith("key.b"):
            continue
        assert apart(torch.tensordot(found.weights, g, 1), whole[name], 0.0) < FLOAT64, name
        assert apart(g.mean(0), whole[name], 0.0) > 1e-3, name


def test_a_sample_without_targets_has_no_gradient() -> None:
    model, targets = random_model(GPT), some_targets()
    targets[1] = -1
    norms = hg.sample_norms(model, TOKENS, targets)
    assert norms.weights.tolist() == pytest.approx([3 / 8, 0, 5 / 8])
    assert float(norms.norms[1]) == 0
    assert float(norms.norms[0]) > 0


@pytest.mark.parametrize("known", [True, False], ids=["ids known", "ids unknown"])
def test_a_tied_embedding_needs_the_product_of_its_two_gradients(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handgrad.rules.fused.headloss_chunked.CHUNK", 23 * 7 * 8)
    model, targets = random_model(GPT), some_targets()
    name = "embedding.token.w_emb"
    g = hg.sample_gradients(model, TOKENS, targets)
    untied = Layout(model.params.layout.slots)  # the same backward pass, with the two places told apart
    norms = {}
    for layout in (model.params.layout, untied):
        grads = SampleNorms.of(layout, TOKENS if known else None)
        model.loss_and_backward(TOKENS, targets, grads, n_valid=9, run=hg.Run(implementation="auto"))
        grads.finished()
        norms[bool(layout.tied)] = grads.squares
        assert not grads.heard.kept
    right = (g[name].flatten(1).norm(dim=1) * g.weights).square()
    assert apart(norms[True][name], right, 0.0) < FLOAT64
    parts = norms[False][name] + norms[False]["head.w_emb"]
    assert apart(parts, right, 0.0) > 1e-3, "the product has to matter"


def test_what_waits_for_a_tied_embedding_is_small_where_the_ids_are_known() -> None:
    model, seen = random_model(GPT), {}
    for tokens in (TOKENS, None):
        grads = SampleNorms.of(model.params.layout, tokens)
        model.loss(TOKENS)
        model.backward(Stops(grads, seen, tokens is None))
    assert seen[True] == TOKENS.numel() * 23
    assert seen[False] == TOKENS.numel() * TOKENS.shape[1]


class Stops:
    """Looks at what is kept once the head has finished."""

    def __init__(self, inner: SampleNorms, seen: dict[bool, int], key: bool) -> None:
        self.inner, self.seen, self.key = inner, seen, key

    def __truediv__(self, part: str) -> Stops:
        return Stops(self.inner / part, self.seen, self.key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def finished(self) -> None:
        self.inner.finished()
        if self.inner.path == "head.":
            (kept,) = self.inner.heard.kept["embedding.token.w_emb"]
            self.seen[self.key] = kept.x.numel()


def test_heads_and_branches() -> None:
    model, targets = random_model(LLAMA), some_targets()
    right, found = oracle(model, TOKENS, targets), hg.sample_norms(model, TOKENS, targets, heads=True)
    at = "blocks.1.attention."
    for name, H, dim in (("query", 4, -1), ("key", 2, -1), ("value", 2, -1), ("out", 4, -2)):
        slices = [g.flatten(1).norm(dim=1) for g in right[f"{at}{name}.w"].chunk(H, dim)]
        assert apart(found.by_head[f"{at}{name}.w"], torch.stack(slices, 1), 0.0) < FLOAT64, name
    assert len(found.by_head) == 8
    with pytest.raises(ConfigError, match=r"cannot be cut into 5 heads by 'columns'"):
        SampleNorms.of(model.params.layout, heads={"*.query.w": ("columns", 5)})
    with pytest.raises(ConfigError, match="is tied to another name"):
        SampleNorms.of(random_model(GPT).params.layout, heads={"*.w_emb": ("rows", 1)})


@pytest.mark.parametrize("piece", [1, 40, 1 << 22])
@pytest.mark.parametrize("sizes", [(3, 11, 13), (17, 3, 5)], ids=["gram", "direct"])
def test_both_ways_and_all_slices_agree(sizes: tuple[int, int, int], piece: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(products, "PIECE", piece)
    T, n, m = sizes
    draw = torch.Generator().manual_seed(4)
    x, D = (torch.randn(5, T, k, generator=draw, dtype=torch.float64) for k in (n, m))
    right = (x.mT @ D).square().sum((1, 2))
    for way in (products.squares, products.direct, lambda x, D: products.products(x, D, x, D)):
        assert apart(way(x, D), right, 0.0) < FLOAT64
    chosen = "products" if T * (n + m) < n * m else "direct"
    monkeypatch.setattr(products, chosen, lambda *_: "chosen")
    assert products.squares(x, D) == "chosen"


def test_a_weight_used_at_every_token_adds_up_before_it_is_squared() -> None:
    grads = SampleNorms.of(Layout({"w": Slot((2, 3)), "b": Slot((3,))}))
    x, D = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    for sign in (1, 2):
        grads.outer("w", sign * x, D)
        grads.total("b", sign * D)
    grads.finished()
    assert apart(grads.squares["w"], 9 * (x.norm(dim=1) * D.norm(dim=1)).square(), 0.0) < FLOAT64
    assert apart(grads.squares["b"], 9 * D.square().sum(1), 0.0) < FLOAT64


def test_a_layer_used_twice_sums() -> None:
    """Q02: one weight at two places, whose two gradients add up before their norm is taken."""
    parts = {"one": hg.Linear(7, 7), "two": hg.Linear(7, 7)}
    ties = {"two.w": "one.w", "two.b": "one.b"}
    case = Case("twice", Chain(parts), ((3, 5, 7),), tied=ties)
    p, a, Delta = case.draw(seed=2)
    right = by_autograd(case, p, a, Delta)
    for made in (SampleNorms.of(p.layout), Unheard(SampleNorms.of(p.layout))):
        norms = backward(case, p, a, Delta, made)
        for name, g in right.items():
            assert apart(norms.squares[name].sqrt(), g.flatten(1).norm(dim=1), 0.0) < FLOAT64, name
    gradients = backward(case, p, a, Delta, SampleGradients.of(p.layout))
    assert apart(gradients["two.w"], right["one.w"], 0.0) < FLOAT64


class Unheard:
    """Passes everything on but the ends of parts: all is squared at once, at the very end."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __truediv__(self, part: str) -> Any:
        return Unfinished(self.inner / part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_everything_at_the_end_is_the_same_as_part_by_part() -> None:
    model, targets = random_model(GPT), some_targets()
    found = []
    for grads in (SampleNorms.of(model.params.layout), Unheard(SampleNorms.of(model.params.layout))):
        model.loss(TOKENS, targets)
        model.backward(grads)
        grads.finished()
        found.append(grads.norms())
    assert apart(found[0], found[1], 0.0) < FLOAT64


def test_query_key_and_value_share_the_products_of_their_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """T = 3, width 12: the Gram way is taken anyhow. What counts is how often the input is multiplied with itself."""
    model, seen, gram = random_model(GPT), [], products.gram
    monkeypatch.setattr(products, "gram", lambda x: seen.append(x.shape) or gram(x))
    hg.sample_norms(model, TOKENS[:, :3])
    assert len(seen) == 2 * 4, "in both blocks: one input, and the errors of its three branches"


def test_float32_and_bfloat16_are_near_float64() -> None:
    right = hg.sample_norms(random_model(GPT), TOKENS).norms
    model = random_model(GPT, torch.float32)
    assert apart(hg.sample_norms(model, TOKENS).norms.double(), right, 0.0) < 1e-5
    half = model.shadowed(torch.bfloat16)
    assert apart(hg.sample_norms(half, TOKENS).norms.double(), right, 0.0) < 2**-5


def test_a_layer_that_loses_its_samples_is_told_what_to_write() -> None:
    layout = Layout({"w": Slot((2, 3)), "own.b": Slot((3,))})
    for kind in (SampleNorms, SampleGradients):
        grads = kind.of(layout)
        grads.outer("w", torch.ones(4, 5, 2), torch.ones(4, 5, 3))
        with pytest.raises(ShapeError, match=r"own.b are \(20, 3\), and the batch has 4 samples: their first axis"):
            (grads / "own").total("b", torch.ones(20, 3))
        with pytest.raises(ShapeError, match=r"own.b are \(3,\)"):
            (grads / "own").total("b", torch.ones(3))
        grads.finished()
        with pytest.raises(ConfigError, match=r"nothing was handed over for own.b.*grads.outer"):
            grads.squares if kind is SampleNorms else grads["own.b"]


def test_unknown_names_and_unfinished_passes_are_refused() -> None:
    model = random_model(GPT)
    with pytest.raises(UnknownName, match=r"no parameter named 'blocks.\*.querry.w'"):
        hg.sample_gradients(model, TOKENS, names=["blocks.*.querry.w"])
    with pytest.raises(ConfigError, match="must be a list of patterns"):
        hg.sample_gradients(model, TOKENS, names="blocks.*")
    grads = SampleNorms.of(Layout({"w": Slot((2, 3))}))
    grads.outer("w", torch.ones(4, 5, 2), torch.ones(4, 5, 3))
    with pytest.raises(ConfigError, match="the backward pass is not over: w may still receive more"):
        grads.norms()
    other = SampleNorms.of(model.params.layout, TOKENS.flip(1))
    with pytest.raises(ShapeError, match="looked up with other ids"):
        model.loss_and_backward(TOKENS, TOKENS, other, n_valid=21)
    chosen = hg.sample_gradients(model, TOKENS, names=["*.key.w"])
    assert len(chosen.gradients) == 2


def test_what_is_frozen_costs_nothing() -> None:
    grads = SampleNorms.of(Layout({"b": Slot((3,))}))
    grads.outer("w", torch.ones(4, 5, 2), torch.ones(4, 5, 3))
    grads.total("b", torch.ones(4, 5, 3))
    assert not grads.heard.fresh
    grads.finished()
    assert grads.squares["b"].tolist() == [75.0] * 4


def test_the_sum_of_samples_is_what_accumulate_gets() -> None:
    model = random_model(GPT)
    g = model.params.layout.zeros(torch.float64)
    model.loss(TOKENS)
    model.backward(Accumulate(g.tree))
    apart_of = SampleGradients.of(model.params.layout)
    model.loss(TOKENS)
    model.backward(apart_of)
    for name, each in apart_of.named().items():
        if not name.endswith("key.b"):
            assert apart(each.sum(0), g[name], 0.0) < FLOAT64, name


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "per-sample.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(block, "docs/per-sample.md", "exec"), {})  # noqa: S102  our own page
    assert capsys.readouterr().out.startswith(re.search(r"# (tensor\(\[.*?\]\))", block)[1])
