"""Where a block's error comes from, in a model that reads a text: the parts of the split, and what each makes of it.

Δ = skip + mlp + Σ_h (query_h + key_h + value_h)            share of a part = ⟨part, Δ⟩/‖Δ‖²,  together 1
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from handgrad.core import Layout
from handgrad.core.errors import ConfigError, NumericError, ShapeError, cut
from handgrad.models.model import Model, watch
from handgrad.who.factors import Factors
from handgrad.who.split import Split, split
from handgrad.who.words import as_html, as_text, percent

BLOCKS = "blocks"
SIDES = ("query", "key", "value")
SIGN = "Delta is the derivative of the loss by what the block reads; descent goes against it"


@dataclass(frozen=True, eq=False)
class BlockSplit:
    """The error at a block's input, in parts that add up to it. `print` shows what each makes of it.

    name    such as "blocks.2"
    parts   name -> (B, T, d): "skip", "mlp", "attention.0.query", "attention.0.key", …
    whole   (B, T, d), as the model's own backward pass has it
    """

    name: str
    parts: Mapping[str, Tensor]
    whole: Tensor

    @property
    def heads(self) -> list[str]:
        """The heads' paths, in order."""
        return list(dict.fromkeys(name.rpartition(".")[0] for name in self.parts if "." in name))

    def sums(self) -> dict[str, Tensor]:
        """The coarse split: skip, mlp, and query, key and value of all heads together."""
        found = {name: part for name, part in self.parts.items() if "." not in name}
        for side in SIDES if self.heads else ():
            found[side] = torch.stack([self.parts[f"{head}.{side}"] for head in self.heads]).sum(0)
        return found

    def share(self, part: Tensor, position: int | None = None) -> float:
        """⟨part, Δ⟩/‖Δ‖², over all tokens or at one position."""
        part, whole = (self.at(x, position) for x in (part, self.whole))
        square = float(whole.square().sum())
        if not square:
            where = "" if position is None else f" at position {position}"
            raise NumericError(
                f"no error reaches {self.name}{where}: nothing that the loss counts depends on it, so it has no parts"
            )
        return float((part * whole).sum()) / square

    def at(self, x: Tensor, position: int | None) -> Tensor:
        if position is not None and not 0 <= position < x.shape[1]:
            raise ShapeError(f"position {position} was asked for, and there are positions 0 to {x.shape[1] - 1}")
        return (x if position is None else x[:, position]).double()

    def table(self, position: int | None = None) -> list[dict[str, str]]:
        """The coarse split: part, share, norm."""
        return [
            {
                "part": name,
                "share": percent(self.share(part, position)),
                "norm": f"{float(self.at(part, position).norm()):.3g}",
            }
            for name, part in self.sums().items()
        ]

    def head_table(self, position: int | None = None) -> list[dict[str, str]]:
        """A line for each head, with the shares of its branches."""
        rows = []
        for i, head in enumerate(self.heads):
            shares = [self.share(self.parts[f"{head}.{side}"], position) for side in SIDES]
            cells = dict(zip(SIDES, map(percent, shares), strict=True))
            rows.append({"head": str(i)} | cells | {"together": percent(sum(shares))})
        return rows

    def sentence(self, position: int | None = None) -> str:
        """What the largest part makes, in words."""
        sums = self.sums()
        largest = max(sums, key=lambda name: abs(self.share(sums[name], position)))
        where = "" if position is None else f", position {position}"
        return (
            f"{largest} makes {percent(self.share(sums[largest], position), '')} of the error at the input of "
            f"{self.name}{where}; the {len(self.parts)} parts add up to it but for {self.off:.0e} of its norm"
        )

    @property
    def off(self) -> float:
        """‖Σ parts - Δ‖/‖Δ‖: rounding, in the type that the model computes with."""
        together = torch.stack(list(self.parts.values())).double().sum(0)
        return float((together - self.whole).norm() / self.whole.double().norm())

    def __str__(self) -> str:
        heads = ["", as_text(self.head_table())] if self.heads else []
        return "\n".join([as_text(self.table()), *heads, "", self.sentence(), SIGN])

    def _repr_html_(self) -> str:
        tables = as_html(self.table()) + (as_html(self.head_table()) if self.heads else "")
        return tables + "".join(f"<p>{html.escape(text)}</p>" for text in (self.sentence(), SIGN))


def split_block(model: Model, tokens: Tensor, block: int | str, valid: Tensor | None = None) -> BlockSplit:
    """The error at the input of a block (2, or "blocks.2") when the model reads `tokens` ~ (B, T), in its exact parts.
    `valid` chooses whose surprise the loss counts.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=2, n_heads=2, d_model=6), seed=0)
    >>> found = split_block(model, torch.tensor([[1, 2, 3, 4, 5]]), "blocks.1")
    >>> list(found.sums())
    ['skip', 'mlp', 'query', 'key', 'value']
    >>> round(sum(found.share(part) for part in found.parts.values()), 6)
    1.0
    """
    i = number_of(model, block)
    (parts, _), whole = split_in_model(model, tokens, i, valid)
    return BlockSplit(f"{BLOCKS}.{i}", parts, whole)


def number_of(model: Model, block: int | str) -> int:
    """The number of a block of the model. Raises ConfigError."""
    blocks = getattr(getattr(model.layer, "parts", {}).get(BLOCKS), "parts", {})
    name = str(block).removeprefix(f"{BLOCKS}.")
    if name not in blocks:
        has = f"{BLOCKS}.0 to {BLOCKS}.{len(blocks) - 1}" if blocks else "none"
        raise ConfigError(f"block {cut(block)} was asked for, and this model has {has}")
    return int(name)


def split_in_model(model: Model, tokens: Tensor, block: int, valid: Tensor | None = None) -> tuple[Split, Tensor]:
    """The split of block `block` when the model reads `tokens`, and the whole error at that block's input."""
    parts = list(model.layer.parts)
    folder, name = (BLOCKS, str(block - 1)) if block else ("", parts[parts.index(BLOCKS) - 1])
    path = f"{folder}." if folder else ""
    above = f"{BLOCKS}.Delta_{block}"
    with watch(model, f"{path}{name}", f"{path}Delta_{name}", above) as signals:
        model.loss(tokens, valid=valid)
        model.backward(Factors(model.params.layout, ()))  # errors alone: no gradient is formed or kept
    layer = model.layer.parts[BLOCKS].parts[str(block)]
    numbers = model.named
    p = Layout(layer.slots()).zeros(model.params.flat.dtype, model.params.flat.device)
    for slot in p:
        p[slot].copy_(numbers[f"{BLOCKS}.{block}.{slot}"])
    run = replace(model.run, signals=None) / BLOCKS / str(block)
    return split(layer, p, signals[f"{path}{name}"], signals[above], run), signals[f"{path}Delta_{name}"]
