"""The first of several stops, wherever the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handgrad.cli.stops import UntilStop

TEXT = st.text("abc", max_size=16)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def shown(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    until = UntilStop(stops)
    text = "".join(until.push(piece) for piece in pieces)
    return text + until.flush(), until.found


@settings(max_examples=400, deadline=None, derandomize=True)
@given(TEXT, STOPS, st.lists(st.integers(0, 16), max_size=6))
@example("aaba", ("aaba", "b", "ba"), [3])
def test_the_earliest_stop_ends_a_text_wherever_it_is_cut(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(at)]
    places = [text.find(stop) for stop in stops if stop in text]
    expected = (text[: min(places)], True) if places else (text, False)
    assert shown(stops, pieces) == shown(stops, [text]) == shown(stops, list(text)) == expected


@pytest.mark.parametrize(
    ("rest", "expected"), [("a", ""), ("c", "aa"), ("", "aa")], ids=["the longer one", "another", "the end"]
)
def test_a_stop_waits_for_a_longer_one_that_began_before(rest: str, expected: str) -> None:
    until = UntilStop(("aaba", "b"))
    assert (until.push("aab"), until.found) == ("", False)
    assert (until.push(rest) + until.flush(), until.found) == (expected, True)
