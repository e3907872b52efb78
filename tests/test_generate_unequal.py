"""Prompts of unequal lengths, written together as if alone; penalties and min-p; the Llama family and its cache."""

from __future__ import annotations

from math import exp, inf, nan
from types import SimpleNamespace

import pytest
import torch
from test_generate_cache import random_model, some_ids

import handgrad as hg
from handgrad.core.errors import ConfigError, ShapeError
from handgrad.generate.cache import KVCache
from handgrad.generate.compare import check_cache
from handgrad.generate.generate import Reader, complete
from handgrad.generate.padded import PaddedReader
from handgrad.generate.sample import Sampling, penalised, pick, probabilities
from handgrad.layers.frequencies import LinearScaling, Llama3, NTKAware, Plain
from handgrad.models.llama import LlamaConfig

LLAMA = {
    "plain": {},
    "groups": {"n_kv_heads": 1},
    "window": {"window": 5, "n_kv_heads": 2},
    "offsets": {"bias": True, "tied": True},
    "linear": {"rope": LinearScaling(4.0)},
}


def llama(context: int = 40, **how: object) -> hg.Model:
    shape = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_mlp": 13, "std": 0.5, "d_head": 6}
    model = hg.build(LlamaConfig(vocabulary=23, context=context, **shape, **how), seed=2, dtype=torch.float64)
    noise = torch.Generator().manual_seed(1)
    for w in model.params.values():
        w.add_(0.2 * torch.randn(w.shape, generator=noise, dtype=torch.float64))
    return model


def rows_of(lengths: list[int]) -> list[torch.Tensor]:
    return [some_ids(n, 1, seed=n)[0] for n in lengths]


@pytest.mark.parametrize("kind", ["gpt2", *LLAMA])
@pytest.mark.parametrize("use_cache", [True, False])
def test_texts_of_unequal_lengths_are_written_as_if_alone(kind: str, use_cache: bool) -> None:
    model = random_model(context=12) if kind == "gpt2" else llama(12, **LLAMA[kind])
    prompts = rows_of([1, 5, 12, 17, 5])  # some begin beyond the context, and all are cut on the way
    for sampling in (Sampling(greedy=True), Sampling(0.9, 9, 0.95, repetition_penalty=1.3)):
        together = complete(model, prompts, 25, sampling, seed=3, use_cache=use_cache)
        alone = [complete(model, prompt, 25, sampling, seed=3) for prompt in prompts]
        assert torch.equal(together, torch.stack(alone))
    assert len(set(together.flatten().tolist())) > 3


@pytest.mark.parametrize("kind", ["gpt2", *LLAMA])
def test_padding_changes_no_logit(kind: str) -> None:
    model = random_model(context=40) if kind == "gpt2" else llama(40, **LLAMA[kind])
    reader, rows = PaddedReader(model, KVCache(40)), rows_of([3, 11, 7])
    for _ in range(6):
        logits = reader.logits(rows)
        for row, found in zip(rows, logits, strict=True):
            expected = Reader(model, None).logits(row[None])[0]
            assert float((found - expected).abs().max()) < 1e-10
        rows = [torch.cat([row, found.argmax()[None]]) for row, found in zip(rows, logits, strict=True)]


def test_a_row_that_stops_leaves_the_others_alone() -> None:
    model, prompts = random_model(context=12), rows_of([2, 6])
    alone = complete(model, prompts[0], 20, Sampling(greedy=True))
    stop = int(alone[3])
    found = complete(model, prompts, 20, Sampling(greedy=True), stop=stop)
    first = alone.tolist().index(stop)
    assert found[0, : first + 1].tolist() == alone[: first + 1].tolist()
    assert set(found[0, first:].tolist()) == {stop}
    own = complete(model, prompts[1], 20, Sampling(greedy=True), stop=stop)
    assert found[1, : len(own)].tolist() == own.tolist()


def test_texts_of_one_length_in_a_list_are_written_as_if_alone_too() -> None:
    model, prompts = random_model(context=12), [torch.tensor([1, 2]), torch.tensor([3, 4])]
    together = complete(model, prompts, 20, Sampling(), seed=3)
    assert torch.equal(together, torch.stack([complete(model, prompt, 20, Sampling(), seed=3) for prompt in prompts]))
    assert complete(model, [torch.tensor([1, 2])], 4).shape == (1, 4)


