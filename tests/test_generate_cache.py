"""The cache gives what a whole pass gives: K01, A05, and the check that says so."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

import handgrad as hg
from handgrad.core.errors import ConfigError, NumericError, ShapeError
from handgrad.core.run import Run
from handgrad.generate.cache import KVCache
from handgrad.generate.compare import check_cache


def random_model(context: int = 53, dtype: torch.dtype = torch.float64, seed: int = 3) -> hg.Model:
    """A small GPT-2 whose gains, biases and positions are far from their first values, so that each of them counts."""
    config = hg.GPT2Config(vocabulary=23, context=context, n_layers=2, n_heads=3, d_model=15, d_mlp=17, std=0.5)
    model = hg.build(config, seed=seed, dtype=dtype)
    noise = torch.Generator().manual_seed(seed)
    for w in model.params.values():
        w.add_(0.3 * torch.randn(w.shape, generator=noise, dtype=torch.float64))
    return model


def some_ids(n: int, batch: int = 2, seed: int = 5) -> torch.Tensor:
    return torch.randint(23, (batch, n), generator=torch.Generator().manual_seed(seed))


def in_chunks(model: hg.Model, ids: torch.Tensor, sizes: list[int], cache: KVCache) -> torch.Tensor:
    pieces = [model(piece, Run(cache=cache, position=cache.length)) for piece in ids.split(sizes, dim=1)]
    return torch.cat(pieces, dim=1)


@pytest.mark.parametrize("sizes", [[1] * 50, [7] + [1] * 43, [13, 1, 11, 25], [49, 1], [50]])
def test_fifty_tokens_in_chunks_give_the_logits_of_one_pass(sizes: list[int]) -> None:
    model, ids = random_model(), some_ids(50)
    whole = model(ids)
    cached = in_chunks(model, ids, sizes, KVCache(50))
    assert float((cached - whole).abs().max()) < 1e-10
    assert torch.equal(cached.argmax(-1), whole.argmax(-1))
    assert len(set(whole.argmax(-1).flatten().tolist())) > 5  # a constant answer would agree with anything


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_eight_tokens_after_five_cached_ones_do_not_depend_on_the_chunk(size: int) -> None:
    model, ids = random_model(context=13), some_ids(13)
    cache = KVCache(13)
    in_chunks(model, ids[:, :5], [5], cache)
    sizes = [size] * (8 // size) + ([8 % size] if 8 % size else [])
    assert float((in_chunks(model, ids[:, 5:], sizes, cache) - model(ids)[:, 5:]).abs().max()) < 1e-12


def test_float32_agrees_within_rounding() -> None:
    model, ids = random_model(dtype=torch.float32), some_ids(50)
    assert float((in_chunks(model, ids, [1] * 50, KVCache(50)) - model(ids)).abs().max()) < 1e-4


def test_memory_is_taken_once_and_its_size_is_known() -> None:
    model, ids, cache = random_model(), some_ids(50), KVCache(50)
    in_chunks(model, ids[:, :1], [1], cache)
    places = [(kept.k.data_ptr(), kept.v.data_ptr()) for kept in cache.layers.values()]
    assert cache.nbytes == 2 * 2 * (2 * 3 * 50 * 5) * 8  # layers · (k, v) · (B·H·capacity·D) · bytes
    in_chunks(model, ids[:, 1:], [1] * 49, cache)
    assert [(kept.k.data_ptr(), kept.v.data_ptr()) for kept in cache.layers.values()] == places
    assert cache.length == 50
    k, _ = cache.extend("blocks.0.attention.", torch.ones(2, 3, 0, 5), torch.ones(2, 3, 0, 5))
    assert k.data_ptr() == places[0][0]  # a view, not a copy


def test_a_rewound_cache_serves_again_with_the_same_memory() -> None:
    model, first, second, cache = random_model(), some_ids(11), some_ids(11, seed=6), KVCache(11)
    in_chunks(model, first, [11], cache)
    places = [kept.k.data_ptr() for kept in cache.layers.values()]
    cache.rewind()
    assert cache.length == 0
    assert float((in_chunks(model, second, [4, 7], cache) - model(second)).abs().max()) < 1e-12
    cache.rewind(4)
    again = model(second[:, 4:], Run(cache=cache, position=4))
    assert float((again - model(second)[:, 4:]).abs().max()) < 1e-12
    assert [kept.k.data_ptr() for kept in cache.layers.values()] == places


def test_what_does_not_fit_is_refused_and_nothing_is_lost() -> None:
    cache = KVCache(4)
    k = torch.arange(3.0).expand(1, 1, 3).mT.contiguous()[..., None].reshape(1, 1, 3, 1)
    cache.extend("a.", k, k)
    with pytest.raises(ShapeError, match=r"room for 4 tokens; 3 are kept and 2 more came"):
        cache.extend("a.", k[..., :2, :], k[..., :2, :])
    assert cache.length == 3
    with pytest.raises(ShapeError, match=r"of a\. was started with keys .* \(1, 1, 4, 1\); found \(2, 1, 1, 1\)"):
        cache.extend("a.", torch.ones(2, 1, 1, 1), torch.ones(2, 1, 1, 1))
    with pytest.raises(ShapeError, match="was started with values"):
        cache.extend("a.", k[..., :1, :], torch.ones(1, 1, 1, 2))
    assert cache.extend("a.", k[..., :1, :], k[..., :1, :])[0].flatten().tolist() == [0.0, 1.0, 2.0, 0.0]
    with pytest.raises(ConfigError, match="cannot rewind the cache to 5 tokens: it holds 4"):
        cache.rewind(5)
    with pytest.raises(ConfigError, match="cache for 0 tokens"):
        KVCache(0)


def test_a_layer_that_has_not_read_its_tokens_holds_the_length_back() -> None:
    cache, k = KVCache(4), torch.ones(1, 1, 2, 1)
    assert cache.length == 0
    cache.extend("a.", k, k)
    cache.extend("b.", k[..., :1, :], k[..., :1, :])
    assert cache.length == 1


def test_the_check_says_rounding_and_identical() -> None:
    ids = some_ids(50, batch=1)[0]
    table = check_cache(random_model(dtype=torch.float32), ids)
    assert (table.verdict, table.first_wrong, len(table.rows)) == ("rounding", None, 50)
    assert all(row.difference_float64 <= row.bound for row in table.rows)
    largest = random_model()(ids[None])[0].abs().amax(-1)
    assert [row.bound for row in table.rows] == pytest.approx((1e-10 * largest).tolist(), rel=1e-5)
    assert any(row.difference > row.bound for row in table.rows)  # float32 alone could not have decided
    assert str(table).startswith("rounding: logits with and without the cache differ by at most")
    assert "\n" not in str(table)
    assert [row.token for row in table.rows] == ids.tolist()
    alone = check_cache(random_model(), ids[:1])
    assert alone.verdict == "identical"
    assert str(alone).endswith("every logit of 1 tokens is the same number.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_check_finds_a_cache_that_shifts_positions(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    extend = KVCache.extend

    def forgets_the_fourth(self: KVCache, path: str, k: torch.Tensor, v: torch.Tensor):
        k, v = extend(self, path, k, v)
        return k.index_fill(2, torch.tensor([3]), 0.0) if k.shape[2] > 3 else k, v

    monkeypatch.setattr(KVCache, "extend", forgets_the_fourth)
    table = check_cache(random_model(dtype=dtype), some_ids(11, batch=1)[0])
    assert (table.verdict, table.first_wrong) == ("bug", 3)
    verdict, head, *rows = str(table).splitlines()
    assert verdict.startswith("bug: from position 3 on")
    float32 = ["float32", "(not", "judged)"] if dtype == torch.float32 else []
    assert head.split() == ["position", "token", *float32, "float64", "(bound)"]
    assert [int(row.split()[0]) for row in rows] == [row.position for row in table.rows if row.verdict == "bug"]
    assert 3 <= len(rows) <= 8
    assert rows[0].split()[-2:] == [f"{table.rows[3].difference_float64:.2e}", f"({table.rows[3].bound:.1e})"]


def test_the_check_refuses_what_it_cannot_compare() -> None:
    model = random_model(context=7)
    with pytest.raises(ShapeError, match=r"one row of 1 to 7 ids .* found \(8,\)"):
        check_cache(model, some_ids(8)[0])
    for dtype in (torch.float64, torch.float32):
        broken = random_model(dtype=dtype)
        broken.params["blocks.0.mlp.up.w"][0, 0] = nan
        broken.params["blocks.1.mlp.up.w"][0, 0] = inf
        where = "at position 0 are not finite: the parameter blocks.0.mlp.up.w is not, as 1 more are"
        with pytest.raises(NumericError, match=where):
            check_cache(broken, some_ids(3)[0])
    unread = random_model()
    unread.params["embedding.position.w_pos"][50] = nan
    assert check_cache(unread, some_ids(3)[0]).verdict in ("identical", "rounding")


def test_the_check_calls_nan_from_the_cache_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    extend = KVCache.extend

    def spoilt(self: KVCache, path: str, k: torch.Tensor, v: torch.Tensor):
        k, v = extend(self, path, k, v)
        return k, v * nan

    monkeypatch.setattr(KVCache, "extend", spoilt)
    assert check_cache(random_model(), some_ids(3)[0]).verdict == "bug"
