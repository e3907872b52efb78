"""One LoRA step of GPT-2 124M, r = 8 on its attention (query, key, value), batch 2 x 1024: ours and peft's.

Forward pass, loss, backward pass, clipping to 1.0 and fused AdamW of the adapter alone, on random weights. Each work
has processes of its own and takes turns with the others; time and memory come from the same one. All start from the
same weights and see the same batch, and the first step's loss and gradient norm must agree: peft's c_attn has one A for
query, key and value, and so have ours. B is drawn at random, for at B = 0 nothing would reach A.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.common import quartiles, write
from benchmarks.process import answer, in_turns, memory_bytes, refusal
from benchmarks.works import TransformersStep, configured, shifted
from handgrad import GPT2Config, build
from handgrad.adapt import LoRA, adapted, base_of
from handgrad.models.model import Model
from handgrad.train.config import MASTER, TrainConfig
from handgrad.train.memory import keep_freed_memory
from handgrad.train.optimiser import State
from handgrad.train.prepare import gradient_of, prepared
from handgrad.train.step import step_on

SHAPE = GPT2Config(vocabulary=50257, context=1024, n_layers=12, n_heads=12, d_model=768)
BATCH, TOKENS = 2, 1024
SMALL = "HANDGRAD_BENCH_SMALL"  # set, it makes all of this tiny: to try it out
if os.environ.get(SMALL):
    SHAPE, TOKENS = GPT2Config(vocabulary=211, context=64, n_layers=2, n_heads=2, d_model=32), 64
WORK = f"LoRA step of {'a tiny GPT-2' if os.environ.get(SMALL) else 'GPT-2 124M'}, r 8, batch {BATCH} x {TOKENS}"
CONFIG = LoRA(rank=8, alpha=16)
TIMED, ENOUGH_S = 3, 40
RIGHT = "peft float32"
# How far the first loss and gradient norm may lie from peft's in float32, relatively, as in gpt2_step.
LOSS_GAP = {"float32": 1e-5, "bfloat16": 2**-8}
NORM_GAP = {"float32": 1e-5, "bfloat16": 2**-5}


def start(dtype: torch.dtype = torch.float32) -> Model:
    """The model and its adapter that all works begin with."""
    model = adapted(build(SHAPE, seed=0, dtype=dtype), CONFIG)
    for i, (name, x) in enumerate(model.params.items()):
        if name.endswith("B"):
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(i)) * 0.02)
    return model


class LoraStep:
    """One step as `handgrad finetune` takes it."""

    def __init__(self, config: TrainConfig):
        keep_freed_memory()
        self.config = config
        self.model = prepared(start(MASTER[config.dtype]), config)
        self.gradient = gradient_of(self.model, config)
        self.state = State.zeros(self.model.params.flat)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        did = step_on(self.model, [(x, y)], self.gradient, self.state, 1e-3, self.config, self.state.step + 1)
        return did.loss_nats, did.grad_norm


class PeftStep(TransformersStep):
    """The same by peft on transformers' GPT2LMHeadModel; under autocast, or on bfloat16 weights, if asked for."""

    def __init__(self, *, bf16: bool = False, weights: torch.dtype = torch.float32):
        import peft

        super().__init__(SHAPE, bf16=bf16)
        model = start()
        self.take(base_of(model))
        self.net.to(weights)
        how = {"r": CONFIG.rank, "lora_alpha": CONFIG.alpha, "target_modules": ["c_attn"], "fan_in_fan_out": True}
        self.net = peft.get_peft_model(self.net, peft.LoraConfig(task_type="CAUSAL_LM", **how)).train()
        self.take_adapter(model)
        trained = [p for p in self.net.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.99), fused=True)

    @torch.no_grad()
    def take_adapter(self, model: Model) -> None:
        named = dict(self.net.named_parameters())
        for i in range(SHAPE.n_layers):
            at, theirs = f"blocks.{i}.attention.", f"base_model.model.transformer.h.{i}.attn.c_attn.lora_"
            named[f"{theirs}A.default.weight"].copy_(model.params[f"{at}query.lora.A"].mT)
            B = torch.cat([model.params[f"{at}{branch}.lora.B"] for branch in ("query", "key", "value")], 1)
            named[f"{theirs}B.default.weight"].copy_(B.mT)


def ours(**config: Any) -> LoraStep:
    return LoraStep(configured(batch_size=BATCH, **config))


