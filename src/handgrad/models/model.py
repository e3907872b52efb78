"""A network with its numbers: what people call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from handgrad.core.combine import Chain, inside
from handgrad.core.errors import ConfigError, ShapeError
from handgrad.core.gradients import Accumulate, Gradients
from handgrad.core.layer import Layer
from handgrad.core.params import Buffer, Layout, Tree, united
from handgrad.core.picked import Picked, Places
from handgrad.core.run import Run, widened
from handgrad.core.signals import Both, Watch
from handgrad.layers.embedding import Unembedding
from handgrad.rules.crossentropy import CROSS_ENTROPY
from handgrad.rules.fused import headloss_chunked
from handgrad.rules.headloss import CHUNKED, HEAD_LOSS


class Config(Protocol):
    """What a model is built from: sizes, and how they become layers."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def context(self) -> int: ...
    def layers(self) -> Layer: ...
    def ties(self) -> Mapping[str, str]: ...


class Pending(NamedTuple):
    """A forward pass that waits for its backward pass."""

    loss: Tensor
    saved: Any
    saved_loss: Any
    run: Run


HEAD = "head"  # the last part of a model, which gives logits


@dataclass
class Model:
    """Token ids in, logits out; a loss, and its gradient by the layers' own backward maps.

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6), seed=0)
    >>> tokens = torch.tensor([[1, 2, 3, 4, 5]])
    >>> model(tokens).shape
    torch.Size([1, 5, 11])
    >>> loss, grads = model.loss(tokens), model.backward()
    >>> grads["blocks.0.attention.query.w"].shape
    torch.Size([6, 6])
    """

    config: Config
    layer: Layer
    params: Buffer
    run: Run = field(default_factory=lambda: Run(implementation="auto"))
    tokenizer: Any = None
    origin: Any = None
    pending: Pending | None = None
    shadow: Buffer | None = None
    frozen: tuple[Buffer, ...] = ()

    def __repr__(self) -> str:
        """One line: `model.layer` is the whole tree of layers, `model.params` all numbers by name.

        >>> import handgrad as hg
        >>> hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=1, d_model=6))
        Model(GPT2Config, vocabulary 11, context 5, 618 parameters in torch.float32, no tokenizer)
        """
        numbers = f"{self.params.layout.count:,} parameters in {self.params.flat.dtype}"
        if self.frozen:
            numbers += f" beside {sum(b.layout.count for b in self.frozen):,} frozen ones"
        words = "no tokenizer" if self.tokenizer is None else f"tokenizer {getattr(self.tokenizer, 'kind', '?')}"
        sizes = f"vocabulary {self.config.vocabulary}, context {self.config.context}"
        return f"Model({type(self.config).__name__}, {sizes}, {numbers}, {words})"

    def __call__(self, tokens: Tensor, run: Run | None = None) -> Tensor:
        """Logits ~ (B, T, V) of ids ~ (B, T), in evaluation (nothing is dropped)."""
        return self.layer.forward(self.numbers, self.checked(tokens), run or self.run)[0]

    @property
    def numbers(self) -> Tree:
        """What passes compute with: the parameters, or their shadow in half precision, and what is frozen.

        What is frozen is in no layout of the parameters: it has no gradient and no moments, and nothing writes to it.
        """
        own = self.params.tree if self.shadow is None else {**self.params.tree, **self.shadow.tree}
        return united(*(frozen.tree for frozen in self.frozen), own) if self.frozen else own

    @property
    def named(self) -> dict[str, Tensor]:
        """What passes compute with, by whole names."""
        buffers = (*self.frozen, self.params, *((self.shadow,) if self.shadow is not None else ()))
        return {name: x for buffer in buffers for name, x in buffer.views.items()}

    @cached_property
    def trunk(self) -> Chain | None:
        """All but the logits, where they are agreements with an embedding; None where the model ends in another way."""
        if not isinstance(self.layer, Chain) or not isinstance(self.layer.parts.get(HEAD), Unembedding):
            return None
        *parts, last = self.layer.parts
        return Chain({name: self.layer.parts[name] for name in parts}) if last == HEAD else None

    @property
    def w_head(self) -> Tensor:
        w: Any = inside(self.numbers, HEAD)["w_emb"]
        return w

    def shadowed(self, dtype: torch.dtype, besides: str = "") -> Model:
        """The same parameters, with passes computed in `dtype` on a copy of them; `besides` is a part of the network
        that makes its own copies, and needs none.

        Whoever changes the parameters calls `refresh` afterwards, as a training step does: until then passes compute
        with the numbers from before. What is frozen never changes, so the model given back has it in `dtype` alone.
        """
        shadow = None
        if dtype != self.params.flat.dtype:
            shadow = self.params.layout.without(besides).zeros(dtype, self.params.flat.device)
        frozen = tuple(buffer.like(buffer.flat.to(dtype)) for buffer in self.frozen)
        model = replace(self, shadow=shadow, frozen=frozen, pending=None)
        model.refresh()
        return model

    def moved(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Model:
        """The same model with all its numbers in another type, or on another device."""

        def to(buffer: Buffer) -> Buffer:
            return buffer.like(buffer.flat.to(device or buffer.flat.device, dtype or buffer.flat.dtype))

        return replace(self, params=to(self.params), frozen=tuple(map(to, self.frozen)), shadow=None, pending=None)

    def refresh(self, name: str | None = None) -> None:
        """Bring the shadow up to date after the parameters have changed, or the one parameter that has."""
        for one in () if self.shadow is None else self.shadow if name is None else [name]:
            if one in self.shadow.layout.slots:
                self.shadow[one].copy_(self.params[one])

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        valid: Tensor | None = None,
        *,
        n_valid: int | None = None,
        run: Run | None = None,
    ) -> Tensor:
        """Mean surprise of the targets in nats, and the start of a backward pass.

        tokens    ids ~ (B, T)
        targets   ids ~ (B, T): what row p should predict. Left out, the loss shifts by one *itself*: row p predicts
                  token p + 1, the last row predicts nothing, T - 1 terms count. Targets that you give are used as they
                  are and must already be shifted; a negative target (such as -100) does not count
        valid     bool ~ (B, T): which targets count
        n_valid   what the sum is divided by; default: the number of targets that count. Give the number of the whole
                  step when it is cut into micro-batches
        """
        run, self.pending = run or self.run, None
        tokens = self.checked(tokens)
        targets, valid = self.aimed(tokens, targets, valid)
        if n_valid is not None:
            require_count(n_valid)
        n = int(valid.sum()) if n_valid is None else n_valid
        if self.trunk is None:
            logits, saved = self.layer.forward(self.numbers, tokens, run)
            loss, saved_loss = CROSS_ENTROPY.forward(logits, targets, valid, n, run=run / "loss")
        else:
            a, saved = self.trunk.forward(self.numbers, tokens, run)
            loss, saved_loss = HEAD_LOSS.forward(a, self.w_head, targets, valid, n, run=run)
        self.pending = Pending(loss, saved, saved_loss, run)
        return loss

    def loss_and_backward(
        self, tokens: Tensor, targets: Tensor, grads: Gradients, *, n_valid: int, run: Run | None = None
    ) -> Tensor:
        """`loss` and `backward` at once, for training: where nobody watches the logits, each is formed only once."""
        run = run or self.run
        require_count(n_valid)
        if self.trunk is None or HEAD_LOSS.choose(run) is not CHUNKED:
            loss = self.loss(tokens, targets, n_valid=n_valid, run=run)
            self.backward(grads)
            return loss
        self.pending = None
        targets, valid = self.aimed(self.checked(tokens), targets, None)
        a, saved = self.trunk.forward(self.numbers, tokens, run)
        one = torch.ones((), dtype=widened(a[:0]).dtype, device=a.device)
        loss, Delta = headloss_chunked.both(a, self.w_head, targets, valid, n_valid, one, grads / HEAD)
        del a
        (grads / HEAD).finished()
        self.trunk.backward(self.numbers, Delta, saved, grads, run)
        return loss

    def backward(self, grads: Gradients | None = None) -> Buffer | None:
        """The gradient of the last loss, as name -> tensor. Given a receiver, everything goes to it instead."""
        if self.pending is None:
            raise ConfigError(
                "there is no loss to go back from: a backward pass uses up what its forward pass kept. "
                "Call model.loss(tokens) first"
            )
        (loss, saved, saved_loss, run), self.pending = self.pending, None
        gradient = self.params.layout.zeros(self.params.flat.dtype, self.params.flat.device) if grads is None else None
        receiver = Accumulate(gradient.tree) if gradient is not None else grads
        if self.trunk is None:
            Delta = CROSS_ENTROPY.backward(torch.ones_like(loss), saved_loss, run / "loss")
            del saved_loss
            self.layer.backward(self.numbers, Delta, saved, receiver, run)
        else:
            pair, kept = saved_loss
            Delta = pair.backward(torch.ones_like(loss), kept, receiver / HEAD, run)
            del kept
            del saved_loss
            (receiver / HEAD).finished()
            self.trunk.backward(self.numbers, Delta, saved, receiver, run)
        return gradient

    @contextmanager
    def running(self, **how: Any):
        """Within the block, passes run this way: `with model.running(seed=1): …`."""
        before, self.run = self.run, replace(self.run, **how)
        try:
            yield self
        finally:
            self.run = before

    def checked(self, tokens: Tensor) -> Tensor:
        return checked(tokens, self.config.vocabulary)

    def aimed(self, tokens: Tensor, targets: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        if targets is None:
            targets = torch.full_like(tokens, -1)
            targets[:, :-1] = tokens[:, 1:]
        for name, given, dtype in (("targets", targets, torch.int64), ("valid", valid, torch.bool)):
            if given is not None and (not isinstance(given, Tensor) or given.dtype != dtype):
                found = str(given.dtype) if isinstance(given, Tensor) else type(given).__name__
                raise ShapeError(f"{name} must be a {dtype} tensor with the shape of tokens; found {found}")
            if given is not None and given.shape != tokens.shape:
                raise ShapeError(
                    f"{name} is {tuple(given.shape)}, and must have the shape of tokens, {tuple(tokens.shape)}"
                )
        if int(targets.max()) >= self.config.vocabulary:
            raise ShapeError(f"target id {int(targets.max())} is outside the vocabulary of {self.config.vocabulary}")
        counts = targets >= 0
        return targets, counts if valid is None else counts & valid


def checked(tokens: Tensor, vocabulary: int) -> Tensor:
    """Ids ~ (B, T) as a model reads them, or an error that says what is wrong with them."""
    if not isinstance(tokens, Tensor):
        raise ShapeError(f"a model reads token ids as an int64 tensor (batch, tokens); found {type(tokens).__name__}")
    if tokens.dtype != torch.int64 or tokens.ndim != 2 or 0 in tokens.shape:
        raise ShapeError(
            f"a model reads token ids as an int64 matrix (batch, tokens), each at least 1; "
            f"found {tuple(tokens.shape)} of {str(tokens.dtype).removeprefix('torch.')}"
        )
    low, high = tokens.aminmax()
    if int(low) < 0 or int(high) >= vocabulary:
        bad = int(low) if int(low) < 0 else int(high)
        where = (tokens == bad).nonzero()[0].tolist()
        raise ShapeError(
            f"token id {bad} at row {where[0]}, position {where[1]} is outside the vocabulary of "
            f"{vocabulary} (ids 0 to {vocabulary - 1})"
        )
    return tokens


def require_count(n_valid: int) -> None:
    if n_valid < 1:
        raise ShapeError(f"n_valid is {n_valid}: it is what the sum of losses is divided by, so at least 1")


def build(config: Config, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
    """A model with first values drawn from `seed`: the same for every machine and order of layers.

    >>> import handgrad as hg
    >>> hg.build(hg.GPT2Config(vocabulary=11, n_layers=1, n_heads=1, d_model=6), seed=0).params.layout.count
    972
    """
    if type(seed) is not int or seed < 0:
        raise ConfigError(f"seed is {seed!r}, and must be a whole number from 0")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"dtype is {dtype}, and must be a floating one such as torch.float32")
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device {device} was asked for, and torch finds no CUDA here; leave it out to use the CPU")
    layer = config.layers()
    return Model(config, layer, Layout(layer.slots(), dict(config.ties())).draw(seed, dtype, device))


@contextmanager
def watch(
    model: Model,
    *patterns: str,
    positions: Places = None,
    heads: Places = None,
    replace: dict | None = None,
    limit_bytes: int | None = None,
):
    """Record signals while the block runs; results stay the same, bit for bit, unless something is replaced.

    model        or a module of `hg.as_module`
    patterns     globs over whole paths: `blocks.*.attention.rho`; the error of a signal x is `Delta_x` at its path
    positions    number, slice or list: only these tokens of each signal are recorded, and handed to a replacement
    heads        the same for heads. Which axis is which follows from the shape: `core/picked.py`. Axes stay
    replace      path or glob -> function of the signal (or of its picked part); its result is used instead
    limit_bytes  most memory that recorded signals may hold: the one that would hold more is refused (ConfigError)

    Watching what only the explicit form of a rule shows, such as attention weights, selects that form for that layer:
    the results are then those of `implementation="explicit"` there, which may differ in the last digits.
    A backward pass is watched where its forward pass was: call `model.loss` inside the block too. Blocks may be
    nested, each with positions and heads of its own. A replacement has no derivative: what it replaces gets the error
    signal as if it stood in its place; to cut the way back too, replace `Delta_x` as well. At the end of the block a
    pattern or replacement that met no signal is refused, with the nearest name (UnknownName).

    >>> import handgrad as hg, torch
    >>> model = hg.build(hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=2, d_model=6), seed=0)
    >>> with hg.watch(model, "blocks.*.attention.*") as signals:
    ...     loss, grads = model.loss(torch.tensor([[1, 2, 3]])), model.backward()
    >>> signals["blocks.0.attention.Delta_raw"].shape
    torch.Size([1, 2, 3, 3])
    >>> with hg.watch(model, "blocks.*.attention.rho", positions=-1, heads=[1]) as signals:
    ...     logits = model(torch.tensor([[1, 2, 3]]))
    >>> signals["blocks.0.attention.rho"].shape
    torch.Size([1, 1, 1, 3])
    """
    if not hasattr(model, "running"):
        raise ConfigError(f"watch takes a model, or a module of hg.as_module; found {type(model).__name__}")
    replacements = {} if replace is None else replace
    signals = Watch(patterns, replacements, picked=Picked(positions, heads), limit_bytes=limit_bytes)
    outer = model.run.signals
    with model.running(signals=signals if outer is None else Both(outer, signals)):
        yield signals
    signals.require_found()
