"""Which rows or columns of a weight belong to one head: columns of query, key and value, rows of out."""

from __future__ import annotations

from typing import Any

from handgrad.core.errors import ConfigError, cut
from handgrad.core.places import replaced
from handgrad.layers.multihead import MultiHead
from handgrad.models.model import Model

SIDES = ("query", "key", "value", "out")


def attentions(layer: Any) -> dict[str, MultiHead]:
    """Path -> attention layer.

    >>> from handgrad.core import Chain
    >>> list(attentions(Chain({"attention": MultiHead(6, 2)})))
    ['attention']
    """
    found: dict[str, MultiHead] = {}

    def look(path: str, part: Any) -> Any:
        if isinstance(part, MultiHead):
            found[path] = part
        return part

    replaced(layer, look)
    return found


def head_of(model: Model, name: str, head: int) -> tuple[int, slice]:
    """Axis and range of the weight `name` that belong to `head`. Where heads share keys and values, key and value have
    as many heads as there are different ones. Raises ConfigError.

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=3, d_model=6), seed=0)
    >>> head_of(model, "blocks.0.attention.query.w", 1), head_of(model, "blocks.0.attention.out.w", 2)
    ((1, slice(2, 4, None)), (0, slice(4, 6, None)))
    """
    for path, layer in attentions(model.layer).items():
        side, _, rest = name.removeprefix(f"{path}.").partition(".")
        leaf = rest.rpartition(".")[2]
        if not name.startswith(f"{path}.") or side not in SIDES:
            continue
        n = layer.groups if side in ("key", "value") else layer.heads
        if leaf not in (("w", "A") if side == "out" else ("w", "b", "B")):
            break
        if type(head) is not int or not 0 <= head < n:
            shared = f", each shared by {layer.heads // n} query heads" if n < layer.heads else ""
            raise ConfigError(f"head {head} was asked for, and {name} has heads 0 to {n - 1}{shared}")
        part = slice(head * layer.d_h, (head + 1) * layer.d_h)
        return (1 if side != "out" and leaf != "b" else 0), part
    raise ConfigError(
        f"no part of {cut(name)} belongs to one head: ask for query, key or value (its columns) or out.w (its rows) of "
        "an attention layer, or leave the head out"
    )
