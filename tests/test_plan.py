"""A plan is what happens: bytes saved, bytes alive and FLOPs equal those of the same step on real numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from handgrad.core import Layout, Run
from handgrad.core.errors import ConfigError
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.llama import LlamaConfig
from handgrad.models.model import Model
from handgrad.plan.cache import cache_of, classic
from handgrad.plan.fits import bytes_of, fits
from handgrad.plan.plan import meta_ids, plan
from handgrad.plan.trace import Trace
from handgrad.train.config import MASTER, TrainConfig
from handgrad.train.optimiser import State
from handgrad.train.prepare import prepared
from handgrad.train.step import step_on

SHAPE = GPT2Config(vocabulary=211, context=64, n_layers=2, n_heads=2, d_model=48)
CONFIGURATIONS: dict[str, tuple[Any, TrainConfig]] = {
    "float32": (SHAPE, TrainConfig(batch_size=5)),
    "explicit": (SHAPE, TrainConfig(batch_size=5, implementation="explicit")),
    "float64, two micro-batches": (SHAPE, TrainConfig(batch_size=3, accumulate=2, dtype="float64")),
    "bfloat16": (SHAPE, TrainConfig(batch_size=5, dtype="bfloat16")),
    "bfloat16, cheap": (SHAPE, TrainConfig(batch_size=4, dtype="bfloat16", recompute="cheap")),
    "blocks": (SHAPE, TrainConfig(batch_size=5, recompute="blocks")),
    "inside": (SHAPE, TrainConfig(batch_size=5, update="inside")),
    "dropout, no offsets": (GPT2Config(97, 40, 3, 1, 32, dropout=0.1, bias=False), TrainConfig(batch_size=7)),
    "long": (GPT2Config(31, 300, 1, 2, 16), TrainConfig(batch_size=2)),
    "llama": (LlamaConfig(vocabulary=101, context=48, n_layers=2, n_heads=4, n_kv_heads=2, d_model=32), TrainConfig()),
}


def trainer(shape: Any, config: TrainConfig) -> tuple[Model, Callable[[], None]]:
    """A model with numbers, and a step of its training as `train.loop` takes it."""
    layer = shape.layers()
    layout = Layout(layer.slots(), dict(shape.ties()))
    params = layout.draw(0, MASTER[config.dtype])
    model, state = prepared(Model(shape, layer, params), config), State.zeros(params.flat)
    gradient = layout.zeros(params.flat.dtype) if config.update == "after" else None
    size = (config.accumulate, config.batch_size, shape.context)
    x, y = (torch.randint(0, shape.vocabulary, size, generator=torch.Generator().manual_seed(i)) for i in range(2))
    batches = [(a.clone(), b.clone()) for a, b in zip(x, y, strict=True)]

    def step() -> None:
        step_on(model, batches, gradient, state, 1e-3, config, state.step + 1)

    return model, step


def storages(x: Any) -> Iterator[tuple[int, int]]:
    """Address and bytes of the memory behind every tensor inside `x`."""
    if isinstance(x, torch.Tensor):
        yield x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
    elif isinstance(x, dict):
        for item in x.values():
            yield from storages(item)
    elif isinstance(x, list | tuple):
        for item in x:
            yield from storages(item)


def allocated(step: Callable[[], None]) -> int:
    """The most bytes that torch's allocator gave out at a time during `step`, beyond those from before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    found: list[tuple[int, int, int]] = []

    def walk(events: Any) -> None:
        for event in events:
            if event.typed[0] == torch._C._profiler._EventType.Allocation:
                found.append((event.start_time_ns, event.typed[1].alloc_size, event.typed[1].total_allocated))
            walk(event.children)

    walk(profiled.profiler.kineto_results.experimental_event_tree())
    found.sort()
    return max(total for _, _, total in found) - (found[0][2] - found[0][1])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_saved_bytes_are_those_of_the_tensors_that_are_kept(name: str) -> None:
    shape, config = CONFIGURATIONS[name]
    model, _ = trainer(shape, config)
    tokens = torch.zeros(config.batch_size, shape.context, dtype=torch.int64)
    targets = torch.ones_like(tokens)
    run = Run(implementation=config.implementation, seed=0)
    with torch.no_grad():
        for _ in range(2):
            model.loss(tokens, targets, n_valid=tokens.numel(), run=run)
    assert model.pending is not None
    numbers = model.params if model.shadow is None else model.shadow
    before = dict(storages([model.params.flat, numbers.flat, tokens, targets]))
    kept = dict(storages([model.pending.loss, model.pending.saved, model.pending.saved_loss]))
    assert plan(shape, config).saved_bytes == sum(nbytes for key, nbytes in kept.items() if key not in before) > 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_peak_and_the_flops_are_those_of_a_real_step(name: str) -> None:
    shape, config = CONFIGURATIONS[name]
    _, step = trainer(shape, config)
    planned = plan(shape, config)
    with Trace() as real:
        step()
        real.products.clear()
        real.reset_peak()
        step()
    assert real.peak == planned.peak_bytes
    assert real.flops == planned.step_flops
    assert real.products == planned.trace.products


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # which the switch of oneDNN warns of
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_peak_is_what_torch_allocates(name: str) -> None:
    """An oracle that knows nothing of traces: the events of torch's own allocator, inside operators too.

    Without oneDNN, whose products in bfloat16 take a workspace that differs from processor to processor.
    """
    shape, config = CONFIGURATIONS[name]
    _, step = trainer(shape, config)
    with torch.backends.mkldnn.flags(enabled=False):
        step()
        with Trace() as real:
            step()
            before = real.live
        assert allocated(step) == plan(shape, config).peak_bytes - before


