"""The whole network: against an autograd twin for ten steps, against transformers, and what people call."""

import math

import pytest
import torch
import torch.nn.functional as F

import handgrad as hg
from handgrad.check.oracle import compare
from handgrad.core.errors import ShapeError, UnknownName

SMALL = hg.GPT2Config(vocabulary=11, context=7, n_layers=2, n_heads=3, d_model=21, d_mlp=13)


def randomised(config, seed=0, dtype=torch.float64):
    """Nothing at its first value: gains off 1, biases off 0."""
    model = hg.build(config, seed, dtype)
    noise = torch.randn(model.params.flat.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for name in model.params:
        start, shape = model.params.layout.places[name]
        model.params[name].add_(0.2 * noise[start : start + math.prod(shape)].view(shape))
    return model


def batch(seed, rows=3, length=7, vocabulary=11):
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


class Twin(torch.nn.Module):
    """The same network for autograd, in torch.nn's own parts, loaded from the same numbers."""

    def __init__(self, p, c):
        super().__init__()
        self.c, nn = c, torch.nn
        self.emb, self.pos = nn.Embedding(c.vocabulary, c.d_model), nn.Embedding(c.context, c.d_model)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                c.d_model,
                c.n_heads,
                c.d_inner,
                0.0,
                lambda x: F.gelu(x, approximate="tanh"),
                norm_first=True,
                batch_first=True,
            )
            for _ in range(c.n_layers)
        )
        self.norm = nn.LayerNorm(c.d_model)
        self.double()
        self.own = {}
        self.take("embedding.token.w_emb", self.emb.weight)
        self.take("embedding.position.w_pos", self.pos.weight)
        for i, b in enumerate(self.blocks):
            at = f"blocks.{i}."
            for k, branch in enumerate(("query", "key", "value")):
                rows = slice(k * c.d_model, (k + 1) * c.d_model)
                self.own[f"{at}attention.{branch}.w"] = (b.self_attn.in_proj_weight, rows, True)
                self.own[f"{at}attention.{branch}.b"] = (b.self_attn.in_proj_bias, rows, False)
            self.take(f"{at}attention.out.w", b.self_attn.out_proj.weight, True)
            self.take(f"{at}attention.out.b", b.self_attn.out_proj.bias)
            self.take(f"{at}mlp.up.w", b.linear1.weight, True)
            self.take(f"{at}mlp.up.b", b.linear1.bias)
            self.take(f"{at}mlp.down.w", b.linear2.weight, True)
            self.take(f"{at}mlp.down.b", b.linear2.bias)
            for n, norm in (("norm_1", b.norm1), ("norm_2", b.norm2)):
                self.take(f"{at}{n}.gamma", norm.weight)
                self.take(f"{at}{n}.beta", norm.bias)
        self.take("norm.gamma", self.norm.weight)
        self.take("norm.beta", self.norm.bias)
        with torch.no_grad():
            for name, value in p.items():
                self.view(name).copy_(value)

    def take(self, name, tensor, turned=False):
        self.own[name] = (tensor, slice(None), turned)

    def view(self, name, grad=False):
        tensor, rows, turned = self.own[name]
        tensor = (tensor.grad if grad else tensor)[rows]
        return tensor.mT if turned else tensor

    def forward(self, ids):
        a = self.emb(ids) + self.pos.weight[: ids.shape[1]]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=a.dtype)
        for b in self.blocks:
            a = b(a, src_mask=mask, is_causal=True)
        return F.linear(self.norm(a), self.emb.weight)


def relative(found, right):
    found, right = found.detach(), right.detach()
    assert right.norm() > 0
    return float((found - right).norm() / right.norm())


