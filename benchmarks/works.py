"""Training steps that are measured: handgrad's, and transformers'. The autograd twin is in `twin.py`.

Each takes (x, y), trains on them and gives the loss and the gradient's norm from before clipping, so that a measurement
can show that all of them did the same work.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from benchmarks.process import Unavailable
from handgrad import GPT2Config, build
from handgrad.models.model import Model
from handgrad.train.config import MASTER, TrainConfig
from handgrad.train.memory import keep_freed_memory
from handgrad.train.optimiser import State
from handgrad.train.prepare import gradient_of, prepared
from handgrad.train.step import step_on


def configured(**asked: Any) -> TrainConfig:
    """A TrainConfig, or Unavailable where it has no such field.

    >>> configured(batch_size=2).batch_size
    2
    """
    missing = [name for name in asked if name not in {field.name for field in fields(TrainConfig)}]
    if missing:
        raise Unavailable(f"TrainConfig has no field {', '.join(missing)} yet")
    return TrainConfig(**asked)


class HandStep:
    """One training step as `handgrad train` takes it."""

    def __init__(self, shape: GPT2Config, config: TrainConfig | None = None):
        keep_freed_memory()
        self.config = config or TrainConfig()
        self.model = prepared(build(shape, seed=0, dtype=MASTER[self.config.dtype]), self.config)
        self.gradient = gradient_of(self.model, self.config)
        self.state = State.zeros(self.model.params.flat)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        did = step_on(self.model, [(x, y)], self.gradient, self.state, 1e-3, self.config, self.state.step + 1)
        return did.loss_nats, did.grad_norm


class TransformersStep:
    """The same by transformers' GPT2LMHeadModel with torch's fused attention, its own loss, and fused AdamW."""

    def __init__(self, c: GPT2Config, lr: float = 1e-3, clip: float = 1.0, *, bf16: bool = False):
        import transformers

        self.bf16, self.clip = bf16, clip
        self.net = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=c.vocabulary,
                n_positions=c.context,
                n_layer=c.n_layers,
                n_head=c.n_heads,
                n_embd=c.d_model,
                n_inner=c.d_inner,
                attn_pdrop=0.0,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                use_cache=False,
                attn_implementation="sdpa",
            )
        ).train()
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=lr, betas=(0.9, 0.99), fused=True)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        """`y` must be x shifted by one: transformers shifts the labels itself."""
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.net(input_ids=x, labels=x).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimiser.step()
        return loss.item(), norm.item()

    @torch.no_grad()
    def take(self, model: Model) -> None:
        """The weights of a handgrad model."""
        p, net = model.params, self.net.transformer
        net.wte.weight.copy_(p["embedding.token.w_emb"])
        net.wpe.weight.copy_(p["embedding.position.w_pos"])
        pairs = [(net.ln_f, "norm")]
        for i, block in enumerate(net.h):
            at = f"blocks.{i}."
            pairs += [(block.ln_1, at + "norm_1"), (block.ln_2, at + "norm_2"), (block.mlp.c_fc, at + "mlp.up")]
            pairs += [(block.attn.c_proj, at + "attention.out"), (block.mlp.c_proj, at + "mlp.down")]
            for leaf, theirs in (("w", block.attn.c_attn.weight), ("b", block.attn.c_attn.bias)):
                theirs.copy_(torch.cat([p[f"{at}attention.{n}.{leaf}"] for n in ("query", "key", "value")], -1))
        for layer, ours in pairs:
            w, b = ("gamma", "beta") if "norm" in ours else ("w", "b")
            layer.weight.copy_(p[f"{ours}.{w}"])
            layer.bias.copy_(p[f"{ours}.{b}"])


def shifted(vocabulary: int, batch: int, tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids ~ (batch, tokens), and what each should predict: the next; the last predicts nothing (-1).

    >>> [ids.tolist() for ids in shifted(9, 1, 3)]
    [[[8, 6, 5]], [[6, 5, -1]]]
    """
    x = torch.randint(0, vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(seed))
    return x, torch.cat([x[:, 1:], torch.full((batch, 1), -1)], 1)