def test_lists_that_are_no_prompts_are_refused() -> None:
    model = random_model()
    with pytest.raises(ShapeError, match="outside the vocabulary"):
        complete(model, [[1, 2], [99]], 3)
    with pytest.raises(ConfigError, match="one length"):
        complete(model, [[1, 2], [3]], 3, compiled=True)
    assert complete(model, [[1, 2], []], 3).shape == (2, 3)
    assert complete(model, [[1, 2], [3]], 0).shape == (2, 0)
    assert complete(model, [[1, 2], []], 3)[1].tolist() == complete(model, [0], 3).tolist()


SCALINGS = {"plain": Plain(), "linear": LinearScaling(4.0), "llama3": Llama3(8.0, 1.0, 4.0, 128), "ntk": NTKAware(4.0)}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("window", [0, 100])
def test_past_five_hundred_positions_the_cache_gives_the_same(name: str, window: int) -> None:
    model = llama(600, rope=SCALINGS[name], window=window, n_kv_heads=2)
    ids = some_ids(560, 1)[0]
    table = check_cache(model, ids, chunk=37)
    assert table.verdict in ("identical", "rounding"), table
    assert max(row.difference for row in table.rows) < 1e-10
    cached = complete(model, ids[:510], 30, Sampling(0.8), seed=1)
    assert torch.equal(cached, complete(model, ids[:510], 30, Sampling(0.8), seed=1, use_cache=False))


def test_padded_columns_of_the_vocabulary_are_never_drawn() -> None:
    model = random_model()
    model.tokenizer = SimpleNamespace(vocab_size=4, kind="ids")
    found = complete(model, [[1, 2], [3]], 60, Sampling(temperature=50.0, repetition_penalty=2.0))
    assert set(found.flatten().tolist()) == {0, 1, 2, 3}


def test_min_p_keeps_what_is_near_the_most_probable() -> None:
    logits = torch.tensor([[0.0, -1.0, -2.0, -inf]])

    def kept(**how: float) -> list[int]:
        return probabilities(logits, Sampling(**how))[0].nonzero().flatten().tolist()

    assert kept() == kept(min_p=exp(-2) * 0.999) == [0, 1, 2]
    assert kept(min_p=exp(-2) * 1.001) == [0, 1]
    assert kept(min_p=1.0) == [0]
    assert kept(min_p=0.3, temperature=100.0) == [0, 1, 2]
    assert float(probabilities(logits, Sampling(min_p=0.2)).sum()) == pytest.approx(1, abs=1e-15)
    ties = probabilities(torch.tensor([[1.0, 1.0]]), Sampling(min_p=1.0))
    assert ties.tolist() == [[0.5, 0.5]]


def test_a_penalty_makes_what_was_written_less_likely() -> None:
    logits = torch.tensor([[3.0, -1.0, 2.0, 0.0, -inf]])
    found = penalised(logits, torch.tensor([[0, 1, 4, -1, 99]]), 2.0)
    assert found.tolist() == [[1.5, -2.0, 2.0, 0.0, -inf]]
    assert penalised(logits, torch.tensor([[-1, -1]]), 2.0).tolist() == logits.tolist()
    assert pick(found, Sampling(greedy=True), torch.Generator()).tolist() == [2]
    model = random_model(context=30)
    free, penal = (complete(model, [1, 2], 25, Sampling(greedy=True, repetition_penalty=p)) for p in (1.0, 100.0))
    assert len(set(penal.tolist())) > len(set(free.tolist()))


@pytest.mark.parametrize(
    "how",
    [{"min_p": v} for v in (-0.1, 1.1, nan, inf)] + [{"repetition_penalty": v} for v in (0.0, -1.0, nan, inf, 101.0)],
)
def test_numbers_that_cannot_be_are_refused(how: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(how))):
        Sampling(**how)
    assert (Sampling(min_p=0).min_p, Sampling(min_p=1).min_p) == (0, 1)
    assert Sampling(repetition_penalty=0.01) != Sampling(repetition_penalty=100.0)
