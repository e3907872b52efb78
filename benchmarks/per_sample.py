"""Per-sample gradient norms of GPT-2 124M, batch 4 x 128 in float32: tokens a second and peak memory of a whole step.

The plain step, the same with every sample's norm measured, the same with every sample clipped, and opacus, which makes
per-sample gradients of transformers' GPT-2 (each `Conv1D` as a `Linear`, which it knows) and clips them. Each has a
process of its own and takes turns with the others. The aims: 0.8 of the plain step's tokens a second, 1.3 of its
memory. The first step's norms must agree with those of samples passed one by one.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.common import quartiles, write
from benchmarks.process import answer, in_turns, memory_bytes, refusal
from benchmarks.works import HandStep, configured, shifted
from handgrad import GPT2Config, build
from handgrad.models.model import Model
from handgrad.train.step import step_on

SHAPES = {
    "124M": GPT2Config(vocabulary=50257, context=1024, n_layers=12, n_heads=12, d_model=768),
    "tiny": GPT2Config(vocabulary=211, context=32, n_layers=2, n_heads=2, d_model=24),
}
SIZES = {"124M": (4, 128), "tiny": (3, 16)}
TIMED, ENOUGH_S = 3, 40
CLIP = 1.0
GAP = 1e-4  # of norms in float32, relatively


class Sampled(HandStep):
    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        did = step_on(self.model, [(x, y)], self.gradient, self.state, 1e-3, self.config, self.state.step + 1)
        return did.loss_nats, did.samples.norm_max if did.samples else 0.0


def ours(size: str, **config: Any) -> Sampled:
    return Sampled(SHAPES[size], configured(batch_size=SIZES[size][0], **config))


class Opacus:
    """transformers' GPT-2 in opacus's GradSampleModule; each sample's gradient is scaled to CLIP, then fused AdamW.

    The tied head is untied: opacus would add up two gradients of one weight that it keeps apart.
    """

    def __init__(self, size: str):
        import transformers
        from opacus import GradSampleModule
        from transformers.pytorch_utils import Conv1D

        c = SHAPES[size]
        net = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=c.vocabulary,
                n_positions=c.context,
                n_layer=c.n_layers,
                n_head=c.n_heads,
                n_embd=c.d_model,
                attn_pdrop=0.0,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                use_cache=False,
                tie_word_embeddings=False,
            )
        ).train()
        for part in list(net.modules()):
            for name, child in list(part.named_children()):
                if isinstance(child, Conv1D):
                    n, m = child.weight.shape
                    linear = torch.nn.Linear(n, m)
                    linear.weight.data.copy_(child.weight.T)
                    linear.bias.data.copy_(child.bias)
                    setattr(part, name, linear)
        warnings.filterwarnings("ignore")
        self.net = GradSampleModule(net)
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=1e-3, fused=True)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        self.optimiser.zero_grad(set_to_none=True)
        where = torch.arange(x.shape[1]).expand_as(x)  # opacus needs the samples' axis here too
        logits = self.net(input_ids=x, position_ids=where).logits
        losses = torch.nn.functional.cross_entropy(logits.mT, y, ignore_index=-1, reduction="none")
        loss = (losses.sum(1) / (y >= 0).sum(1)).mean()
        loss.backward()
        samples = [(p, p.grad_sample) for p in self.net.parameters() if p.requires_grad]
        norms = torch.stack([g.flatten(1).norm(dim=1) for _, g in samples]).norm(dim=0)
        shrink = (CLIP / norms).clamp(max=1.0) / len(x)
        for p, g in samples:
            p.grad, p.grad_sample = torch.tensordot(shrink, g, 1), None
        self.optimiser.step()
        return loss.item(), norms.max().item()


WORKS: dict[str, Callable[[str], Callable[..., tuple[float, float]]]] = {
    "plain step": ours,
    "step with norms": partial(ours, sample_norms=True),
    "step with every sample clipped": partial(ours, sample_clip=CLIP),
    "opacus": Opacus,
}


def alone(model: Model, x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest norm of samples that are passed one by one."""
    norms = []
    for b in range(len(x)):
        model.loss(x[b : b + 1], y[b : b + 1])
        norms.append(float(model.backward().flat.double().norm()))
    return max(norms)


def one(name: str, size: str) -> dict[str, Any]:
    if name == "alone":
        model = build(SHAPES[size], seed=0)
        return {"norm": alone(model, *shifted(model.config.vocabulary, *SIZES[size]))}
    base_bytes = memory_bytes("VmRSS")
    step = WORKS[name](size)
    x, y = shifted(SHAPES[size].vocabulary, *SIZES[size])
    loss, norm = step(x, y)
    seconds: list[float] = []
    while len(seconds) < TIMED and sum(seconds) < ENOUGH_S:
        start = time.perf_counter()
        step(x, y)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "peak_bytes": memory_bytes(), "base_bytes": base_bytes, "loss": loss, "norm": norm}


def row(name: str, answers: list[dict[str, Any]], size: str) -> dict[str, object]:
    work = f"GPT-2 {size} per-sample norms, batch {' x '.join(map(str, SIZES[size]))}, float32"
    if why := refusal(answers):
        return {"work": work, "who": name, "unavailable": why}
    batch, tokens = SIZES[size]
    rates = [batch * tokens / s for found in answers for s in found["seconds"]]
    low, middle, high = (round(rate, 1) for rate in quartiles(rates))
    return {
        "work": work,
        "who": name,
        "tokens_per_s": middle,
        "quartile_low": low,
        "quartile_high": high,
        "steps": len(rates),
        "peak_bytes": int(median(found["peak_bytes"] for found in answers)),
        "base_bytes": int(median(found["base_bytes"] for found in answers)),
        "first_loss": answers[0]["loss"],
        "largest_norm": answers[0]["norm"] or "",
        "unavailable": "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=SHAPES, default="124M")
    parser.add_argument("--one", choices=[f"{name}, {size}" for name in (*WORKS, "alone") for size in SHAPES])
    options = parser.parse_args()
    if options.one:
        name, _, size = options.one.rpartition(", ")
        answer(partial(one, name, size))
        return 0
    size = options.size
    found = in_turns("benchmarks.per_sample", [f"{name}, {size}" for name in WORKS], options.rounds)
    right = in_turns("benchmarks.per_sample", [f"alone, {size}"], 1)[f"alone, {size}"][0]["norm"]
    rows = [row(name.rpartition(", ")[0], answers, size) for name, answers in found.items()]
    plain, wrong = rows[0], []
    for r in rows:
        if r["unavailable"]:
            print(f"{r['who']:32} not measured: {r['unavailable']}")
            continue
        r["speed_to_plain"] = round(r["tokens_per_s"] / plain["tokens_per_s"], 3)
        r["memory_to_plain"] = round(r["peak_bytes"] / plain["peak_bytes"], 3)
        print(
            f"{r['who']:32} {r['tokens_per_s']:8.1f} tokens/s, {r['speed_to_plain']:.2f} of plain;  "
            f"{r['peak_bytes'] / 1e9:6.2f} GB, {r['memory_to_plain']:.2f} of plain"
        )
        if r["who"].startswith("step") and abs(r["largest_norm"] / right - 1) > GAP:
            wrong.append(f"{r['who']}: the largest norm is {r['largest_norm']}, and {right} of samples alone")
    print(*wrong, sep="\n", end="")
    if size == "124M":
        write("per_sample", rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
