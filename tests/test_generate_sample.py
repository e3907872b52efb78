"""Choosing a token from logits: S01, S03, S04, and the distribution that is drawn from."""

from __future__ import annotations

from math import exp, inf, nan

import pytest
import torch

from handgrad.core.errors import ConfigError, NumericError, ShapeError
from handgrad.generate.sample import Sampling, pick, probabilities

LOGITS = torch.tensor([[1.0, 3.0, 2.0, 0.0], [0.5, -1.0, 0.0, 4.0]])


def draw(logits: torch.Tensor, sampling: Sampling, n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([pick(logits, sampling, generator) for _ in range(n)])


def kept(logits: list[float], **how: float) -> list[int]:
    return probabilities(torch.tensor([logits]), Sampling(**how))[0].nonzero().flatten().tolist()


def test_temperature_divides_the_logits() -> None:
    P = probabilities(torch.tensor([[2.0, 0.0]]), Sampling(temperature=0.5))
    assert P.dtype == torch.float64
    assert P[0].tolist() == pytest.approx([1 / (1 + exp(-4)), 1 / (1 + exp(4))], rel=1e-15)


def test_temperature_zero_is_greedy_and_draws_nothing() -> None:
    generator = torch.Generator().manual_seed(9)
    before = generator.get_state()
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=0.0, top_k=3, top_p=0.2), Sampling(greedy=True)):
        assert pick(LOGITS, sampling, generator).tolist() == [1, 3]
        assert probabilities(LOGITS, sampling).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert torch.equal(generator.get_state(), before)
    assert pick(torch.tensor([[0.0, 2.0, 2.0]]), Sampling(greedy=True), generator).tolist() == [1]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-5])
def test_a_tiny_temperature_is_nearly_greedy_and_finite(temperature: float) -> None:
    P = probabilities(torch.tensor([[100.0, 99.0, -inf, -1e30]]), Sampling(temperature=temperature))
    assert P[0].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_huge_logits_are_as_good_as_any() -> None:
    P = probabilities(torch.tensor([[1e30, 1e30, -1e30]]), Sampling())
    assert P[0].tolist() == [0.5, 0.5, 0.0]


def test_top_k_keeps_exactly_k_and_lower_ids_first() -> None:
    assert kept([1.0, 3.0, 2.0, 0.0], top_k=2) == [1, 2]
    assert kept([1.0, 2.0, 2.0, 2.0], top_k=2) == [1, 2]
    assert kept([2.0, 1.0, 1.0, 1.0, 1.0], top_k=3) == [0, 1, 2]
    assert kept([1.0, 3.0, 2.0, 0.0], top_k=1) == [1]
    assert kept([0.0] * 5000, top_k=100) == list(range(100))
    many = torch.zeros(1, 65)
    for off in (0, 65, 1000):
        assert torch.equal(probabilities(many, Sampling(top_k=off)), probabilities(many, Sampling()))


def test_top_k_keeps_the_proportions_of_what_is_left() -> None:
    P = probabilities(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), Sampling(top_k=2))[0]
    assert P.tolist() == pytest.approx([0, 1 / (1 + exp(-1)), 1 / (1 + exp(1)), 0], rel=1e-15)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(1e-9, [2]), (0.5, [2]), (0.5001, [0, 2]), (0.75, [0, 2]), (0.76, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p: float, expected: list[int]) -> None:
    # 1/4, 1/8, 1/2, 1/8: sums of these are exact; of the two equal ones the lower id comes first
    logits = torch.tensor([0.25, 0.125, 0.5, 0.125], dtype=torch.float64).log()
    P = probabilities(logits[None], Sampling(top_p=top_p))[0]
    assert P.nonzero().flatten().tolist() == expected
    assert float(P.sum()) == pytest.approx(1.0, rel=1e-15)
    assert float(P[2]) == pytest.approx(0.5 / sum([0.25, 0.125, 0.5, 0.125][i] for i in expected))


