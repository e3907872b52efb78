"""Losses to compare with: what somebody would reach who knew only how often each token occurs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_CHUNK = 1 << 22


def unigram_nats(training: npt.NDArray[Any], validation: npt.NDArray[Any], vocabulary: int) -> float:
    """Mean surprise, in nats a token, at the validation tokens when each is predicted by its frequency in training.

    Every count is raised by one, so that a token which training never shows has a finite surprise. The first
    validation token is left out: a model is not asked to predict it either.

    >>> round(unigram_nats(np.array([0, 0, 1]), np.array([0, 1, 0]), vocabulary=2), 4)
    0.7136
    """
    n = counts(training, vocabulary) + 1
    seen = counts(validation[1:], vocabulary)
    surprise = np.log(n.sum()) - np.log(n)
    return float((seen * surprise).sum() / max(seen.sum(), 1))


def counts(tokens: npt.NDArray[Any], vocabulary: int) -> npt.NDArray[np.int64]:
    total = np.zeros(vocabulary, np.int64)
    for at in range(0, len(tokens), _CHUNK):
        total += np.bincount(tokens[at : at + _CHUNK], minlength=vocabulary)
    return total
