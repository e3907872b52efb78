"""What a model does, layer by layer, and the table of all its gradients.

Nothing here is a list kept by hand: the layers are walked, each says which form of its rule runs and why, and the
formula of each gradient is read off one backward pass of two tokens. There every parameter's gradient arrives as its
factors, and each factor *is* one of the shown signals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import getattr_static
from itertools import groupby
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from handgrad.check.equation import Equation
from handgrad.check.registry import EQUATIONS, object_of
from handgrad.core.combine import Residual
from handgrad.core.rule import Rule
from handgrad.core.run import Run
from handgrad.models.model import Model
from handgrad.rules.headloss import HEAD_LOSS

USED = {
    "Pointwise": ("pointwise",),
    "Dropout": ("dropout",),
    "PositionEmbedding": ("learned-position",),
    "MultiHead": ("projections", "raw", "scaled", "softmax", "mixing", "downstream", "key-bias", "multi-head"),
    "Residual": ("residual",),
    "Sequence": ("block",),
    "Unembedding": ("linear",),
}
"""Equations of the layers whose rule files do not tell them."""

LAWS = "laws of a head"
"""Laws hold for a layer; they are not computed by it."""


@dataclass(frozen=True)
class LayerRow:
    """One layer: where it is, what it is, which form of its rule runs and why, and the equations it uses.

    `in_training` is the form that ran when the model was trained; empty where nobody said how that was.
    """

    path: str
    layer: str
    rule: str
    implementation: str
    why: str
    equations: tuple[str, ...]
    in_training: str = ""


@dataclass(frozen=True)
class GradientRow:
    """The gradient of one parameter; `count` is 0 where another name owns the slot, which `tied_to` then names."""

    name: str
    shape: tuple[int, ...]
    formula: str
    count: int
    tied_to: str = ""


@dataclass(frozen=True)
class Explained:
    layers: tuple[LayerRow, ...]
    gradients: tuple[GradientRow, ...]

    @property
    def total(self) -> int:
        """Parameters of the model, each slot counted once."""
        return sum(row.count for row in self.gradients)

    def __str__(self) -> str:
        """Both tables as text, blocks that are alike once."""
        changed = any(r.in_training not in ("", r.implementation) for r in self.layers)
        heads = ("", "layer", "kind", "rule", *(("in training", "now") if changed else ("form",)), "why", "equations")
        layers = [
            (
                *(f"{n} x" if n > 1 else "", r.path, r.layer, r.rule, *([r.in_training] if changed else [])),
                *(r.implementation, r.why, ", ".join(r.equations)),
            )
            for r, n in folded(self.layers, "path")
        ]
        gradients = [
            (
                *(f"{n} x" if n > 1 else "", r.name, " x ".join(map(str, r.shape)), r.formula),
                f"{r.count:,}" if r.count else "",
            )
            for r, n in folded(self.gradients, "name")
        ]
        last = f"{self.total:,} parameters; a tied one is counted once. Δ_x is the error of the signal x"
        return "\n".join(
            [
                table(heads, layers),
                "",
                table(("", "gradient of", "shape", "formula", "count of each"), gradients),
                "",
                last,
            ]
        )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what stands in them.

    >>> print(table(("a", "b"), [("1", "long"), ("23", "x")]))
    a   b
    1   long
    23  x
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in (heads, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def explain(model: Model, implementation: str = "") -> Explained:
    """What `handgrad explain` shows: layers and gradients of a model; `print` shows it as tables. The model is left as
    it was. `implementation` is what it was trained with, where that is known ("auto", "explicit" or "fused").

    >>> import handgrad as hg
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=2, d_model=6), seed=0)
    >>> found = explain(model)
    >>> found.total, found.gradients[0].formula
    (618, 'OHE(t)ᵗ Δ_token + Δ_headᵗ norm')
    >>> print(str(found).splitlines()[-1])
    618 parameters; a tied one is counted once. Δ_x is the error of the signal x
    """
    rows = [*layer_rows(model.layer, model.run), loss_row(model.run)]
    if implementation:
        then = Run(implementation=implementation)
        trained = [*layer_rows(model.layer, then), loss_row(then)]
        rows = [replace(r, in_training=t.implementation) for r, t in zip(rows, trained, strict=True)]
    if model.params.layout.tied:
        rows = [replace(r, equations=("tying",)) if r.layer == "Unembedding" else r for r in rows]
    return Explained(tuple(rows), tuple(gradient_rows(model)))


def layer_rows(layer: Any, run: Run) -> Iterator[LayerRow]:
    """The layer itself where it computes by a rule or adds, then its parts in their order."""
    rules = rules_of(layer)
    equations = equations_of(layer, [module for module, _ in rules])
    if rules or type(layer).__name__ in USED:
        names = ", ".join(module.rpartition(".")[2] for module, _ in rules) or "composition"
        how, why = chosen([rule for _, rule in rules if rule is not None], run)
        path = run.path + layer.name if isinstance(layer, Residual) else run.path
        yield LayerRow(path.rstrip("."), type(layer).__name__, names, how, why, equations)
    for part, below in parts_of(layer):
        yield from layer_rows(below, run / part if part else run)


def loss_row(run: Run) -> LayerRow:
    how, why = chosen([HEAD_LOSS], run)
    return LayerRow("loss", "loss", "headloss", how, why, ("shift", "cross-entropy"))


def chosen(rules: list[Rule], run: Run) -> tuple[str, str]:
    """Which pair each rule would run now, and why, in words. One that has a choice speaks for the layer."""
    for rule in rules:
        if rule.fused is not None:
            if rule.choose(run) is rule.fused:
                return "fused", "nobody watches what only the explicit form shows"
            asked = run.implementation == "explicit"
            return "explicit", "asked for" if asked else "a signal that only it shows is watched"
    return "explicit", "the only form of this rule"


def rules_of(layer: Any) -> list[tuple[str, Rule | None]]:
    """(module, rule) of what `layer.forward` calls: rules it holds or names, and rule files it uses as functions."""
    found: dict[str, Rule | None] = {}
    for value in vars(layer).values():
        if isinstance(value, Rule):
            found[value.explicit.forward.__module__] = value
    forward = type(layer).forward
    for name in forward.__code__.co_names:
        value = forward.__globals__.get(name)
        if isinstance(value, Rule):
            found[value.explicit.forward.__module__] = value
        elif isinstance(value, ModuleType) and value.__name__.startswith("handgrad.rules."):
            found[value.__name__] = None
    return list(found.items())


def equations_of(layer: Any, modules: list[str]) -> tuple[str, ...]:
    """Ids of the registry: those of `USED`, else those whose code is this class or a rule file that it uses."""
    kind = type(layer)
    ids = USED.get(kind.__name__)
    if ids is None:
        ids = tuple(e.id for e in EQUATIONS if e.section != LAWS and (inside(e, kind) or module_of(e) in modules))
    if kind.__name__ == "MultiHead":
        ids = tuple(id for id in ids if layer.bias or id != "key-bias")
        ids += ("grouped-queries",) if layer.groups != layer.heads else ()
    mask = type(getattr(layer, "mask", None))
    return tuple(dict.fromkeys((*ids, *(e.id for e in EQUATIONS if e.section != LAWS and object_of(e.code) is mask))))


def inside(e: Equation, kind: type) -> bool:
    """Is the code of e this class, or one of its methods?"""
    return module_of(e) == kind.__module__ and e.code.partition(":")[2].partition(".")[0] == kind.__name__


def module_of(e: Equation) -> str:
    return e.code.partition(":")[0]


def parts_of(layer: Any) -> Iterator[tuple[str, Any]]:
    """(name in the path, part); the name is empty where a part shares the path of its whole."""
    for name in attributes(layer):
        value = getattr(layer, name)
        if isinstance(value, Mapping):
            yield from ((part, below) for part, below in value.items() if is_layer(below))
        elif isinstance(value, tuple | list):
            yield from (("", below) for below in value if is_layer(below))
        elif is_layer(value):
            own = layer.slots().keys()
            inner = value.slots().keys()
            yield ("" if not inner or inner <= own else name), value


def attributes(layer: Any) -> list[str]:
    """Fields, then what the class forms from them once; fields of `PLACES` are among that."""
    fields = [name for name in getattr(layer, "__dataclass_fields__", {}) if name not in getattr(layer, "PLACES", {})]
    formed = [n for n in vars(type(layer)) if type(getattr_static(type(layer), n)).__name__ == "cached_property"]
    return fields + [n for n in formed if n not in fields]


def is_layer(x: Any) -> bool:
    return callable(getattr(x, "backward", None)) and callable(getattr(x, "slots", None))


@dataclass
class Log:
    """Shown everything: the forward signals and the Deltas, in their order."""

    signals: dict[str, Tensor] = field(default_factory=dict)
    errors: dict[str, Tensor] = field(default_factory=dict)

    def wants(self, path: str) -> bool:
        return True

    def see(self, path: str, x: Tensor) -> Tensor:
        error = path.rpartition(".")[2].startswith("Delta_")
        (self.errors if error else self.signals)[path] = x
        return x

    def again(self) -> Log:
        return self

    def signal(self, x: Tensor) -> str | None:
        """The name of the forward signal that x is, or whose heads side by side are x."""
        for path, y in self.signals.items():
            if x.data_ptr() == y.data_ptr() and x.numel() == y.numel():
                return leaf(path)
        for path, y in self.signals.items():
            if y.ndim == 4 and y.numel() == x.numel() and torch.equal(y.transpose(-3, -2).flatten(-2), x):
                return f"concat_h({leaf(path)})"
        return None

    def error(self, x: Tensor) -> str | None:
        """The name of the error signal that x is: the last one shown, which is the nearest to its receiver."""
        for path, y in reversed(self.errors.items()):
            if x.data_ptr() == y.data_ptr() and x.numel() == y.numel():
                return leaf(path)
        return None

    def name(self, x: Any, otherwise: str) -> str:
        found = (self.signal(x) or self.error(x)) if isinstance(x, Tensor) else None
        return found or otherwise


def leaf(path: str) -> str:
    return path.rpartition(".")[2].replace("Delta_", "Δ_")


@dataclass(frozen=True)
class Reader:
    """A receiver that multiplies nothing: it notes which signals each gradient is made of."""

    log: Log
    formulas: dict[str, list[str]]
    path: str = ""

    def __truediv__(self, part: str) -> Reader:
        return Reader(self.log, self.formulas, f"{self.path}{part}.")

    def note(self, name: str, formula: str) -> None:
        self.formulas.setdefault(self.path + name, []).append(formula)

    def outer(self, name: str, a: Tensor, Delta: Tensor) -> None:
        self.note(name, f"{self.log.name(a, 'a')}ᵗ {self.log.name(Delta, 'Δ')}")

    def total(self, name: str, Delta: Tensor) -> None:
        self.note(name, f"1ᵗ {self.log.name(Delta, 'Δ')}")

    def rows(self, name: str, ids: Tensor, Delta: Tensor) -> None:
        self.note(name, f"OHE({'t' if ids.ndim > 1 else 'position'})ᵗ {self.log.name(Delta, 'Δ')}")

    def scaled(self, name: str, x: Tensor, Delta: Tensor) -> None:
        self.note(name, f"1ᵗ({self.log.name(x, 'x')} ∘ {self.log.name(Delta, 'Δ')})")

    def finished(self) -> None:
        """Noted as it comes."""


def gradient_rows(model: Model) -> Iterator[GradientRow]:
    log, formulas = Log(), {}
    tokens = torch.zeros(1, min(2, model.config.context), dtype=torch.int64, device=model.params.flat.device)
    apart = replace(model, run=replace(model.run, signals=log))
    apart.loss(tokens)
    apart.backward(Reader(log, formulas))
    layout = model.params.layout
    for name, slot in layout.slots.items():
        owner = layout.owner(name)
        if owner != name:
            yield GradientRow(name, slot.shape, f"the same tensor as {owner}", 0, owner)
            continue
        others = [other for other, its in layout.tied.items() if its == name]
        terms = [term for one in (name, *others) for term in formulas.get(one, [])]
        yield GradientRow(name, slot.shape, " + ".join(terms) or "none: frozen", prod(slot.shape))


def alike(name: str) -> str:
    """The name without its block's number.

    >>> alike("blocks.3.mlp.up.w")
    'blocks.*.mlp.up.w'
    """
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def folded(rows: tuple[Any, ...], name: str) -> list[tuple[Any, int]]:
    """Rows that differ in their block's number alone, once, with how often they stand there."""
    words = [f.name for f in fields(rows[0]) if isinstance(getattr(rows[0], f.name), str)] if rows else []
    renamed = [replace(row, **{word: alike(getattr(row, word)) for word in {name, *words}}) for row in rows]
    order = {row: i for i, row in reversed(list(enumerate(renamed)))}
    same = groupby(sorted(renamed, key=lambda row: order[row]))
    return [(row, len(list(all_of))) for row, all_of in same]