def test_ten_steps_with_an_autograd_twin():
    """Same numbers, same ten losses and the same parameters: AdamW by torch on one side, by formula on the other."""
    model = randomised(SMALL)
    twin = Twin(model.params, SMALL)
    assert set(twin.own) == set(model.params)
    optimiser = torch.optim.AdamW(twin.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0)
    m, v = torch.zeros_like(model.params.flat), torch.zeros_like(model.params.flat)
    start, losses = model.params.like(model.params.flat.clone()), []
    for step in range(1, 11):
        tokens = batch(step)
        loss, g = model.loss(tokens), model.backward().flat
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        hat = (v / (1 - 0.99**step)).sqrt() + 1e-8
        model.params.flat.sub_(1e-2 * (m / (1 - 0.9**step)) / hat)

        optimiser.zero_grad()
        right = F.cross_entropy(twin(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        right.backward()
        optimiser.step()
        losses.append(float(loss))
        assert abs(float(loss) - right.item()) <= 1e-12 * right.item(), step
    assert losses[-1] < losses[0]
    for name in model.params:
        if name.endswith("key.b"):  # its true gradient is 0; AdamW divides the rounding left of it by itself + 1e-8
            assert relative(model.params[name], twin.view(name)) <= 1e-9, name
            assert relative(model.params[name], start[name]) <= 1e-9, name
        else:
            assert relative(model.params[name], twin.view(name)) <= 1e-12, name
            assert relative(model.params[name], start[name]) >= 1e-3, name


def test_gradients_equal_the_twins():
    model = randomised(SMALL)
    twin, tokens = Twin(model.params, SMALL), batch(0)
    model.loss(tokens)
    grads = model.backward()
    F.cross_entropy(twin(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for name in grads:
        if name.endswith("key.b"):
            assert grads[name].norm() <= 1e-12 * grads.flat.norm(), name
        else:
            assert relative(grads[name], twin.view(name, grad=True)) <= 1e-12, name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_logits_and_gradients_equal_transformers_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=11,
        n_positions=7,
        n_layer=2,
        n_head=3,
        n_embd=21,
        n_inner=13,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    model, theirs = randomised(SMALL), transformers.GPT2LMHeadModel(config).double().eval()
    names = {"embedding.token.w_emb": "wte.weight", "embedding.position.w_pos": "wpe.weight"}
    names |= {"norm.gamma": "ln_f.weight", "norm.beta": "ln_f.bias"}
    for i in range(2):
        for ours, hf in {
            "norm_1": "ln_1",
            "norm_2": "ln_2",
            "attention.out": "attn.c_proj",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        }.items():
            w, b = ("gamma", "beta") if "norm" in ours else ("w", "b")
            names |= {f"blocks.{i}.{ours}.{w}": f"h.{i}.{hf}.weight", f"blocks.{i}.{ours}.{b}": f"h.{i}.{hf}.bias"}
    state = {f"transformer.{hf}": model.params[ours] for ours, hf in names.items()}
    for i in range(2):
        for leaf, hf, axis in (("w", "weight", 1), ("b", "bias", 0)):
            parts = [model.params[f"blocks.{i}.attention.{n}.{leaf}"] for n in ("query", "key", "value")]
            state[f"transformer.h.{i}.attn.c_attn.{hf}"] = torch.cat(parts, axis)
    missing = theirs.load_state_dict(state, strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"])
    assert missing.unexpected_keys == []
    theirs.tie_weights()
    tokens = batch(4)
    logits = theirs(tokens).logits
    assert relative(model(tokens), logits) <= 1e-12
    loss, grads = model.loss(tokens), model.backward()
    right = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())  # its own loss is formed in float32
    assert abs(float(loss) - right.item()) <= 1e-12 * right.item()
    right.backward()
    grads_hf = dict(theirs.named_parameters())
    for ours, hf in names.items():
        assert relative(grads[ours], grads_hf[f"transformer.{hf}"].grad) <= 1e-12, ours
    for i in range(2):
        g = torch.cat([grads[f"blocks.{i}.attention.{n}.w"] for n in ("query", "key", "value")], 1)
        assert relative(g, grads_hf[f"transformer.h.{i}.attn.c_attn.weight"].grad) <= 1e-12


def test_tied_gradient_is_the_sum_of_both_uses_and_counted_once():
    tied = randomised(SMALL)
    untied = hg.build(hg.GPT2Config(**{**vars(SMALL), "tied": False}), 0, torch.float64)
    for name in untied.params:
        untied.params[name].copy_(tied.params[name])
    tokens = batch(1)
    tied.loss(tokens), untied.loss(tokens)
    one, two = tied.backward(), untied.backward()
    both = two["embedding.token.w_emb"] + two["head.w_emb"]
    assert relative(one["embedding.token.w_emb"], both) <= 1e-14
    assert two["head.w_emb"].norm() > 0
    assert one["head.w_emb"].data_ptr() == one["embedding.token.w_emb"].data_ptr()
    assert "head.w_emb" not in list(one)
    assert untied.params.layout.count - tied.params.layout.count == 11 * 21
    assert relative(one.flat.norm(), torch.cat([g.flatten() for g in one.values()]).norm()) <= 1e-15


def test_both_stores_of_the_embedding_get_the_whole_delta():
    model = randomised(hg.GPT2Config(**{**vars(SMALL), "tied": False}))
    with hg.watch(model, "Delta_embedding") as signals:
        model.loss(batch(2))
        grads = model.backward()
    Delta = signals["Delta_embedding"]
    assert relative(grads["embedding.position.w_pos"], Delta.sum(0)) <= 1e-14
    assert relative(grads["embedding.token.w_emb"].sum(0), Delta.sum((0, 1))) <= 1e-13


def test_every_parameter_gets_a_gradient_and_moves():
    model = randomised(SMALL)
    tokens = torch.arange(11).repeat(4)[:42].view(6, 7)
    model.loss(tokens)
    grads = model.backward()
    still = {name for name in grads if grads[name].norm() <= 1e-12 * grads.flat.norm()}
    assert still == {"blocks.0.attention.key.b", "blocks.1.attention.key.b"}


def test_the_oracle_goes_through_the_model_and_loss():
    model = randomised(SMALL)
    zeros = tuple(f"blocks.{i}.attention.key.b" for i in range(2))
    Delta = torch.randn(3, 7, 11).double()
    report = compare(model.layer, model.params, batch(3), Delta, zeros=zeros).require()
    assert len(report.rows) > 80
    assert {"Delta_head", "blocks.0.attention.Delta_rho", "blocks.1.mlp.up.w"} <= {row.signal for row in report.rows}


def test_loss_shifts_by_one_by_itself_and_not_what_it_is_given():
    model, tokens = randomised(SMALL), batch(5)
    logits = model(tokens)
    right = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert float(model.loss(tokens)) == pytest.approx(float(right), rel=1e-13)
    targets = batch(6)
    right = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert float(model.loss(tokens, targets)) == pytest.approx(float(right), rel=1e-13)
    valid = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    right = F.cross_entropy(logits[valid], targets[valid])
    assert float(model.loss(tokens, targets, valid)) == pytest.approx(float(right), rel=1e-13)


def test_watching_changes_nothing_and_gives_every_shape():
    model, tokens = randomised(SMALL, dtype=torch.float32), batch(7)
    fused_loss, fused = model.loss(tokens), model.backward()
    with model.running(implementation="explicit"):
        loss, grads = model.loss(tokens), model.backward()
    with hg.watch(model, "*.mlp.*"):  # nothing that only the explicit forms show
        assert torch.equal(model.loss(tokens), fused_loss)
        assert torch.equal(model.backward().flat, fused.flat)
    with hg.watch(model, "*") as signals:
        seen_loss, seen = model.loss(tokens), model.backward()
    assert (fused.flat - grads.flat).norm() <= 1e-5 * grads.flat.norm()
    assert torch.equal(loss, seen_loss)
    assert torch.equal(grads.flat, seen.flat)
    assert signals["blocks.0.attention.Delta_raw"].shape == (3, 3, 7, 7)
    assert signals["blocks.1.attention.rho"].sum(-1).sub(1).abs().max() < 1e-6
    assert not signals["blocks.1.attention.rho"].triu(1).any()
    for path, x in signals.items():
        folder, _, name = path.rpartition(".")
        if name.startswith("Delta_") and not name.startswith("Delta_from_"):
            assert signals[f"{folder}.{name[6:]}".lstrip(".")].shape == x.shape, path


def test_a_replaced_signal_changes_the_output():
    model, tokens = randomised(SMALL), batch(7)
    with hg.watch(model, replace={"blocks.0.attention": torch.zeros_like}) as signals:
        patched = model(tokens)
    assert not signals["blocks.0.attention"].any()
    assert not torch.equal(patched, model(tokens))
    with (
        pytest.raises(ShapeError, match=r"replacement of norm is \(1,\) of torch\.float64"),
        hg.watch(model, replace={"norm": lambda x: x.new_zeros(1)}),
    ):
        model(tokens)


def test_unknown_signals_and_parameters_are_named_with_the_nearest():
    model = randomised(SMALL)
    with hg.watch(model, "*.rho") as signals:
        model(batch(0))
    with pytest.raises(UnknownName, match=r"did you mean 'blocks\.0\.attention\.scaled'"):
        signals["blocks.0.attention.scald"]
    with pytest.raises(UnknownName, match="exists but was not watched"):
        signals["blocks.0.attention.raw"]
    with pytest.raises(UnknownName, match=r"did you mean 'norm\.gamma'"):
        model.params["norm.gama"]


def test_a_model_is_shown_in_one_short_line():
    model = hg.load("docs-1m")
    assert repr(model) == (
        "Model(GPT2Config, vocabulary 256, context 256, 968,064 parameters in torch.float32, tokenizer bytes)"
    )
    assert "no tokenizer" in repr(hg.build(hg.GPT2Config(vocabulary=11, n_layers=9, n_heads=1, d_model=6)))


def test_the_root_offers_explaining_and_says_where_training_is():
    model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6))
    assert hg.explain(model).total == model.params.layout.count
    assert {"Sampling", "explain"} <= set(hg.__all__)
    with pytest.raises(
        AttributeError, match=r"'TrainConfig'; it is one import away: from handgrad.train import TrainC"
    ):
        hg.TrainConfig  # noqa: B018
    with pytest.raises(AttributeError, match=r"'nothing'$"):
        hg.nothing  # noqa: B018
