"""Writing on: cached and uncached alike, across the limit of the context, K04, and where numbers break (S04)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from test_generate_cache import random_model, some_ids

import handgrad as hg
from handgrad.core.errors import ConfigError, NumericError, ShapeError, UnknownName
from handgrad.data.tokenizers import Bytes, Chars, Ids
from handgrad.generate.cache import KVCache
from handgrad.generate.generate import Reader, complete, first_id, generate, window
from handgrad.generate.sample import Sampling, pick
from handgrad.models.diagnose import FirstBad, first_not_finite

GREEDY = Sampling(greedy=True)


def by_hand(model: hg.Model, prompt: torch.Tensor, n: int, sampling: Sampling, seed: int) -> torch.Tensor:
    """The rule of the docstring in the plainest words: count, cut when there would be one too many, look, draw."""
    generator, context, text, in_window = torch.Generator().manual_seed(seed), model.config.context, prompt, 0
    for _ in range(text.shape[1]):
        in_window = in_window + 1 if in_window < context else max(1, context // 2)
    for _ in range(n):
        new = pick(model(text[:, -in_window:])[:, -1], sampling, generator)
        text = torch.cat([text, new[:, None]], dim=1)
        in_window = in_window + 1 if in_window < context else max(1, context // 2)
    return text[:, prompt.shape[1] :]


@pytest.mark.parametrize("context", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("n_prompt", [1, 5, 8, 19])
def test_both_paths_follow_the_rule_across_the_context_several_times(context: int, n_prompt: int) -> None:
    model, prompt = random_model(context), some_ids(n_prompt)
    expected = by_hand(model, prompt, 40, Sampling(), seed=4)
    assert torch.equal(complete(model, prompt, 40, seed=4), expected)
    assert torch.equal(complete(model, prompt, 40, seed=4, use_cache=False), expected)


def test_fifty_tokens_and_more_are_the_same_with_and_without_the_cache() -> None:
    model, prompt = random_model(context=80), some_ids(6)
    for sampling in (GREEDY, Sampling(temperature=0.9, top_k=7, top_p=0.9)):
        cached = complete(model, prompt, 64, sampling, seed=1)
        assert torch.equal(cached, complete(model, prompt, 64, sampling, seed=1, use_cache=False))
        assert len(set(cached.flatten().tolist())) > 3


def test_fields_of_the_sampling_may_be_given_by_name() -> None:
    model, prompt = random_model(context=30), some_ids(6)
    expected = complete(model, prompt, 9, hg.Sampling(temperature=0.8, top_k=4), seed=2)
    assert torch.equal(complete(model, prompt, 9, temperature=0.8, top_k=4, seed=2), expected)
    assert torch.equal(
        torch.cat(list(hg.generate(model, prompt[0], 9, greedy=True))), complete(model, prompt[0], 9, GREEDY)
    )
    with pytest.raises(UnknownName, match="no argument of generate named 'temprature'; did you mean 'temperature'"):
        hg.generate(model, prompt, 9, temprature=0.8)
    with pytest.raises(ConfigError, match=r"sampling is 0.8, and must be a Sampling: hg.generate\("):
        hg.generate(model, prompt, 9, 0.8)
    with pytest.raises(ConfigError, match="temperature is -1"):
        hg.generate(model, prompt, 9, temperature=-1)


def test_the_logits_agree_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = random_model(context=16), some_ids(3)
    seen: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    logits = Reader.logits

    def kept(self: Reader, tokens: torch.Tensor) -> torch.Tensor:
        seen[self.cache is not None].append(logits(self, tokens))
        return seen[self.cache is not None][-1]

    monkeypatch.setattr(Reader, "logits", kept)
    for use_cache in (True, False):
        complete(model, prompt, 60, seed=2, use_cache=use_cache)
    assert len(seen[True]) == len(seen[False]) == 60
    assert max(float((a - b).abs().max()) for a, b in zip(seen[True], seen[False], strict=True)) < 1e-10


def test_the_cache_reads_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = random_model(context=16), []
    read = Reader.run

    def counted(self: Reader, tokens: torch.Tensor, position: int) -> torch.Tensor:
        lengths.append(tokens.shape[1])
        return read(self, tokens, position)

    monkeypatch.setattr(Reader, "run", counted)
    complete(model, some_ids(5), 24)
    assert lengths == [5] + [1] * 11 + [8] + [1] * 8 + [8] + [1] * 2


def test_the_window_depends_on_the_length_alone() -> None:
    model, prompt = random_model(context=7), some_ids(4)
    once = complete(model, prompt, 30, GREEDY)
    first = complete(model, prompt, 13, GREEDY)
    second = complete(model, torch.cat([prompt, first], dim=1), 17, GREEDY)
    assert torch.equal(torch.cat([first, second], dim=1), once)
    assert [window(n, 1) for n in range(1, 5)] == [1, 1, 1, 1]
    assert [window(n, 5) for n in range(1, 12)] == [1, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3]
    assert max(window(n, 1024) for n in range(5000)) == 1024


def test_tokens_come_one_by_one() -> None:
    stream = generate(random_model(), some_ids(3), 10**12, GREEDY)
    assert [ids.shape for ids in itertools.islice(stream, 3)] == [(2,)] * 3


def test_rows_do_not_touch_each_other() -> None:
    model, prompt = random_model(context=9), some_ids(4, batch=3)
    together = complete(model, prompt, 21, GREEDY)
    for row in range(3):
        assert torch.equal(complete(model, prompt[row], 21, GREEDY), together[row])


@pytest.mark.parametrize("use_cache", [True, False])
def test_nothing_asked_for_is_an_empty_result(use_cache: bool) -> None:
    model = random_model()
    assert list(generate(model, some_ids(3), 0, use_cache=use_cache)) == []
    assert complete(model, some_ids(3), 0, use_cache=use_cache).shape == (2, 0)
    assert complete(model, some_ids(3)[0], 0, use_cache=use_cache).shape == (0,)
    assert complete(model, some_ids(3)[0], 5, use_cache=use_cache).shape == (5,)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [(None, 0), (Chars(("\t", "\n", "a")), 1), (Chars(("a", "b")), 0), (Ids(23), 0), (Bytes(), 10)],
)
def test_an_empty_prompt_starts_from_a_newline_or_from_id_0(tokenizer: object, expected: int) -> None:
    model = random_model()
    if tokenizer is not None:
        model.tokenizer = tokenizer
    assert first_id(model) == expected
    assert torch.equal(complete(model, [], 12, seed=3), complete(model, torch.tensor([expected]), 12, seed=3))
    empty = torch.zeros((2, 0), dtype=torch.int64)
    assert torch.equal(complete(model, empty, 4, GREEDY), complete(model, torch.tensor([[expected]] * 2), 4, GREEDY))


def test_a_newline_that_the_model_does_not_know_is_not_used() -> None:
    model = hg.build(hg.GPT2Config(vocabulary=5, n_layers=1, n_heads=1, d_model=4))
    model.tokenizer = Bytes()
    assert first_id(model) == 0


def test_a_row_that_stops_repeats_its_stop_and_leaves_the_others_alone() -> None:
    model, prompt = random_model(), some_ids(4, batch=3)
    free = complete(model, prompt, 20, GREEDY)
    stop = int(free[0, 2])
    first = [(row == stop).nonzero().flatten().tolist()[:1] for row in free]
    ended = complete(model, prompt, 20, GREEDY, stop=stop)
    for row, at in enumerate(first):
        end = at[0] if at else 19
        assert torch.equal(ended[row, : end + 1], free[row, : end + 1])
        assert set(ended[row, end + 1 :].tolist()) <= {stop}
    assert min(at[0] if at else 99 for at in first) <= 2
    assert any(not at or at[0] > 4 for at in first)  # at least one row went on after the first had ended


def test_it_ends_when_every_row_has_ended_also_with_the_first_token() -> None:
    model, prompt = random_model(), some_ids(4, batch=1)
    free = complete(model, prompt, 20, GREEDY)[0].tolist()
    assert complete(model, prompt, 20, GREEDY, stop={free[0]})[0].tolist() == free[:1]
    at = next(i for i, id in enumerate(free) if i and id not in free[:i])
    assert (
        complete(model, prompt, 20, GREEDY, stop=[free[at], 22 if 22 not in free else free[at]])[0].tolist()
        == free[: at + 1]
    )


def test_any_of_several_stops_ends_a_row() -> None:
    model, prompt = random_model(), some_ids(4, batch=1)
    free = complete(model, prompt, 40, seed=1)[0].tolist()
    unused = [i for i in range(23) if i not in free[:12]]
    for at in (3, 11):
        expected = free[: free.index(free[at]) + 1]
        for others in (unused[:1], unused[-1:]):
            assert complete(model, prompt, 40, seed=1, stop=[*others, free[at]])[0].tolist() == expected


def test_columns_without_a_token_are_never_drawn() -> None:
    model = random_model()
    assert max(complete(model, some_ids(4), 100, seed=1).flatten().tolist()) > 8
    model.tokenizer = Chars(tuple("\nabcdefg"))
    for sampling in (Sampling(), GREEDY, Sampling(top_k=1000)):
        assert max(complete(model, some_ids(4), 100, sampling, seed=1).flatten().tolist()) < 8


def test_dropout_never_acts() -> None:
    config = hg.GPT2Config(vocabulary=23, context=8, n_layers=1, n_heads=1, d_model=6, dropout=0.9, std=0.5)
    model = hg.build(config, seed=0)
    with model.running(seed=1):
        while_training = complete(model, [1, 2], 20, GREEDY)
    assert torch.equal(while_training, complete(model, [1, 2], 20, GREEDY))


def test_watched_signals_are_those_of_the_last_token() -> None:
    model = random_model()
    with hg.watch(model, "blocks.0.attention.rho") as signals:
        complete(model, some_ids(4), 3, GREEDY)
    assert signals["blocks.0.attention.rho"].shape == (2, 3, 1, 6)


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_first_layer_that_is_not_finite_is_named(use_cache: bool) -> None:
    model = random_model()
    model.params["blocks.1.mlp.up.w"][2, 3] = torch.nan
    with pytest.raises(NumericError) as caught:
        complete(model, some_ids(4), 3, use_cache=use_cache)
    assert str(caught.value) == (
        "no token can be drawn from the logits after 4 tokens: row 0 has NaN at id 0 (46 in all). The parameter "
        "blocks.1.mlp.up.w holds values that are not finite; the first signal that is not finite is blocks.1.mlp.up. "
        "The model is damaged; use an earlier checkpoint"
    )


def test_an_overflow_of_finite_parameters_is_told_apart() -> None:
    model = random_model(dtype=torch.float32)
    model.params["blocks.0.attention.out.w"].fill_(1e38)
    with pytest.raises(NumericError, match=r"is blocks\.0\.attention, while every parameter is finite.*float32"):
        complete(model, some_ids(4), 3)


def test_masked_places_are_not_called_broken() -> None:
    model = random_model()
    assert first_not_finite(model, some_ids(4)) is None
    assert FirstBad().wants("blocks.0.attention.rho")  # so that no fused formula hides it
    model.params["norm.gamma"][1] = torch.inf
    assert first_not_finite(model, some_ids(4)) == "norm"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([1.0, 2.0]), r"int64 token ids.*found \(2,\) of float32"),
        (torch.zeros((1, 1, 1), dtype=torch.int64), r"found \(1, 1, 1\) of int64"),
        (torch.zeros((0, 3), dtype=torch.int64), r"with a batch of at least 1; found \(0, 3\)"),
        (torch.tensor([3, 23]), "token id 23 at row 0, position 1 is outside the vocabulary of 23"),
        (torch.tensor([[3, -1]]), "token id -1"),
    ],
)
def test_prompts_that_cannot_be_are_refused_at_the_call(prompt: torch.Tensor, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        generate(random_model(), prompt, 3)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens is -1, and must be a whole number from 0"),
        ({"max_new_tokens": 2.0}, "max_new_tokens is 2.0"),
        ({"max_new_tokens": 1, "seed": -1}, "seed is -1"),
        ({"max_new_tokens": 1, "stop": 23}, r"stop is \[23\], and the ids of this model go from 0 to 22"),
        ({"max_new_tokens": 1, "stop": [-1, 3]}, r"stop is \[-1, 3\]"),
    ],
)
def test_numbers_that_cannot_be_are_refused_at_the_call(how: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(random_model(), [1], **how)


def test_a_long_prompt_takes_no_more_room_than_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[int] = []
    made = KVCache.__post_init__
    monkeypatch.setattr(KVCache, "__post_init__", lambda self: (rooms.append(self.capacity), made(self))[1])
    model = random_model(context=8)
    complete(model, some_ids(100), 2)
    complete(model, some_ids(2), 3)
    assert rooms == [8, 5]


def test_the_root_offers_it_however_it_was_imported() -> None:
    model = random_model()
    assert [int(i) for i in hg.generate(model, [1, 2], 4, GREEDY)] == complete(model, [1, 2], 4, GREEDY).tolist()
    assert SimpleNamespace(hg=hg).hg.generate is hg.generate