WORKS: dict[str, Callable[[], Callable[..., tuple[float, float]]]] = {
    "handgrad float32": partial(ours, dtype="float32"),
    "handgrad float32, recompute cheap": partial(ours, dtype="float32", recompute="cheap"),
    "handgrad float32, recompute blocks": partial(ours, dtype="float32", recompute="blocks"),
    "handgrad bfloat16": partial(ours, dtype="bfloat16"),
    "handgrad bfloat16, recompute cheap": partial(ours, dtype="bfloat16", recompute="cheap"),
    "handgrad compiled bfloat16": partial(ours, dtype="bfloat16", recompute="cheap", compile=True),
    "peft float32": partial(PeftStep),
    "peft autocast bfloat16": partial(PeftStep, bf16=True),
    "peft on bfloat16 weights": partial(PeftStep, weights=torch.bfloat16),
}


def one(name: str) -> dict[str, Any]:
    """One work in this process: seconds of each timed step, peak memory, and what the first step computed."""
    base_bytes = memory_bytes("VmRSS")
    step = WORKS[name]()
    x, y = shifted(SHAPE.vocabulary, BATCH, TOKENS)
    loss, norm = step(x, y)  # warms up; a compiled work compiles here
    seconds: list[float] = []
    while len(seconds) < TIMED and sum(seconds) < ENOUGH_S:
        began = time.perf_counter()
        step(x, y)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "peak_bytes": memory_bytes(), "base_bytes": base_bytes, "loss": loss, "norm": norm}


def row(name: str, answers: list[dict[str, Any]]) -> dict[str, object]:
    """A CSV row of all rounds of one work.

    >>> row("a", [{"seconds": [1.0], "peak_bytes": 5, "base_bytes": 1, "loss": 1.0, "norm": 2.0}])["peak_bytes"]
    5
    """
    if why := refusal(answers):
        return {"work": WORK, "who": name, "unavailable": why}
    low, middle, high = (
        round(rate, 1) for rate in quartiles([BATCH * TOKENS / s for a in answers for s in a["seconds"]])
    )
    return {
        "work": WORK,
        "who": name,
        "tokens_per_s": middle,
        "quartile_low": low,
        "quartile_high": high,
        "steps": sum(len(a["seconds"]) for a in answers),
        "peak_bytes": int(median(a["peak_bytes"] for a in answers)),
        "base_bytes": int(median(a["base_bytes"] for a in answers)),
        "first_loss": answers[0]["loss"],
        "first_norm": answers[0]["norm"],
        "unavailable": "",
    }


def differences(rows: list[dict[str, Any]]) -> list[str]:
    """Works whose first loss or gradient norm is not that of peft in float32.

    >>> same = {"who": RIGHT, "first_loss": 2.0, "first_norm": 1.0}
    >>> differences([same, {"who": "a float32", "first_loss": 2.1, "first_norm": 1.0}])
    ['a float32: first_loss 2.1, and peft float32 has 2.0']
    """
    measured = {r["who"]: r for r in rows if not r.get("unavailable")}
    if RIGHT not in measured:
        return []
    return [
        f"{who}: {figure} {r[figure]}, and {RIGHT} has {measured[RIGHT][figure]}"
        for who, r in measured.items()
        for figure, gaps in (("first_loss", LOSS_GAP), ("first_norm", NORM_GAP))
        if abs(r[figure] / measured[RIGHT][figure] - 1) > gaps["bfloat16" if "bfloat16" in who else "float32"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=WORKS)
    options = parser.parse_args()
    if options.one:
        answer(partial(one, options.one))
        return 0
    rows = [row(name, answers) for name, answers in in_turns("benchmarks.lora", tuple(WORKS), options.rounds).items()]
    for r in rows:
        if r["unavailable"]:
            print(f"{r['who']:36} not measured: {r['unavailable']}")
        else:
            print(
                f"{r['who']:36} {r['tokens_per_s']:8.1f} tokens/s ({r['quartile_low']} to {r['quartile_high']})  "
                f"{int(r['peak_bytes']) / 1e9:5.2f} GB  first loss {r['first_loss']:.6f}, norm {r['first_norm']:.5f}"
            )
    wrong = differences(rows)
    for text in wrong:
        print(f"not the same work: {text}")
        next(r for r in rows if text.startswith(f"{r['who']}:"))["unavailable"] = f"not the same work: {text}"
    if not os.environ.get(SMALL):
        write("lora", rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