def test_the_products_of_a_linear_network_by_hand() -> None:
    shape = GPT2Config(vocabulary=7, context=3, n_layers=1, n_heads=1, d_model=5, d_mlp=11)
    planned = plan(shape, TrainConfig(batch_size=2, implementation="explicit"))
    rows = 2 * 3
    linear = 2 * rows * (4 * 5 * 5 + 2 * 5 * 11 + 5 * 7)
    attention = 2 * 2 * (2 * 3 * 3 * 5)
    assert planned.forward_flops == linear + attention
    assert planned.step_flops == 3 * planned.forward_flops


def test_the_classic_cache() -> None:
    full, low = classic(), classic(rank=200)
    assert (full.keys, low.keys) == (5000 * 50 * 20 * 1000 * 2, 5000 * 50 * 20 * 200 * 2) == (10**10, 2 * 10**9)
    assert full.values == low.values == 10**10


def test_a_cache_has_the_bytes_of_the_real_one() -> None:
    from handgrad.generate.cache import KVCache

    shape = CONFIGURATIONS["llama"][0]
    cache = KVCache(48)
    layer = shape.layers()
    run = Run(cache=cache, implementation="explicit")
    layer.forward(Layout(layer.slots()).draw(0).tree, torch.zeros(3, 1, dtype=torch.int64), run)
    planned = cache_of(shape.layers(), meta_ids(3, 1), 48, torch.float32)
    assert planned.total == cache.nbytes
    assert planned.per_token == 2 * 2 * 2 * 8 * 4  # keys and values, layers, kv heads, their width, float32


@pytest.mark.parametrize("search", ["batch-size", "context"])
def test_what_fits_is_the_largest_that_does(search: str) -> None:
    found = fits(SHAPE, TrainConfig(batch_size=2), 12_000_000, search, base_bytes=1_000_000)
    assert found.held_bytes <= 12_000_000 < found.next_held_bytes
    assert found.next_value == found.value + 1


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--fits 1.00 kB is too little: --batch-size 1 already takes \d"):
        fits(SHAPE, TrainConfig(), 1000)
    with pytest.raises(ConfigError, match="--search is 'width'"):
        fits(SHAPE, TrainConfig(), 10**9, "width")
    for text in ("", "GB", "0GB", "-1GB", "8 zb", "1e9"):
        with pytest.raises(ConfigError, match="must be a size such as 8GB"):
            bytes_of(text)


def test_a_compiled_step_is_not_planned() -> None:
    with pytest.raises(ConfigError, match="a compiled step cannot be planned"):
        plan(SHAPE, TrainConfig(compile=True))


def test_nothing_is_allocated() -> None:
    """A plan of a step that few machines of this size would like to take: over 24 GB."""
    shape = GPT2Config(vocabulary=7, context=5, n_layers=2, n_heads=20, d_model=8000)
    assert plan(shape, TrainConfig(batch_size=1)).peak_bytes > 24 * 10**9
