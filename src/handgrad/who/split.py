"""The exact split: what reaches a block's input, cut into named parts that add up to the whole.

Every backward map is linear in Δ. So the error can be cut at any signal, and the pieces pushed down one at a time, each
through the true Jacobian of whatever lies below: their sum is the error of the whole. Here the cut runs through the
heads: all of Δ_q, Δ_k, Δ_v is set to 0 except one branch of one head, and the same backward pass runs again.

    Δ = skip + Σ_h (query_h + key_h + value_h) + mlp          parameter gradients are cut by the same knife
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from handgrad.core import Accumulate, Buffer, Chain, Layer, Residual, Run, Sequence
from handgrad.core.errors import ConfigError

BRANCHES = {"Delta_q": "query", "Delta_k": "key", "Delta_v": "value"}
NOT_A_BRANCH = ("norm", "dropout")


@dataclass
class OneBranch:
    """Shown everything; of the errors of q, k and v only `head` of the one at `path` passes, the others become 0."""

    path: str = ""
    head: int = -1
    met: dict[str, int] = field(default_factory=dict)  # path -> number of heads, in the order of the backward pass

    def wants(self, path: str) -> bool:
        return True

    def see(self, path: str, x: Tensor) -> Tensor:
        if path.rpartition(".")[2] not in BRANCHES:
            return x
        self.met[path] = x.shape[1]
        passed = torch.zeros_like(x)
        if path == self.path:
            passed[:, self.head] = x[:, self.head]
        return passed

    def again(self) -> OneBranch:
        return self


class Split(NamedTuple):
    """`parts`: name -> error at the block's input; `gradients`: name -> gradient of the block. Both add up exactly."""

    parts: dict[str, Tensor]
    gradients: dict[str, Buffer]


def split(block: Layer, p: Buffer, a: Tensor, Delta: Tensor, run: Run | None = None) -> Split:
    """Cut the error Δ of `block`, a sequence of residuals and norms (pre- or post-norm), at input a.

    Names: `skip`, `mlp`, and `attention.<head>.query`, `.key`, `.value`. Gradients of what lies above the cut, w_o and
    b_o, are named `attention`.

    >>> import handgrad as hg
    >>> from handgrad.models.gpt2 import block
    >>> layer = block(hg.GPT2Config(vocabulary=11, n_layers=1, n_heads=2, d_model=6))
    >>> p, a = hg.Layout(layer.slots()).draw(1), torch.ones(1, 5, 6)
    >>> parts, _ = split(layer, p, a, Delta=torch.ones(1, 5, 6))
    >>> list(parts)[:4]
    ['skip', 'mlp', 'attention.0.query', 'attention.1.query']
    """
    if not isinstance(block, Sequence):
        raise ConfigError(f"a split needs a sequence of residuals, and {type(block).__name__} is none")
    run = replace(run or Run(), implementation="explicit")
    inputs = [a]
    for f in block.parts[:-1]:
        inputs.append(f.forward(p.tree, inputs[-1], run)[0])

    parts: dict[str, Tensor] = {"skip": Delta}
    gradients: dict[str, Buffer] = {}
    for f, x in zip(reversed(block.parts), reversed(inputs), strict=True):
        if isinstance(f, Residual):
            whole = torch.stack(list(parts.values())).sum(0)
            for name, (part, gradient) in opened(f.f, p, x, whole, run).items():
                gradients[name] = gradient
                if part is not None:
                    parts[name] = part
        else:  # a norm between the residuals: every part goes through it by itself
            pushed = {name: down(f, p, x, part, run) for name, part in parts.items()}
            parts = {name: part for name, (part, _) in pushed.items()}
            for name, (_, gradient) in pushed.items():
                gradients[name] = added(gradients.get(name), gradient)
    return Split(parts, gradients)


def opened(f: Layer, p: Buffer, a: Tensor, Delta: Tensor, run: Run) -> dict[str, tuple[Tensor | None, Buffer]]:
    """The parts of one residual branch: as many as heads and branches where it is attention, otherwise itself."""
    name = next((n for n in reversed(f.parts) if not n.startswith(NOT_A_BRANCH)), "branch") if is_chain(f) else "branch"
    closed = OneBranch()
    below, above = down(f, p, a, Delta, replace(run, signals=closed))
    if not closed.met:
        return {name: (below, above)}
    assert not bool(below.any()), "with Delta_q, Delta_k and Delta_v at 0 there is still an error below attention"
    found: dict[str, tuple[Tensor | None, Buffer]] = {name: (None, above)}
    for path, heads in closed.met.items():
        folder, _, signal = path.removeprefix(run.path).rpartition(".")
        for head in range(heads):
            part, gradient = down(f, p, a, Delta, replace(run, signals=OneBranch(path, head)))
            # what lies above the gate is the same numbers every time, so this takes it away to the last bit
            found[f"{folder}.{head}.{BRANCHES[signal]}"] = (part, gradient.like(gradient.flat - above.flat))
    return found


def is_chain(f: Any) -> bool:
    return isinstance(f, Chain)


def down(f: Layer, p: Buffer, a: Tensor, Delta: Tensor, run: Run) -> tuple[Tensor, Buffer]:
    """Error below and gradient of one forward and one backward pass."""
    g = p.layout.zeros(p.flat.dtype, p.flat.device)
    _, saved = f.forward(p.tree, a, replace(run, signals=None))
    below = f.backward(p.tree, Delta, saved, Accumulate(g.tree), run)
    assert isinstance(below, Tensor)
    return below, g


def added(one: Buffer | None, other: Buffer) -> Buffer:
    return other if one is None else one.like(one.flat + other.flat)


def by(layer: Layer, p: Buffer, a: Tensor, Delta: Tensor, axis: int, run: Run | None = None) -> list[Buffer]:
    """Gradients of `layer` cut along an axis of Δ, one for each sample (axis 0) or token (axis 1) that Δ comes from."""
    pieces = []
    for i in range(Delta.shape[axis]):
        only = torch.zeros_like(Delta)
        only.select(axis, i).copy_(Delta.select(axis, i))
        pieces.append(down(layer, p, a, only, run or Run())[1])
    return pieces


def total(parts: Mapping[str, Tensor] | Mapping[str, Buffer]) -> Tensor:
    """The sum of named parts."""
    return torch.stack([x.flat if isinstance(x, Buffer) else x for x in parts.values()]).sum(0)
