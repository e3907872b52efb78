"""Who taught this weight: its gradient as a sum over tokens, the largest terms first.

    g = Σ_t g_t,  g_t = a_tᵗ Δ_t            share_t = ⟨g_t, g⟩/‖g‖²,  Σ_t share_t = 1            ‖g_t‖ = ‖a_t‖ ‖Δ_t‖

A share says how much of the step that this weight takes is the token's doing. It is negative where the token pulls the
other way. Δ is the derivative of the loss, so descent goes against g, and against every g_t.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from handgrad.core.errors import ConfigError, NumericError, ShapeError, unknown
from handgrad.models.model import Model
from handgrad.who.factors import Factors, Pair
from handgrad.who.heads import head_of
from handgrad.who.words import as_html, as_text, before, percent, word

ROUNDING = 256  # roundings of its terms: a sum that is no larger is not there
SIGN = "Delta_x = dL/dx: a positive share adds to the gradient, and descent goes against the gradient"


@dataclass(frozen=True)
class Term:
    """What one token adds to the gradient of a weight.

    place      the name it came under; a tied weight has two
    share      ⟨g_t, g⟩/‖g‖², of the whole gradient
    norm       ‖g_t‖
    token      what was read at this position
    before     the text before it
    """

    place: str
    sample: int
    position: int
    share: float
    norm: float
    id: int
    token: str
    before: str


@dataclass(frozen=True, eq=False)
class Ranked:
    """The gradient of a weight (`head`: of one head of it) by tokens. `print` shows the ten largest terms.

    shares, norms   place -> (B, T)
    """

    name: str
    head: int | None
    loss: float
    gradient: Tensor
    tokens: Tensor
    shares: Mapping[str, Tensor]
    norms: Mapping[str, Tensor]
    tokenizer: Any = None

    @property
    def what(self) -> str:
        return f"the gradient of {self.name}" + ("" if self.head is None else f", head {self.head}")

    @property
    def n_terms(self) -> int:
        return sum(share.numel() for share in self.shares.values())

    def top(self, n: int = 10, position: int | None = None, sample: int | None = None) -> list[Term]:
        """The n terms with the largest shares, of either sign; of one position or sample where asked for."""
        if n < 1:
            raise ShapeError(f"the {n} largest terms were asked for; ask for at least 1")
        B, T = self.tokens.shape
        for kind, at, most in (("position", position, T), ("sample", sample, B)):
            if at is not None and not 0 <= at < most:
                raise ShapeError(f"{kind} {at} was asked for, and there are {kind}s 0 to {most - 1}")
        flat = torch.stack(list(self.shares.values())).cpu().double()
        chosen = torch.ones_like(flat, dtype=torch.bool)
        if position is not None:
            chosen &= torch.arange(T) == position
        if sample is not None:
            chosen &= (torch.arange(B) == sample)[:, None]
        order = flat.abs().where(chosen, -1.0).flatten().argsort(descending=True, stable=True)
        return [self.term(int(i)) for i in order[: min(n, int(chosen.sum()))]]

    def term(self, i: int) -> Term:
        """Term i, counted by place, sample and position."""
        B, T = self.tokens.shape
        place = list(self.shares)[i // (B * T)]
        b, t = divmod(i % (B * T), T)
        row = self.tokens[b].tolist()
        share, norm = float(self.shares[place][b, t]), float(self.norms[place][b, t])
        return Term(place, b, t, share, norm, row[t], word(self.tokenizer, row[t]), before(self.tokenizer, row[:t]))

    def table(self, n: int = 10, position: int | None = None, sample: int | None = None) -> list[dict[str, str]]:
        """Cells by column; what never differs is left out."""
        rows = []
        for term in self.top(n, position, sample):
            cells = {"share": percent(term.share), "norm": f"{term.norm:.3g}"}
            cells |= {"place": term.place} if len(self.shares) > 1 else {}
            cells |= {"sample": str(term.sample)} if len(self.tokens) > 1 else {}
            cells |= {"position": str(term.position)} | ({"before": term.before} if self.tokenizer is not None else {})
            rows.append(cells | {"token": term.token})
        return rows

    def sentence(self, n: int = 10, position: int | None = None, sample: int | None = None) -> str:
        """What the terms of the table make together, in words."""
        terms, T = self.top(n, position, sample), self.tokens.shape[1]
        of = self.n_terms // (1 if position is None else T) // (1 if sample is None else len(self.tokens))
        at = "".join(f" of {k} {i}" for k, i in (("position", position), ("sample", sample)) if i is not None)
        noun = "token" if len(self.shares) == 1 else "term"
        which = f"the {noun}{at}" if of == 1 else f"{len(terms)} of {of} {noun}s{at}"
        if 1 < len(terms) == of:
            which = f"all {of} {noun}s{at}"
        makes = "makes" if len(terms) == 1 else "make"
        against = sum(term.share < 0 for term in terms)
        pull = f"{against} of them pull{'s' * (against == 1)}" if len(terms) > 1 else "it pulls"
        text = f"{which} {makes} {percent(sum(term.share for term in terms), '')} of {self.what}"
        return f"{text}; {pull} the other way" if against else text

    @property
    def lengths(self) -> str:
        """The norm of the gradient beside those of its terms: how much of them cancels."""
        size = float(self.gradient.double().norm())
        ratio = float(sum(norm.double().sum() for norm in self.norms.values())) / size
        return f"its norm is {size:.3g}; the norms of its terms add up to {ratio:,.1f} times that"

    def words(self, n: int = 10, position: int | None = None, sample: int | None = None) -> tuple[str, str, str]:
        """What the table shows, in sentences, with the convention of signs."""
        return self.sentence(n, position, sample), self.lengths, SIGN

    def __str__(self) -> str:
        return "\n".join([as_text(self.table()), "", *self.words()])

    def _repr_html_(self) -> str:
        return as_html(self.table()) + "".join(f"<p>{html.escape(line)}</p>" for line in self.words())


def who(
    model: Model,
    tokens: Tensor,
    name: str,
    head: int | None = None,
    targets: Tensor | None = None,
    valid: Tensor | None = None,
) -> Ranked:
    """The gradient of the weight `name`, or of one head of it, term by term: one for each token of `tokens` ~ (B, T).

    The loss is that of `model.loss`; `valid` chooses whose surprise counts, such as one position alone.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=2, d_model=6), seed=0)
    >>> found = who(model, torch.tensor([[1, 2, 3, 4, 5]]), "blocks.0.attention.query.w", head=1)
    >>> found.gradient.shape, found.shares["blocks.0.attention.query.w"].shape
    (torch.Size([6, 3]), torch.Size([1, 5]))
    >>> round(sum(term.share for term in found.top(5)), 6)
    1.0
    """
    layout = model.params.layout
    at, _, leaf = name.rpartition(".")
    if any({name, f"{at}.base.{leaf}"} & frozen.layout.slots.keys() for frozen in model.frozen):
        raise ConfigError(
            f"{name} is frozen in this model, so no gradient of it is formed: ask for the adapter's own matrices, such "
            f"as {next(iter(layout.slots))}, or ask the model without the adapter"
        )
    if name not in layout.slots:
        raise unknown("trained parameter", name, layout.slots)
    part = None if head is None else head_of(model, name, head)
    factors = Factors(layout, (name,))
    loss = model.loss(tokens, targets, valid)
    model.backward(factors)
    pairs, gradient = factors[name], factors.gradient(name)
    if part is not None:
        axis, some = part
        pairs = [pair.cut(axis, some) for pair in pairs]
        gradient = gradient[:, some] if axis else gradient[some]
    shares, norms = terms_of(pairs, gradient, tokens.shape, name)
    return Ranked(name, head, float(loss), gradient, tokens, shares, norms, model.tokenizer)


def terms_of(
    pairs: Sequence[Pair], g: Tensor, shape: Sequence[int], name: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Shares and norms ~ (B, T) by place. A token that handed over twice at one place has one term there, the sum."""
    shares: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for pair in pairs:
        if pair.Delta.ndim != 3 or pair.Delta.shape[1] != shape[1]:
            raise ShapeError(
                f"{name} was handed over as {tuple(pair.Delta.shape)}, without an axis of {shape[1]} tokens: its "
                "gradient cannot be told apart by tokens"
            )
        rows = slice(pair.first, pair.first + len(pair.Delta))
        for found in (shares, squares):
            found.setdefault(pair.place, torch.zeros(tuple(shape), dtype=g.dtype, device=g.device))
        shares[pair.place][rows] += pair.along(g)
        others = [other for other in pairs if (other.place, other.first) == (pair.place, pair.first)]
        squares[pair.place][rows] += sum(pair.with_same(other) for other in others)
    norms = {place: square.clamp(min=0).sqrt() for place, square in squares.items()}
    size, lengths = float(g.double().norm()), float(sum(norm.double().sum() for norm in norms.values()))
    if not size > ROUNDING * torch.finfo(pairs[0].Delta.dtype).eps * lengths:
        raise NumericError(
            f"the gradient of {name} is {size:.1e}, which is rounding: terms of norm {lengths:.1e} in all cancel, so "
            "no share means anything. The offset of keys, and a weight that the loss does not reach, have none"
        )
    square = (g * g).sum()
    return {place: share / square for place, share in shares.items()}, norms
