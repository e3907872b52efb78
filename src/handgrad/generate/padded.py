"""Texts of unequal lengths read together: padded on the left, at negative positions, where nobody looks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from handgrad.generate.cache import KVCache
from handgrad.generate.last import last_logits
from handgrad.models.model import Model


@dataclass
class PaddedReader:
    """The windows of several texts, and the logits that follow each; the cache only saves work.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> rows = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    >>> torch.allclose(PaddedReader(model, None).logits(rows)[1], model(rows[1][None])[0, -1], atol=1e-6)
    True
    """

    model: Model
    cache: KVCache | None
    lengths: list[int] = field(default_factory=list)

    def logits(self, rows: list[Tensor]) -> Tensor:
        """rows: ids ~ (w_i,), each a whole window -> logits of the next tokens ~ (B, V)."""
        before, self.lengths = self.lengths, [len(row) for row in rows]
        if self.cache is not None and self.lengths == [n + 1 for n in before]:
            return self.run(torch.stack([row[-1:] for row in rows]), before)
        if self.cache is not None:
            self.cache.rewind()  # the first pass, or a window was cut: all are read anew
        tokens = padded(rows, 0)
        return self.run(tokens, [n - tokens.shape[1] for n in self.lengths])

    def run(self, tokens: Tensor, first: list[int]) -> Tensor:
        position = torch.tensor(first, device=tokens.device)
        run = replace(self.model.run, seed=None, cache=self.cache, position=position)
        return last_logits(self.model, self.model.numbers, tokens, run)


def padded(rows: list[Tensor], filler: int) -> Tensor:
    """ids ~ (B, longest), with `filler` on the left.

    >>> padded([torch.tensor([1, 2]), torch.tensor([3])], -1)
    tensor([[ 1,  2],
            [-1,  3]])
    """
    n = max(len(row) for row in rows)
    return torch.stack([torch.cat([row.new_full((n - len(row),), filler), row]) for row in rows])
