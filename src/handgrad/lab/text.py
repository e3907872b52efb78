"""Text as a task: predict the next character of documentation. It comes with Python, so nothing is fetched."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from handgrad.data.sources import embedded_text
from handgrad.lab.tasks import Batch

FIRST, N_CHARACTERS = 31, 96  # id 0 is whatever is not printable ASCII; " " is 1


@dataclass(frozen=True)
class Text:
    """Windows of `length` characters; every character but a window's first is a target of the one before it.

    held_out     windows come from the last tenth of the text, which training never reads
    sha256       of the text, set by itself: another Python has other documentation, and other figures

    >>> Text(length=8).draw(3, torch.Generator().manual_seed(0))[0].shape
    torch.Size([3, 8])
    """

    length: int = 64
    held_out: bool = False

    name = "text"
    vocabulary = N_CHARACTERS

    @property
    def sha256(self) -> str:
        return hashlib.sha256(characters().numpy().tobytes()).hexdigest()

    @property
    def chance(self) -> float:
        """Share of the most frequent character."""
        return float(characters().bincount().max()) / len(characters())

    def draw(self, n: int, g: torch.Generator) -> Batch:
        ids = characters()
        cut = len(ids) * 9 // 10
        ids = ids[cut:] if self.held_out else ids[:cut]
        start = torch.randint(len(ids) - self.length, (n, 1), generator=g)
        window = ids[start + torch.arange(self.length + 1)]
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()


@lru_cache(maxsize=1)
def characters() -> Tensor:
    codes = torch.tensor(list(embedded_text().encode("utf-8", "replace")), dtype=torch.int64) - FIRST
    return codes.where((codes > 0) & (codes < N_CHARACTERS), 0)
