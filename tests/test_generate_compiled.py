"""One compiled pass a token: the same tokens and, to rounding, the same logits as the pass it was made from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_generate_cache import random_model, some_ids
from test_llama import CASES
from test_model import batch, randomised

import handgrad as hg
from handgrad.core.compiler import no_compiler
from handgrad.core.errors import ConfigError, ShapeError
from handgrad.core.run import Run
from handgrad.generate.compiled import CompiledReader
from handgrad.generate.generate import complete
from handgrad.generate.last import last_logits
from handgrad.generate.sample import Sampling
from handgrad.generate.static import StaticCache
from handgrad.generate.weights import laid_out, places_of, tree_of

GREEDY = Sampling(greedy=True)
compiles = pytest.mark.skipif(bool(no_compiler()), reason=no_compiler() or "there is a C++ compiler")
MODELS = {"gpt2": lambda: random_model(), **{f"llama, {name}": lambda c=c: randomised(c) for name, c in CASES.items()}}


def statically(model: hg.Model, ids: torch.Tensor, sizes: list[int], capacity: int) -> torch.Tensor:
    cache, pieces = StaticCache(capacity), []
    for piece in ids.split(sizes, dim=1):
        cache.reserve(piece.shape[1])
        pieces.append(model(piece, Run(cache=cache, position=cache.position)))
        cache.advance(piece.shape[1])
    return torch.cat(pieces, dim=1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [[1] * 19, [7] + [1] * 12, [19]])
def test_a_static_cache_gives_the_logits_of_one_pass(name: str, sizes: list[int]) -> None:
    model, ids = MODELS[name](), batch(1, length=19)
    whole = model(ids)
    assert float((statically(model, ids, sizes, 23) - whole).abs().max()) < 1e-10
    assert float((whole[:, 1:] - whole[:, :-1]).norm(dim=-1).min()) > 0.1  # each token counts


def test_what_lies_beyond_a_rewound_static_cache_is_not_seen() -> None:
    model, first, second, cache = random_model(), some_ids(11), some_ids(11, seed=6), StaticCache(11)
    for ids in (first, second):
        cache.rewind()
        for piece in ids.split([4, 1, 6], dim=1):
            logits = model(piece, Run(cache=cache, position=cache.position))
            cache.advance(piece.shape[1])
    assert float((logits - model(second)[:, 5:]).abs().max()) < 1e-10
    with pytest.raises(ShapeError, match="room for 11 tokens; 11 are kept and 1 more came"):
        cache.reserve(1)
    with pytest.raises(ConfigError, match="cannot rewind the cache to 12 tokens: it holds 11"):
        cache.rewind(12)
    with pytest.raises(ConfigError, match="cache for 0 tokens"):
        StaticCache(0)


def test_only_the_last_logits_are_formed() -> None:
    model, ids = random_model(), some_ids(7)
    with hg.watch(model, "head") as signals:
        logits = last_logits(model, model.numbers, ids, model.run)
    assert signals["head"].shape == (2, 1, 23)
    assert float((logits - model(ids)[:, -1]).abs().max()) < 1e-12


def test_numbers_laid_out_for_reading_are_the_same_numbers() -> None:
    model = random_model()
    layout = model.params.layout
    twice = {name: 2 * w for name, w in model.params.items()}
    flats = laid_out(layout, [model.params, twice])
    for flat, factor in zip(flats, (1, 2), strict=True):
        tree = tree_of(places_of(layout), flat)
        assert torch.equal(tree["blocks"]["1"]["mlp"]["up"]["w"], factor * model.params["blocks.1.mlp.up.w"])
        assert torch.equal(tree["head"]["w_emb"], factor * model.params["embedding.token.w_emb"])
    assert tree["blocks"]["1"]["mlp"]["up"]["w"].stride()[0] == 1  # an output's weights lie side by side


def test_half_precision_writes_with_a_shadow() -> None:
    model = random_model(dtype=torch.float32)
    half = model.shadowed(torch.bfloat16)
    assert complete(half, some_ids(5), 12, GREEDY).shape == (2, 12)
    assert half.numbers["norm"]["gamma"].dtype == torch.bfloat16
    assert model.params.flat.dtype == half.params.flat.dtype == torch.float32


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="'no-such-compiler', which CXX names, is not there; install"):
        complete(random_model(), some_ids(5), 3, compiled=True)


@compiles
def test_what_cannot_be_compiled_is_refused() -> None:
    model = random_model()
    with pytest.raises(ConfigError, match="no cache, or compiled passes"):
        complete(model, some_ids(5), 3, use_cache=False, compiled=True)
    with hg.watch(model, "*"), pytest.raises(ConfigError, match="signals are watched"):
        complete(model, some_ids(5), 3, compiled=True)
    with pytest.raises(ConfigError, match="this model has no equal blocks"):
        CompiledReader(replace(model, layer=model.layer.parts["blocks"]), 5)


@pytest.mark.long
@compiles
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("name", ["gpt2", "llama, grouped, tied", "llama, window (Mistral)", "llama, llama3"])
def test_a_compiled_pass_gives_the_same_logits_and_tokens(name: str) -> None:
    model = MODELS[name]()
    ids = batch(1, rows=1, length=19)
    reader = CompiledReader(model, 19)
    worst = 0.0
    for t in range(3, 20):
        worst = max(worst, float((reader.logits(ids[:, :t]) - model(ids[:, :t])[:, -1]).abs().max()))
    assert 0 < worst < 1e-10  # another order of sums: exact zeros everywhere would mean that nothing was compiled
    for sampling in (GREEDY, Sampling()):  # 60 tokens: the window is cut, too
        plain = complete(model, ids[:, :4], 60, sampling, use_cache=False)
        assert torch.equal(complete(model, ids[:, :4], 60, sampling, compiled=True), plain)
    assert len(set(plain.flatten().tolist())) > 3


@pytest.mark.long
@compiles
@pytest.mark.filterwarnings("ignore")
def test_two_compiled_models_of_one_shape_keep_to_their_own_numbers() -> None:
    one, other, prompt = random_model(seed=1), random_model(seed=2), some_ids(4, batch=1)
    readers = [CompiledReader(model, 8) for model in (one, other)]
    for t in (4, 5, 6):
        ids = some_ids(t, batch=1)
        for reader in readers:
            assert float((reader.logits(ids) - reader.model(ids)[:, -1]).abs().max()) < 1e-10
    assert not torch.equal(complete(one, prompt, 9, GREEDY), complete(other, prompt, 9, GREEDY))
