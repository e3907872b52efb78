"""A conversation's memory: what was read stays read as long as the new text begins with the same tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from handgrad.core.errors import ShapeError
from handgrad.generate.cache import KVCache
from handgrad.generate.generate import Reader, chosen
from handgrad.generate.sample import Sampling
from handgrad.models.model import Model


@dataclass
class Session:
    """Writes on from one text after another. `n_read` counts the tokens that went through the model.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=8, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> session = Session(model)
    >>> for text in ([1, 2, 3], [1, 2, 3, 4]):
    ...     _ = session.logits(torch.tensor([text]))
    >>> session.n_read
    4
    """

    model: Model
    kept: list[int] = field(default_factory=list)
    n_read: int = 0

    def __post_init__(self) -> None:
        self.cache = KVCache(self.model.config.context)

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens ~ (1, T), the whole text -> logits of the next token ~ (1, V)."""
        ids: list[int] = tokens[0].tolist()
        n = min(common(self.kept, ids), len(ids) - 1, self.cache.length)
        self.cache.rewind(n)
        self.kept = ids[:n]  # should the pass be interrupted
        logits = Reader(self.model, self.cache).run(tokens[:, n:], n)
        self.kept, self.n_read = ids, self.n_read + len(ids) - n
        return logits

    def answer(
        self, ids: list[int], most: int, sampling: Sampling, generator: torch.Generator, ends: Collection[int] = ()
    ) -> Iterator[int]:
        """New tokens after ids, up to `most`, an end (which is given back) or the context."""
        context = self.model.config.context
        if not 0 < len(ids) <= context:
            raise ShapeError(f"a text of {len(ids)} tokens does not fit the context of {context}; give 1 to {context}")
        tokens = self.model.checked(torch.tensor([ids], device=self.model.params.flat.device))
        for _ in range(min(most, context - len(ids) + 1)):
            new = chosen(self, tokens, tokens, tokens.shape[1], sampling, generator)
            yield int(new)
            if int(new) in ends:
                return
            tokens = torch.cat([tokens, new[:, None]], dim=1)


def common(a: list[int], b: list[int]) -> int:
    """How many first entries are the same.

    >>> common([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
