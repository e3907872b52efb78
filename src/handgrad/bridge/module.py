"""A layer or model as a torch.nn.Module whose backward pass is ours.

Parameters have the names of `model.params`. A chain of layers is a module of modules, so that hooks, checkpoints and
`fully_shard` reach each block by itself; every other layer is one module, whose parameters lie in folders below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from handgrad.bridge.function import Call, Through
from handgrad.core.combine import Chain
from handgrad.core.errors import ConfigError, ShapeError, unknown
from handgrad.core.layer import Layer
from handgrad.core.params import Buffer, Layout
from handgrad.core.run import Run
from handgrad.models.model import Model, checked


@dataclass(frozen=True)
class Part:
    """Which layer a module is, and where; without numbers, so copies of a module share it.

    path         of names from the top
    shown        paths of the signals that its output is
    vocabulary   of a whole model: ids are looked at before they are used
    """

    layer: Layer
    path: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    vocabulary: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Part:
        return self

    @property
    def below(self) -> Mapping[str, Layer]:
        return self.layer.parts if isinstance(self.layer, Chain) else {}

    def child(self, name: str) -> Part:
        path = (*self.path, name)
        last = name == next(reversed(self.below))
        return Part(self.below[name], path, (".".join(path), *(self.shown if last else ())))


@dataclass
class Way:
    """How all parts of one module run."""

    run: Run


class Bridge(nn.Module):
    """Feature maps in, feature maps out; for a model, ids ~ (B, T) in and logits ~ (B, T, V) out.

    train()   what drops, drops: each part draws a seed from torch's generator (torch.manual_seed), or takes `run.seed`
    eval()    nothing is dropped

    `hg.watch(module, …)` shows its signals like a model's.
    """

    def __init__(self, part: Part, way: Way) -> None:
        super().__init__()
        self._part, self._way = part, way

    @torch.compiler.disable
    def forward(self, *a: Tensor) -> Any:
        part, run = self._part, self._way.run
        require_tensors(a)
        if part.vocabulary:
            require_ids_alone(a)
            checked(a[0], part.vocabulary)
        if part.below:
            for name in part.below:
                y = self._modules[name](*a)
                a = y if isinstance(y, tuple) else (y,)
            return y
        names = tuple(part.layer.slots())
        found = [self.get_parameter_or_made(name) for name in names]
        unique = {id(w): w for w in found}
        places = {key: i for i, key in enumerate(unique)}
        seed = None
        if self.training:
            seed = int(torch.randint(1 << 62, ())) if run.seed is None else run.seed
        run = replace(run, path="".join(f"{name}." for name in part.path), seed=seed)
        which = tuple(places[id(w)] for w in found)
        call = Call(part.layer, names, which, len(a), run, part.shown, autocast_type(a[0].device.type))
        require_one_type(call, a, found)
        return Through.apply(call, *a, *unique.values())

    def get_parameter_or_made(self, name: str) -> Tensor:
        """A parameter, or what torch.nn.utils.parametrize puts in its place."""
        here: Any = self
        for step in name.split("."):
            here = getattr(here, step)
        return here

    @property
    def run(self) -> Run:
        return self._way.run

    @contextmanager
    def running(self, **how: Any) -> Iterator[Bridge]:
        """Within the block, passes run this way, those of all other parts of the same module too."""
        before, self._way.run = self._way.run, replace(self._way.run, **how)
        try:
            yield self
        finally:
            self._way.run = before

    def extra_repr(self) -> str:
        return type(self._part.layer).__name__


def as_module(
    thing: Model | Layer,
    params: Buffer | None = None,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    run: Run | None = None,
) -> Bridge:
    """A torch.nn.Module with our backward pass: for any optimiser, DDP, FSDP2, checkpoints, other people's loops.

    thing    a model; or a layer, whose parameters are `params`, or drawn from `seed` in `dtype`
    run      how it runs; default: as the model does, a layer with the implementation "auto"

    The parameters are views of the flat buffer of the model: training the module trains the model. After `.to` another
    type or device, `copy.deepcopy`, `load_state_dict(assign=True)` or `fully_shard` they are tensors of their own. Tied
    names are one Parameter. A parameter with requires_grad=False costs nothing; a model's frozen ones start like that.

    >>> import handgrad as hg, torch
    >>> module = hg.as_module(hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6)))
    >>> module(torch.tensor([[1, 2, 3]])).sum().backward()
    >>> module.get_parameter("blocks.0.attention.query.w").grad.shape
    torch.Size([6, 6])
    >>> hg.as_module(hg.Linear(3, 2))(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """
    own: dict[str, nn.Parameter] = {}
    if isinstance(thing, Model):
        if params is not None:
            raise ConfigError("a model has its parameters, and params were given too; leave them out, or give a layer")
        if thing.shadow is not None:
            raise ConfigError(
                f"this model computes in {thing.shadow.flat.dtype} on a copy of its parameters, which an optimiser of "
                "torch would not refresh; give the model itself, and run the module under torch.autocast"
            )
        for buffer in (*thing.frozen, thing.params):
            own |= registered(buffer, trained=buffer is thing.params)
        part, run = Part(thing.layer, vocabulary=thing.config.vocabulary), run or replace(thing.run, signals=None)
    elif isinstance(thing, Layer) and not isinstance(thing, type):
        params = Layout(thing.slots()).draw(seed, dtype, device) if params is None else params
        own = registered(params)
        part, run = Part(thing), run or Run(implementation="auto")
    else:
        raise ConfigError(
            f"as_module takes a model (hg.build, hg.load) or a layer such as hg.Linear(3, 2); "
            f"found {type(thing).__name__}"
        )
    for name in part.layer.slots():
        if name not in own:
            raise unknown("parameter", name, own)
    return grown(part, own, Way(run))


def registered(buffer: Buffer, trained: bool = True) -> dict[str, nn.Parameter]:
    """Every name; tied ones are the same Parameter."""
    own = {name: nn.Parameter(alone(buffer[name]), requires_grad=trained) for name in buffer}
    return {name: own[buffer.layout.owner(name)] for name in buffer.layout.slots}


def alone(w: Tensor) -> Tensor:
    """The same memory as a tensor that knows of nothing else in it: what saves a module saves no neighbours.

    >>> flat = torch.zeros(5)
    >>> w = alone(flat[1:3])
    >>> w += 1.0
    >>> flat.tolist(), w.untyped_storage().nbytes()
    ([0.0, 1.0, 1.0, 0.0, 0.0], 8)
    """
    start = w.storage_offset() * w.element_size()
    storage = w.untyped_storage()[start : start + w.nbytes]
    return w.new_empty(0).set_(storage, 0, w.shape, w.stride())


def grown(part: Part, own: Mapping[str, nn.Parameter], way: Way) -> Bridge:
    node = Bridge(part, way)
    for name in part.below:
        require_free(node, name)
        node.add_module(name, grown(part.child(name), own, way))
    for name in () if part.below else part.layer.slots():
        *folders, leaf = name.split(".")
        here: nn.Module = node
        for folder in folders:
            if folder not in here._modules:
                require_free(here, folder)
                here.add_module(folder, nn.Module())
            here = here.get_submodule(folder)
        require_free(here, leaf)
        here.register_parameter(leaf, own[".".join((*part.path, name))])
    return node


def require_free(node: nn.Module, name: str) -> None:
    if hasattr(node, name):
        raise ConfigError(f"a part or parameter is named '{name}', as an attribute of torch.nn.Module is; rename it")


def require_tensors(a: tuple[Any, ...]) -> None:
    if not a or not all(isinstance(x, Tensor) for x in a):
        found = ", ".join(type(x).__name__ for x in a) or "nothing"
        raise ShapeError(f"a handgrad module takes its feature maps, or token ids, as tensors; found {found}")


def require_ids_alone(a: tuple[Tensor, ...]) -> None:
    if len(a) != 1:
        raise ShapeError(
            f"a model as a module takes token ids (batch, tokens) and nothing else, and gives logits; found {len(a)} "
            "tensors. The loss, and a mask of what counts in it, are formed outside"
        )


def require_one_type(call: Call, a: tuple[Tensor, ...], params: list[Tensor]) -> None:
    """Feature maps and parameters in one floating type; ids are of none."""
    types = {call.cast(x[:0]).dtype for x in (*a, *params) if x.is_floating_point()}
    if len(types) > 1:
        names = " and ".join(sorted(str(t).removeprefix("torch.") for t in types))
        raise ShapeError(
            f"feature maps and parameters of {call.run.path or 'the module'} are in {names}; bring them into one type, "
            "for example by module.to(x.dtype)"
        )


def autocast_type(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