def test_top_p_counts_within_top_k() -> None:
    # after top_k=2 the two are 2/3 and 1/3, and 0.6 is reached by the first alone
    logits = torch.tensor([[0.25, 0.125, 0.5, 0.125]]).log()
    assert probabilities(logits, Sampling(top_k=2, top_p=0.6))[0].nonzero().flatten().tolist() == [2]
    assert probabilities(logits, Sampling(top_p=0.6))[0].nonzero().flatten().tolist() == [0, 2]


def test_top_p_just_below_one_keeps_a_flat_distribution_whole() -> None:
    assert len(kept([0.0] * 1000, top_p=1.0)) == 1000
    assert len(kept([0.0] * 1000, top_p=0.5)) in (500, 501)


def test_drawn_frequencies_are_the_probabilities() -> None:
    n, sampling = 4000, Sampling(temperature=1.3, top_k=3)
    P = probabilities(LOGITS, sampling)
    ids = draw(LOGITS, sampling, n)
    assert ids.shape == (n, 2)
    assert ids.dtype == torch.int64
    for row in range(2):
        share = torch.bincount(ids[:, row], minlength=4) / n
        assert float((share - P[row]).abs().max()) < 4 * 0.5 / n**0.5
    same = draw(LOGITS[:1].expand(2, 4), Sampling(), 100)
    assert 20 < int((same[:, 0] != same[:, 1]).sum()) < 80  # rows draw numbers of their own


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53, 1.0])  # 1.0 stands for a product that is rounded up
def test_impossible_tokens_are_never_drawn(u: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **how: torch.full(shape, u, dtype=torch.float64))
    logits = torch.tensor([[-inf, 1.0, -inf, 2.0, -inf], [-inf, -inf, 7.0, -inf, -inf]])
    expected = [1, 2] if u == 0 else [3, 2]
    assert pick(logits, Sampling(), torch.Generator()).tolist() == expected
    assert pick(logits, Sampling(top_k=4, top_p=0.999), torch.Generator()).tolist() == expected
    padded = torch.cat([torch.full((2, 40), 0.1), torch.full((2, 3), -inf)], dim=1)
    assert int(pick(padded, Sampling(), torch.Generator()).max()) < 40


def test_a_seed_decides() -> None:
    first = draw(LOGITS, Sampling(), 60, seed=1)
    assert torch.equal(first, draw(LOGITS, Sampling(), 60, seed=1))
    assert not torch.equal(first, draw(LOGITS, Sampling(), 60, seed=2))
    assert (
        draw(LOGITS, Sampling(), 12, seed=0)[:, 0].tolist()
        == draw(LOGITS.float(), Sampling(), 12, seed=0)[:, 0].tolist()
    )


def test_inputs_stay_as_they_were() -> None:
    logits = LOGITS.double()
    before = logits.clone()
    draw(logits, Sampling(temperature=0.7, top_k=2, top_p=0.8), 2)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([[0.0, 0.0], [1.0, nan]], r"row 1 has NaN at id 1 \(1 in all\)"),
        ([[inf, 0.0]], r"row 0 has \+infinity at id 0"),
        ([[0.0, 0.0], [-inf, -inf]], r"row 1 is -infinity at every id"),
    ],
)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(greedy=True)])
def test_logits_that_are_not_finite_are_refused(logits: list[list[float]], message: str, sampling: Sampling) -> None:
    with pytest.raises(NumericError, match=message):
        pick(torch.tensor(logits), sampling, torch.Generator())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5, and must be a finite number of at least 0"),
        ({"temperature": nan}, "temperature is nan"),
        ({"temperature": inf}, "temperature is inf"),
        ({"top_k": -1}, r"top_k is -1, and must be a whole number of at least 0 \(0 is off\)"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"top_p": 0.0}, r"top_p is 0.0, and must be above 0 and at most 1 \(1 is off\)"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": nan}, "top_p is nan"),
        ({"temperature": -1.0, "top_k": -2, "top_p": 2.0}, "temperature is -1.0.*top_k is -2.*top_p is 2.0"),
    ],
)
def test_values_that_cannot_be_are_refused_together(how: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**how)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"\(batch, vocabulary\), each at least 1; found \(3,\)"):
        pick(torch.zeros(3), Sampling(), torch.Generator())
