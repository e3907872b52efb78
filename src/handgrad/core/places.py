"""A tree of layers, walked with the path of each: where its parameters and signals are found by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from handgrad.core.layer import Layer

By = Callable[[str, Any], Any]


def replaced(layer: Any, by: By, path: str = "") -> Any:
    """The same tree with by(path, part) in the place of each part, the outermost first; a part that `by` exchanges is
    not walked any further.

    Parts in a mapping have their names as the next step of the path; parts in other fields share the path of their
    layer, unless its `PLACES` gives them a step. A layer that makes its parts itself shows them when it is `opened`.

    >>> from handgrad.core.combine import Chain
    >>> from handgrad.layers.linear import Linear
    >>> paths = []
    >>> _ = replaced(Chain({"up": Linear(2, 3)}), lambda path, part: paths.append(path) or part)
    >>> paths
    ['', 'up']
    """
    if isinstance(layer, tuple):
        return tuple(replaced(part, by, path) for part in layer)
    if isinstance(layer, Mapping):
        return {name: replaced(part, by, step(path, name)) for name, part in layer.items()}
    if not is_dataclass(layer) or isinstance(layer, type) or not isinstance(layer, Layer):
        return layer
    if (new := by(path, layer)) is not layer:
        return new
    whole: Any = layer.opened() if hasattr(layer, "opened") else layer
    changes = {}
    for field in fields(whole):
        old = getattr(whole, field.name)
        if isinstance(old, (tuple, Mapping, Layer)):
            new = replaced(old, by, step(path, getattr(layer, "PLACES", {}).get(field.name, "")))
            if new != old:
                changes[field.name] = new
    return replace(whole, **changes) if changes else layer


def step(path: str, name: str) -> str:
    """
    >>> step("", "blocks"), step("blocks", "0"), step("blocks", "")
    ('blocks', 'blocks.0', 'blocks')
    """
    return f"{path}.{name}" if path and name else path or name
