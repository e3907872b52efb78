"""The norm of each sample's gradient, without forming that gradient where there is a cheaper way.

A parameter's factors are kept until the part that handed them over has finished, since a name may come several times: a
weight used at every token adds up before it is squared. Then ‖g_b‖² is formed, `products.py` says how, and the factors
are dropped. A slot with two names, such as an embedding that is also the head, needs the product of both gradients:

    ‖g_b + g'_b‖² = ‖g_b‖² + 2 ⟨g_b, g'_b⟩ + ‖g'_b‖²

so what the first has handed over waits for the second. The head's is large, T·V numbers a sample. Of them a lookup
meets only those at the sample's own tokens: whoever says beforehand what the ids will be has T² kept instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, unknown
from handgrad.core.gradients import Gradients
from handgrad.core.params import Layout
from handgrad.core.run import widened
from handgrad.receivers.pairs import Factors, Into, Outer, Rows, inner, joined
from handgrad.receivers.products import PIECE, Grams, columns_at, direct_with_sum, row_squares, squares
from handgrad.receivers.samples import ALL, Batch, Range, Waiting, matching, summed, tokens_last, with_samples

TRAFFIC = 64  # products of a Gram matrix in the time that one number of a sample's gradient takes to memory and back


@dataclass
class Heard:
    """What all parts of one receiver write to."""

    layout: Layout
    tokens: Tensor | None
    heads: dict[str, tuple[str, int]]
    waiting: Waiting
    batch: Batch = field(default_factory=Batch)
    vectors: dict[str, Tensor] = field(default_factory=dict)  # gradients of gains and offsets, (B, m)
    fresh: dict[str, list[Factors]] = field(default_factory=dict)
    kept: dict[str, list[Factors]] = field(default_factory=dict)  # squared already, for products with what is to come
    found: dict[str, Tensor] = field(default_factory=dict)  # slot -> ‖g_b‖² ~ (B,), or (B, H) head by head

    def add(self, owner: str, factors: Factors) -> None:
        self.waiting.silent.discard(owner)
        self.fresh.setdefault(owner, []).append(factors)

    def add_vector(self, owner: str, where: Range, g: Tensor) -> None:
        self.waiting.silent.discard(owner)
        if owner not in self.vectors:
            self.vectors[owner] = g.new_zeros(self.batch.n, g.shape[-1])
        self.vectors[owner][where.first : where.end] += g

    def settled(self, owners: list[tuple[str, bool, bool]]) -> None:
        """Slots whose factors are complete for now; `settle` says of what."""
        grams = Grams()
        for owner, _, _ in owners:
            for one in self.fresh.get(owner, []):
                if isinstance(one, Outer):
                    axis, parts = self.heads.get(owner, ("columns", 1))
                    grams.expect(one.x if axis == "columns" else one.D, parts)
        for owner, last, keep in owners:
            self.settle(owner, last, keep, grams)

    def settle(self, owner: str, last: bool, keep: bool, grams: Grams) -> None:
        """Square what has come; `keep` it where another name of the slot is still to come for these samples."""
        if owner in self.vectors and last:
            g = self.vectors.pop(owner)
            parts = self.heads.get(owner, ("", 1))[1]
            self._count(owner, Range(0, len(g), len(g)), g.unflatten(1, (parts, -1)).square().sum(2))
        seen = self.kept.pop(owner, [])
        n_old = len(seen)
        for new in joined(self._summed(owner, self.fresh.pop(owner, []))):
            self._count(owner, new.where, self._square(owner, new, grams))
            for old in seen:
                first, end = max(old.where.first, new.where.first), min(old.where.end, new.where.end)
                if first < end:
                    pair = (one.of(slice(first - one.where.first, end - one.where.first)) for one in (old, new))
                    self._count(owner, Range(first, end, self.batch.n), 2 * inner(*pair).unsqueeze(1))
            seen.append(new)
        if not last:
            seen = seen[:n_old] + [self._short(one) for one in seen[n_old:] if keep]
            if seen:
                self.kept[owner] = seen

    def _summed(self, owner: str, fresh: list[Factors]) -> list[Factors]:
        """What is left to be squared, once whoever is to have the sums has them."""
        into = [one for one in fresh if isinstance(one, Outer) and one.into is not None]
        if into and len(fresh) == 1 and traffic_pays(into[0].x, into[0].D):
            ((where, x, D, _, (grads, name)),) = into
            found, total = direct_with_sum(x, D)
            self._count(owner, where, found.unsqueeze(1))
            grads.whole(name, total)
            return []
        for _, x, D, _, (grads, name) in into:
            grads.outer(name, x, D)
        return fresh

    def _square(self, owner: str, new: Factors, grams: Grams) -> Tensor:
        if isinstance(new, Rows):
            if owner in self.heads:
                raise ConfigError(f"{owner} is a table that is looked up, and has no heads; leave it out of `heads`")
            return row_squares(new.ids, new.D).unsqueeze(1)
        axis, parts = self.heads.get(owner, ("columns", 1))
        x, D = (new.x, new.D) if axis == "columns" else (new.D, new.x)
        return torch.stack([squares(x, part, grams) for part in D.chunk(parts, -1)], 1)

    def _short(self, new: Factors) -> Factors:
        if self.tokens is None or isinstance(new, Rows):
            return new
        ids = self.tokens[new.where.first : new.where.end]
        return new._replace(x=columns_at(new.x, ids), at=ids)

    def _count(self, owner: str, where: Range, more: Tensor) -> None:
        if owner not in self.found:
            self.found[owner] = more.new_zeros(self.batch.n, more.shape[1])
        self.found[owner][where.first : where.end] += more


@dataclass(frozen=True)
class SampleNorms:
    """‖g_b‖² of every sample's share g_b of the gradient, Σ_b g_b, as a receiver of a backward pass.

    layout     of the parameters that are asked about; all others cost nothing
    tokens     ids ~ (B, T) that a tied embedding will be looked up with, where they are known: less is kept
    heads      pattern -> ("columns" or "rows", H): these matrices are measured head by head as well

    Where samples count n_b of the batch's n targets, the gradient of a sample's own mean loss is (n/n_b) g_b, and the
    weights w_b = n_b/n make the batch's gradient of those. `hg.sample_norms` gives both.

    >>> from handgrad.core import Slot
    >>> norms = SampleNorms.of(Layout({"w": Slot((1, 1)), "b": Slot((1,))}))
    >>> norms.outer("w", torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([[[3.0]], [[4.0]]]))
    >>> norms.total("b", torch.tensor([[[3.0]], [[6.0]]]))
    >>> norms.finished()
    >>> norms.squares["w"], norms.norms()
    (tensor([ 9., 64.]), tensor([ 4.2426, 10.0000]))
    """

    heard: Heard
    path: str = ""
    where: Range = ALL

    @classmethod
    def of(
        cls, layout: Layout, tokens: Tensor | None = None, heads: Mapping[str, tuple[str, int]] | None = None
    ) -> SampleNorms:
        """Raises UnknownName for a pattern that names no parameter, ConfigError for heads that cannot be cut."""
        cuts: dict[str, tuple[str, int]] = {}
        for pattern, names in matching(heads or {}, layout).items():
            for name in names:
                cuts[name] = require_cut(name, layout, *(heads or {})[pattern])
        return cls(Heard(layout, tokens, cuts, Waiting(layout), Batch(0 if tokens is None else len(tokens))))

    @property
    def squares(self) -> dict[str, Tensor]:
        """Slot -> ‖g_b‖² ~ (B,). Raises ConfigError where a part has not finished, or a parameter was never named."""
        heard = self.heard
        if heard.fresh or heard.vectors or heard.kept:
            name = next(iter([*heard.fresh, *heard.vectors, *heard.kept]))
            raise ConfigError(f"the backward pass is not over: {name} may still receive more. Call finished() after it")
        for owner in heard.layout.places:
            heard.waiting.require_heard(owner)
        return {owner: heard.found[owner].sum(1).clamp_(min=0) for owner in heard.layout.places}

    def norms(self) -> Tensor:
        """‖g_b‖ ~ (B,) over all parameters."""
        return torch.stack(list(self.squares.values())).sum(0).sqrt()

    def by_head(self, name: str) -> Tensor:
        """‖g_b‖ ~ (B, H) of one matrix, head by head."""
        owner = self.heard.layout.owner(name)
        if owner not in self.heard.heads:
            raise unknown("parameter that is measured by head", name, self.heard.heads)
        self.heard.waiting.require_heard(owner)
        return self.heard.found[owner].clamp(min=0).sqrt()

    def __truediv__(self, part: str) -> SampleNorms:
        return SampleNorms(self.heard, f"{self.path}{part}.", self.where)

    def samples(self, first: int, end: int, n: int) -> SampleNorms:
        return SampleNorms(self.heard, self.path, Range(first, end, n))

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        self._outer(name, a, Delta, None)

    def outer_into(self, name: str, a: Tensor, Delta: Tensor, grads: Gradients) -> None:
        """The same, and `grads` gets its sum, at the latest when this part has finished: where each sample's product is
        formed for its norm, the sum is that of the products."""
        owner = self._owner(name)
        alone = owner is not None and self.where is ALL and owner not in self.heard.heads
        if (
            alone
            and hasattr(grads, "whole")
            and widened(Delta) is Delta
            and owner not in self.heard.layout.tied.values()
        ):
            self._outer(name, a, Delta, Into(grads, name))
        else:
            self._outer(name, a, Delta, None)
            grads.outer(name, a, Delta)

    def _outer(self, name: str, a: Tensor, Delta: Tensor, into: Into | None) -> None:
        if (owner := self._owner(name)) is not None:
            where = self.heard.batch.require(self.path + name, self.where, a, Delta)
            self.heard.add(owner, Outer(where, tokens_last(a), tokens_last(Delta), into=into))

    def total(self, name: str, Delta: Tensor) -> None:
        if (owner := self._owner(name)) is not None:
            where = self.heard.batch.require(self.path + name, self.where, Delta)
            self.heard.add_vector(owner, where, summed(Delta))

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        if (owner := self._owner(name)) is not None:
            where = self.heard.batch.require(self.path + name, self.where, Delta)
            self.heard.add(owner, Rows(where, with_samples(ids, Delta), tokens_last(Delta)))

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        if (owner := self._owner(name)) is not None:
            where = self.heard.batch.require(self.path + name, self.where, x, Delta)
            self.heard.add_vector(owner, where, summed(widened(x) * widened(Delta)))

    def finished(self) -> None:
        if self.where.n:  # these samples have finished, and the name has not
            others = {owner: self.heard.waiting.others(owner, self.path) for owner in self.heard.fresh}
            self.heard.settled([(owner, False, bool(rest)) for owner, rest in others.items() if rest is not None])
            return
        self.heard.settled([(owner, last, not last) for owner, last in self.heard.waiting.finish(self.path)])

    def _owner(self, name: str) -> str | None:
        layout = self.heard.layout
        return layout.owner(self.path + name) if self.path + name in layout.slots else None


def traffic_pays(x: Tensor, D: Tensor) -> bool:
    """Is reading and writing B matrices cheaper than the Gram products, where their sum is needed anyhow?"""
    (T, n), m = x.shape[1:], D.shape[-1]
    return T * T * (n + m) >= TRAFFIC * n * m and n * m <= PIECE


def require_cut(name: str, layout: Layout, axis: str, parts: int) -> tuple[str, int]:
    shape = layout.slots[name].shape
    width = shape[0] if axis == "rows" else shape[-1]
    if axis not in ("columns", "rows") or parts < 1 or width % parts:
        raise ConfigError(
            f"{name} {shape} cannot be cut into {parts} heads by {axis!r}; the axis is 'columns' or 'rows', and the "
            "number of heads divides it"
        )
    if name in layout.tied.values():
        raise ConfigError(f"{name} is tied to another name, and cannot be measured head by head")
    return axis, parts
