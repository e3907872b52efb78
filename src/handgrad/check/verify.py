"""A whole model on some tokens: every activation, error signal and gradient, against what it must be.

Four comparisons, each signal by signal, with the budget of `check/tolerance.py`:

float64        the hand-written backward pass against torch's autograd through the same forward pass, in float64
fused          the fused forms against the explicit formulas, forward and backward, in float64
float32,       both forms in the type against the explicit formulas in float64, at the same numbers. The budget is twice
bfloat16       the error of torch's autograd in that type, and one rounding of the type
transformers   the library of that name, in float64: activations and gradients (`check/verify_peer.py`)

Autograd differentiates whatever forward pass there is. That it is the one that was meant is for transformers to say,
and for the references of the rules (`check/references.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from handgrad.check.oracle import Noting, Probe, is_error
from handgrad.check.tolerance import FLOAT64, OVER_TORCH
from handgrad.check.verify_rows import Kept, Rounding, Row, Verified, ordered
from handgrad.core.errors import ConfigError, NumericError, ShapeError
from handgrad.core.gradients import Accumulate
from handgrad.core.params import Buffer, Tree, nested
from handgrad.core.run import Run
from handgrad.generate.compare import damaged
from handgrad.models.model import Model

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
FORMS = ("explicit", "fused")
DRAWS = 8
NEAR = 1e-3  # how far, relatively, the numbers of another draw lie from the model's
Step = Callable[[str], None]


@dataclass
class Record:
    """Keeps what is shown. `inner` asks for the signals that only explicit formulas form, and so for these formulas."""

    inner: bool
    forward: dict[str, Tensor] = field(default_factory=dict)
    events: dict[str, Tensor | None] = field(default_factory=dict)

    def wants(self, path: str) -> bool:
        return self.inner

    def see(self, path: str, x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_floating_point():
            (self.events if is_error(path) else self.forward)[path] = x.detach().clone()
        return x

    def again(self) -> Record:
        return Record(self.inner)


@dataclass(frozen=True)
class Leaves:
    """Parameters for autograd, each a tensor of its own: the gradient of a view would be as long as all of them."""

    flat: Tensor
    leaves: dict[str, Tensor]
    tree: Tree

    @classmethod
    def of(cls, p: Buffer) -> Leaves:
        leaves = {name: w.detach().clone().requires_grad_() for name, w in p.items()}
        tree = nested({name: leaves[p.layout.owner(name)] for name in p.layout.slots})
        return cls(p.flat, leaves, tree)


def verify(
    model: Model,
    tokens: Tensor,
    dtypes: Sequence[str] = tuple(DTYPES),
    peer: bool = True,
    draws: int = DRAWS,
    step: Step = lambda what: None,
) -> Verified:
    """Compare every signal of the model's passes over `tokens` ~ (B, T), T at least 2; the loss is the model's own.

    `peer` asks for transformers, where it is installed and knows such a model. Errors of rounding types are added up
    over `draws`. `step` is told what begins. Raises ConfigError for an unknown type, ShapeError for tokens that cannot
    be read, NumericError for a parameter that is not finite.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=2, d_model=6), seed=0)
    >>> found = verify(model, torch.tensor([[1, 2, 3, 4]]), ["float64"], peer=False)
    >>> found.ok, found.first_wrong
    (True, None)
    """
    for name in dtypes:
        if name not in DTYPES:
            raise ConfigError(f"dtype {name!r} cannot be verified; known: {', '.join(DTYPES)}")
    if model.checked(tokens).shape[1] < 2:
        raise ShapeError("verifying needs at least 2 tokens: the second is what the first should predict")
    if wrong := damaged(model):
        raise NumericError(f"nothing can be verified where numbers are not finite{wrong}")
    flat = model.params.flat.detach()
    step("explicit formulas in float64")
    exact = by_hand(model, flat.double(), tokens, "explicit")
    rows: list[Row] = []
    if "float64" in dtypes:
        step("autograd in float64")
        oracle = by_autograd(model, flat.double(), tokens)
        rows += [*exact.shape_rows(oracle), *exact.against(oracle, "float64", FLOAT64, forward=False)]
        del oracle
        step("fused forms in float64")
        rows += by_hand(model, flat.double(), tokens, "fused").against(exact, "fused", FLOAT64)
    for name in dtypes:
        if name != "float64":
            rows += in_type(model, name, tokens, draws, step)
    left_out = []
    if peer:
        from handgrad.check.verify_peer import against_transformers, why_not

        if reason := why_not(model):
            left_out.append(reason)
        else:
            step("transformers in float64")
            rows += against_transformers(model, tokens, exact)
    return ordered(rows, exact, tuple(left_out))


def in_type(model: Model, name: str, tokens: Tensor, draws: int, step: Step) -> list[Row]:
    """Both forms in one type, at the model's numbers and at others near them; what is exact is judged where they are.

    Rounding is as good as random: a single draw would now and then say that torch rounds far better, or far worse.
    """
    dtype = DTYPES[name]
    sums = [Rounding(f"{name} {form}", torch.finfo(dtype).eps / 2, OVER_TORCH) for form in FORMS]
    for draw in range(draws):
        step(f"{name}, draw {draw + 1} of {draws}")
        flat = model.params.flat.detach()
        if draw:
            noise = torch.randn(flat.shape, generator=torch.Generator().manual_seed(draw), dtype=flat.dtype)
            flat = flat * (1 + NEAR * noise.to(flat.device))
        flat = flat.to(dtype)
        exact, torchs = by_hand(model, flat.double(), tokens, "explicit"), by_autograd(model, flat, tokens)
        for form, sum_of in zip(FORMS, sums, strict=True):
            sum_of.add(by_hand(model, flat, tokens, form), exact, torchs)
    return [row for sum_of in sums for row in sum_of.rows()]


def by_hand(model: Model, flat: Tensor, tokens: Tensor, form: str) -> Kept:
    """One pass of ours and back, at the numbers `flat` and in their type."""
    record, gradient = Record(form == "explicit"), model.params.layout.zeros(flat.dtype, flat.device)
    one = replace(model, params=model.params.like(flat)).moved(flat.dtype)
    with torch.no_grad():
        loss = one.loss(tokens, run=Run(signals=record, implementation=form))
        one.backward(Noting(Accumulate(gradient.tree), record.events, gradient.layout.tied))
    return Kept(record.forward | {"loss": loss}, record.events, dict(gradient.items()))


def by_autograd(model: Model, flat: Tensor, tokens: Tensor) -> Kept:
    """The explicit forward pass, differentiated by torch."""
    theta, probe = Leaves.of(model.params.like(flat)), Probe()
    there = replace(model, params=model.params.like(flat)).moved(flat.dtype)
    one: Any = replace(there, params=theta, frozen=tuple(Leaves.of(frozen) for frozen in there.frozen))
    with torch.enable_grad():
        loss = one.loss(tokens, run=Run(signals=probe))
        loss.backward()
    errors = {}
    for path, x in probe.forward.items():
        if isinstance(x, Tensor) and x.requires_grad:
            folder, dot, name = path.rpartition(".")
            errors[f"{folder}{dot}Delta_{name}"] = torch.zeros_like(x) if x.grad is None else x.grad
    forward = {path: x.detach() for path, x in probe.forward.items() if isinstance(x, Tensor) and x.is_floating_point()}
    gradients = {n: torch.zeros_like(w) if w.grad is None else w.grad for n, w in theta.leaves.items()}
    return Kept(forward | {"loss": loss.detach()}, errors, gradients)
