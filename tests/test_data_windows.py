"""Windows: which starts there are, that targets are shifted by one, that validation covers everything once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handgrad.core.errors import ConfigError, DataError
from handgrad.data import n_windows, training_windows, validation_problem, validation_windows

QUICK = settings(max_examples=150, deadline=None, derandomize=True)


def starts_seen(tokens, context, draws=60):
    seen = set()
    for step in range(draws):
        inputs, targets = training_windows(tokens, context, 5, seed=1, step=step)
        assert inputs.dtype == targets.dtype == np.int64
        assert inputs.shape == targets.shape == (5, context)
        for x, y in zip(inputs, targets, strict=True):
            start = int(x[0])
            assert x.tolist() == list(range(start, start + context))
            assert y.tolist() == list(range(start + 1, start + context + 1))
            seen.add(start)
    return seen


def test_d01_too_few_tokens_gives_both_numbers():
    for n in (10, 16):
        message = f"there are {n} tokens to train on, but context 16 needs at least 17 "
        with pytest.raises(DataError, match=message):
            n_windows(n, 16)
        with pytest.raises(DataError, match=message):
            training_windows(np.zeros(n, np.uint8), 16, 2, 0, 0)


def test_d01_context_plus_one_is_exactly_one_window():
    assert n_windows(17, 16) == 1
    assert starts_seen(np.arange(17, dtype=np.uint8), 16, 5) == {0}


def test_d02_starts_are_exactly_all_of_them():
    assert n_windows(16 + 3, 16) == 3
    assert starts_seen(np.arange(19, dtype=np.uint16), 16) == {0, 1, 2}


def test_d05_every_batch_is_full_and_every_token_is_reached_for_odd_sizes():
    tokens = np.arange(23, dtype=np.uint8)
    assert starts_seen(tokens, 5, 100) == set(range(18))


def test_starts_are_uniform():
    inputs, _ = training_windows(np.arange(14), 4, 40_000, seed=3, step=0)
    counts = np.bincount(inputs[:, 0], minlength=10)
    # Ten equally likely starts: the standard deviation of a count is 60.
    assert counts.min() > 4000 - 300
    assert counts.max() < 4000 + 300


def test_draw_depends_on_seed_step_micro_and_nothing_else():
    tokens = np.arange(1000)
    draws = {}
    for key in [(s, t, m) for s in (0, 1, 2**32, 2**64 - 1) for t in (0, 1, 2**32) for m in (0, 1)]:
        draws[key] = training_windows(tokens, 4, 8, *key)[0][:, 0].tolist()
        assert training_windows(tokens, 4, 8, *key)[0][:, 0].tolist() == draws[key]
    assert len({tuple(starts) for starts in draws.values()}) == len(draws)


def test_draw_is_pinned():
    # A run resumed with a later version has to see the batches it would have seen.
    inputs, _ = training_windows(np.arange(1000), 4, 6, seed=1337, step=7, micro=2)
    assert inputs[:, 0].tolist() == [605, 708, 342, 334, 456, 277]


def test_large_seeds_do_not_share_a_stream_with_small_ones():
    tokens = np.arange(1000)
    large = training_windows(tokens, 4, 8, seed=5 + (7 << 32), step=3, micro=0)[0]
    small = training_windows(tokens, 4, 8, seed=5, step=7, micro=3)[0]
    assert not np.array_equal(large, small)


def test_windows_own_their_numbers(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(50, dtype=np.uint8))
    tokens = np.load(tmp_path / "t.npy", mmap_mode="r")
    inputs, targets = training_windows(tokens, 4, 3, 0, 0)
    assert type(inputs) is type(targets) is np.ndarray
    assert inputs.flags.c_contiguous
    assert targets.flags.c_contiguous
    before = targets.copy()
    inputs[:] = -1
    assert np.array_equal(targets, before)
    assert tokens.tolist() == list(range(50))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2, 0, 0), "context is 0"),
        ((4, 0, 0, 0), "batch_size is 0"),
        ((4, 2, -1, 0), "seed is -1"),
        ((4, 2, 0, -1), "step is -1"),
        ((4, 2, 0, 0, -1), "micro is -1"),
        ((4, 2, 1 << 64, 0), "seed is 18446744073709551616"),
    ],
)
def test_numbers_that_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        training_windows(np.arange(100), *arguments)


def test_validation_windows_known_values():
    batches = list(validation_windows(np.arange(12, dtype=np.uint8), 3, 2))
    assert [x.tolist() for x, _ in batches] == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8]], [[9, 10]]]
    assert [y.tolist() for _, y in batches] == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9]], [[10, 11]]]
    assert {x.dtype for x, _ in batches} == {np.dtype(np.int64)}


@QUICK
@given(st.integers(2, 80), st.integers(1, 20), st.integers(1, 5))
def test_every_token_but_the_first_is_a_target_exactly_once(n, context, batch_size):
    batches = list(validation_windows(np.arange(n), context, batch_size))
    assert np.concatenate([y.ravel() for _, y in batches]).tolist() == list(range(1, n))
    for i, (x, y) in enumerate(batches):
        assert np.array_equal(x + 1, y)
        assert x.shape[0] <= batch_size
        if x.shape[1] != context:
            assert i == len(batches) - 1
            assert x.shape == (1, (n - 1) % context)


def test_validation_windows_refuse_at_the_call():
    with pytest.raises(DataError, match=r"at least 2 tokens .* there are 1"):
        validation_windows(np.arange(1), 3, 2)
    with pytest.raises(ConfigError, match="batch_size is 0"):
        validation_windows(np.arange(9), 3, 0)
    with pytest.raises(ConfigError, match="context is 0"):
        validation_windows(np.arange(9), 0, 2)


def test_d04_validation_problem_is_known_before_the_first_step():
    assert validation_problem(4, 16) == (
        "validation is off: its part of the data has 4 tokens, and one whole window of context 16 needs 17; "
        "use more data or a smaller context"
    )
    assert validation_problem(0, 16) is not None
    assert validation_problem(16, 16) is not None
    assert validation_problem(17, 16) is None
    with pytest.raises(ConfigError, match="context is 0"):
        validation_problem(4, 0)
