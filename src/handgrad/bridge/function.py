"""Our pair of maps as a torch.autograd.Function: the one place where handgrad meets automatic differentiation.

Nothing here is differentiated by torch. Its engine only calls `backward` below, which is the layer's own, and adds up
what several calls give to one parameter. What forward saved is handed to torch tensor by tensor, so that checkpoints
(torch.utils.checkpoint), offloading hooks, a second backward pass over a kept graph and the search for tensors that
were written to in between work as for any other operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from handgrad.core.compiled import Shape
from handgrad.core.errors import ConfigError
from handgrad.core.gradients import Accumulate
from handgrad.core.layer import Layer
from handgrad.core.params import Tree, nested
from handgrad.core.run import Run, widened


@dataclass(frozen=True)
class Call:
    """One pass through one layer.

    names      of the layer's parameters; `which[i]` is the place of names[i] among the tensors that are handed over,
               since tied names share one
    n_inputs   feature maps, which come before the parameters
    shown      paths of the signals that the output is, the innermost first
    dtype      what the pass computes in, where autocast asks for another type than float32
    """

    layer: Layer
    names: tuple[str, ...]
    which: tuple[int, ...]
    n_inputs: int
    run: Run
    shown: tuple[str, ...] = ()
    dtype: torch.dtype | None = None

    def numbers(self, params: tuple[Tensor, ...]) -> Tree:
        used = [self.cast(w) for w in params]
        return nested({name: used[i] for name, i in zip(self.names, self.which, strict=True)})

    def cast(self, x: Tensor) -> Tensor:
        return x if self.dtype is None or x.dtype != torch.float32 else x.to(self.dtype)

    def see(self, x: Any, error: bool = False) -> Any:
        """Offer the output to whoever watches, or its error, on the way back."""
        for path in reversed(self.shown) if error else self.shown:
            folder, dot, name = path.rpartition(".")
            x = Run(f"{folder}{dot}", self.run.signals).show(f"Delta_{name}" if error else name, x)
        return x


class Through(torch.autograd.Function):
    """forward and backward of one layer."""

    @staticmethod
    def forward(ctx: Any, call: Call, *given: Tensor) -> Any:
        a, params = given[: call.n_inputs], given[call.n_inputs :]
        watched = call.run.signals is not None  # what is recorded must not hold the graph
        a_cast = tuple(call.cast(x.detach() if watched else x) for x in a)
        with torch.autocast(given[0].device.type, enabled=False):
            y, saved = call.layer.forward(call.numbers(params), single(a_cast), call.run)
            y = call.see(y)
        ctx.call, ctx.dtypes, ctx.single = call, [x.dtype for x in a], not isinstance(y, tuple)
        ctx.shape, found = Shape.of(saved)
        unique = {id(x): x for x in (*params, *found)}
        places = {key: i for i, key in enumerate(unique)}
        ctx.params, ctx.found = [places[id(w)] for w in params], [places[id(x)] for x in found]
        ctx.save_for_backward(*unique.values())
        if watched:
            return tuple(x.detach() for x in y) if isinstance(y, tuple) else y.detach()
        return y

    @staticmethod
    def backward(ctx: Any, *Deltas: Tensor) -> Any:
        call, kept = ctx.call, ctx.saved_tensors
        params = tuple(kept[i] for i in ctx.params)
        wanted = ctx.needs_input_grad[1 + call.n_inputs :]
        sums = [torch.empty_like(widened(w), memory_format=torch.contiguous_format) if want else None
                for w, want in zip(params, wanted, strict=True)]  # fmt: skip
        with torch.no_grad(), torch.autocast(Deltas[0].device.type, enabled=False):
            receiver = Accumulate(
                nested({n: g for n, i in zip(call.names, call.which, strict=True) if (g := sums[i]) is not None}),
                {g.data_ptr() for g in sums if g is not None},
            )
            Delta = call.see(Deltas[0] if ctx.single else Deltas, error=True)
            saved = ctx.shape.filled([kept[i] for i in ctx.found])
            below = call.layer.backward(call.numbers(params), Delta, saved, receiver, call.run)
            receiver.settle()
            below = below if isinstance(below, tuple) else (below,) * call.n_inputs
            belows = [
                D.to(dtype) if D is not None and want else None
                for D, dtype, want in zip(below, ctx.dtypes, ctx.needs_input_grad[1:], strict=False)
            ]
            gradients = [None if g is None else g.to(w.dtype) for g, w in zip(sums, params, strict=True)]
        return (None, *once([*belows, *gradients], [*Deltas, *kept]))


class Once(torch.autograd.Function):
    """The first n of its inputs; going back through them, to any of its inputs, is refused."""

    @staticmethod
    def forward(ctx: Any, n: int, *xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in xs[:n])

    @staticmethod
    def backward(ctx: Any, *Deltas: Tensor) -> Any:
        raise ConfigError(
            "a gradient of a handgrad module was differentiated again. Its backward pass is written by hand and has no "
            "derivative; for second derivatives take differences of gradients, or the same layer of torch.nn"
        )


def once(results: list[Tensor | None], sources: list[Tensor]) -> list[Tensor | None]:
    """The results of a backward pass; where a graph of it is asked for, going back through them is refused: to the
    errors and tensors that they were made of, and anything behind those."""
    there = [x for x in results if x is not None]
    if not torch.is_grad_enabled() or not there:
        return results
    anchor = torch.ones((), requires_grad=True)
    refused = iter(Once.apply(len(there), *there, anchor, *(x for x in sources if x.requires_grad)))
    return [None if x is None else next(refused) for x in results]


def single(a: tuple[Tensor, ...]) -> Any:
    """A feature map by itself, or several as a tuple."""
    return a[0] if len(a) == 1 else a
