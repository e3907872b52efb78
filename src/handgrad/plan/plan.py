"""What a training step will cost, before anything is allocated: the step's own code, run on tensors without memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from handgrad.core.errors import ConfigError
from handgrad.core.params import Buffer, Layout
from handgrad.core.run import Run
from handgrad.models.model import Config, Model
from handgrad.plan.cache import MOST_OPERATORS, CacheBytes, cache_of
from handgrad.plan.heap import Heap
from handgrad.plan.trace import Trace
from handgrad.train.config import DTYPES, MASTER, TrainConfig
from handgrad.train.memory import MMAP_BYTES
from handgrad.train.optimiser import State
from handgrad.train.prepare import gradient_of, prepared
from handgrad.train.step import step_on

CACHE_DTYPES = DTYPES | {"float16": torch.float16}
# A plan runs the step's code, some 20,000 operators a second, and angles of positions are real numbers.
MOST_CONTEXT, MOST_ANGLES, MOST_IN_STEP = 1 << 18, 1 << 25, 100_000
MOST_PARAMETERS = 10**13
STEPS = 3  # the first one also makes what is kept for good, such as masks, and later ones find holes of other sizes


@dataclass(frozen=True)
class Plan:
    """Bytes and FLOPs of one optimiser step.

    saved_bytes       what one micro-batch's forward pass keeps for its backward pass
    rest_bytes        what else is alive at the peak: errors on their way down, results that are being formed, masks
    peak_bytes        the most that is alive at a time, tensors of all kinds: the sum of the six above
    held_bytes        the most that the process holds for them: what the allocator cannot use again included
    forward_flops     products of the forward passes alone, logits included
    step_flops        products of the whole step
    trace             every operator of one step, for an estimate of its time
    """

    n_parameters: int
    parameter_bytes: int
    shadow_bytes: int
    gradient_bytes: int
    moment_bytes: int
    saved_bytes: int
    rest_bytes: int
    peak_bytes: int
    held_bytes: int
    forward_flops: int
    step_flops: int
    tokens_per_step: int
    cache: CacheBytes
    trace: Trace = field(repr=False, compare=False)


def plan(shape: Config, config: TrainConfig, cache_dtype: torch.dtype | None = None) -> Plan:
    """The plan of training a model of this shape as `config` asks, in windows of the whole context.

    `cache_dtype` is the type in which text would be generated; left out, the one that passes compute in.

    >>> import handgrad as hg
    >>> shape = hg.GPT2Config(vocabulary=50257, context=1024, n_layers=12, n_heads=12, d_model=768)
    >>> found = plan(shape, TrainConfig(batch_size=1))
    >>> found.n_parameters, found.parameter_bytes, found.moment_bytes // found.parameter_bytes
    (124439808, 497759232, 2)
    """
    setup = Setup(shape, config)
    with torch.no_grad():
        saved = setup.saved_bytes()
    trace = setup.stepped()
    flat = setup.model.params.flat
    shadow = setup.model.shadow
    state = {
        "parameter_bytes": flat.nbytes,
        "shadow_bytes": 0 if shadow is None else shadow.flat.nbytes,
        "gradient_bytes": setup.gradient.flat.nbytes if isinstance(setup.gradient, Buffer) else 0,
        "moment_bytes": setup.state.m.nbytes + setup.state.v.nbytes,
    }
    assert trace.heap is not None
    dtype = cache_dtype or DTYPES[config.dtype]
    return Plan(
        n_parameters=setup.model.params.layout.count,
        **state,
        saved_bytes=saved,
        rest_bytes=trace.peak - saved - sum(state.values()),
        peak_bytes=trace.peak,
        held_bytes=trace.heap.peak,
        forward_flops=setup.forward_flops,
        step_flops=trace.flops,
        tokens_per_step=config.batch_size * config.accumulate * shape.context,
        cache=cache_of(setup.model.layer, meta_ids(config.batch_size, 1), shape.context, dtype, shape.ties()),
        trace=trace,
    )


def held_bytes(shape: Config, config: TrainConfig) -> int:
    """`Plan.held_bytes` alone."""
    heap = Setup(shape, config).stepped().heap
    assert heap is not None
    return heap.peak


class Setup:
    """A training run on tensors without memory: model, optimiser and batches as `train.loop` makes them."""

    def __init__(self, shape: Config, config: TrainConfig):
        if config.compile:
            raise ConfigError("a compiled step cannot be planned: what the compiler keeps is not known beforehand")
        if config.sample_clip or config.sample_norms:
            raise ConfigError(
                "a step that looks at single samples cannot be planned: what it does depends on its numbers"
            )
        require_small(shape)
        self.shape, self.config = shape, config
        self.trace = Trace(Heap(MMAP_BYTES))
        with self.trace:
            layer = shape.layers()
            layout = Layout(layer.slots(), dict(shape.ties()))
            if layout.size > MOST_PARAMETERS:
                raise ConfigError(
                    f"this model has {layout.size:,} parameters, and at most {MOST_PARAMETERS:,} are planned; use a "
                    "smaller --width or fewer --layers"
                )
            params = layout.zeros(MASTER[config.dtype], "meta")
            self.model = prepared(Model(shape, layer, params), config)
            self.state = State.zeros(params.flat, config.optimiser)
            self.gradient = gradient_of(self.model, config)
        self.forward_flops = self.counted()
        with self.trace:
            rows = [meta_ids(config.batch_size, shape.context) for _ in range(2 * config.accumulate)]
            self.batches = list(zip(rows[::2], rows[1::2], strict=True))

    def stepped(self) -> Trace:
        """The trace of one step, in which everything made before is alive."""
        self.trace.reset_peak()
        for step in range(1, STEPS + 1):
            self.trace.products.clear()
            self.trace.moved.clear()
            with self.trace:
                step_on(self.model, self.batches, self.gradient, self.state, 1e-3, self.config, step)
        return self.trace

    def saved_bytes(self) -> int:
        """Bytes that a forward pass leaves alive for its backward pass, beyond what was there before it."""
        tokens, targets = self.batches[0]
        run = Run(implementation=self.config.implementation, seed=0)
        with Trace() as trace:
            for _ in range(2):  # after the first pass, masks are there
                self.model.pending = None
                trace.see(self.model.params.flat, tokens, targets)
                before = trace.live
                self.model.loss(tokens, targets, n_valid=tokens.numel(), run=run)
            saved = trace.live - before
            self.model.pending = None
        return saved

    def counted(self) -> int:
        """FLOPs of the products of all forward passes of a step, logits included.

        Raises ConfigError where the step has more operators than can be planned in a time that people wait.
        """
        passes = self.config.accumulate
        with torch.no_grad(), Trace(most=MOST_OPERATORS) as trace:
            tokens = meta_ids(self.config.batch_size, self.shape.context)
            self.model(tokens, Run(implementation=self.config.implementation))
        if trace.n_operators * passes > MOST_IN_STEP:
            raise ConfigError(
                f"this step has {passes:,} passes of {trace.n_operators:,} operators, too many to plan; use "
                f"--accumulate {max(MOST_IN_STEP // trace.n_operators, 1)} or less, which hardly changes the memory"
            )
        return trace.flops * passes


def require_small(shape: Config) -> None:
    """ConfigError for windows whose positions alone would fill the memory."""
    width = getattr(shape, "head", 0)
    if shape.context > (most := min(MOST_CONTEXT, MOST_ANGLES // max(width, 1))):
        of = f" in heads {width} wide" if width else ""
        raise ConfigError(
            f"the context is {shape.context:,} tokens, and windows of at most {most:,}{of} are planned; use a shorter "
            "--context"
        )


def meta_ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device="meta")
