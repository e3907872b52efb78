"""The peer: the same small GPT written for autograd, as a practised torch user would write it (eager)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from handgrad import GPT2Config


class Block(nn.Module):
    def __init__(self, c: GPT2Config):
        super().__init__()
        self.heads = c.n_heads
        self.norm_1 = nn.LayerNorm(c.d_model, bias=c.bias)
        self.norm_2 = nn.LayerNorm(c.d_model, bias=c.bias)
        self.qkv = nn.Linear(c.d_model, 3 * c.d_model, bias=c.bias)
        self.out = nn.Linear(c.d_model, c.d_model, bias=c.bias)
        self.up = nn.Linear(c.d_model, c.d_inner, bias=c.bias)
        self.down = nn.Linear(c.d_inner, c.d_model, bias=c.bias)

    def forward(self, a: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in self.qkv(self.norm_1(a)).chunk(3, dim=-1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        a = a + self.out(heads.transpose(1, 2).flatten(2))
        return a + self.down(F.gelu(self.up(self.norm_2(a)), approximate="tanh"))


class Twin(nn.Module):
    def __init__(self, c: GPT2Config):
        super().__init__()
        self.token = nn.Embedding(c.vocabulary, c.d_model)
        self.position = nn.Embedding(c.context, c.d_model)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.norm = nn.LayerNorm(c.d_model, bias=c.bias)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=c.first_std)

    def forward(self, ids: Tensor) -> Tensor:
        a = self.token(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            a = block(a)
        return F.linear(self.norm(a), self.token.weight)


class TwinStep:
    """One training step by autograd: loss, backward, clipping, fused AdamW.

    bf16 is torch's autocast over the forward pass and the loss; `compiled` puts torch.compile around both.
    """

    def __init__(
        self, c: GPT2Config, lr: float = 1e-3, clip: float = 1.0, *, bf16: bool = False, compiled: bool = False
    ):
        self.net, self.clip, self.bf16 = Twin(c), clip, bf16
        self.loss = torch.compile(self.eager_loss) if compiled else self.eager_loss
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=lr, betas=(0.9, 0.99), fused=True)

    def eager_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x).flatten(0, 1), y.flatten(), ignore_index=-1)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Loss and the gradient's norm before clipping."""
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.loss(x, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimiser.step()
        return loss.item(), norm.item()

    @torch.no_grad()
    def take(self, p: Mapping[str, Tensor]) -> None:
        """The weights of a handgrad model, so that both do the same work on the same numbers."""
        for twin, ours in {"token": "embedding.token.w_emb", "position": "embedding.position.w_pos"}.items():
            getattr(self.net, twin).weight.copy_(p[ours])
        take_layer(self.net.norm, p, "norm", ("gamma", "beta"))
        for i, block in enumerate(self.net.blocks):
            at = f"blocks.{i}."
            for name in ("norm_1", "norm_2"):
                take_layer(getattr(block, name), p, at + name, ("gamma", "beta"))
            for name, ours in {"out": "attention.out", "up": "mlp.up", "down": "mlp.down"}.items():
                take_layer(getattr(block, name), p, at + ours, ("w", "b"))
            block.qkv.weight.copy_(torch.cat([p[f"{at}attention.{n}.w"].mT for n in ("query", "key", "value")]))
            if block.qkv.bias is not None:
                block.qkv.bias.copy_(torch.cat([p[f"{at}attention.{n}.b"] for n in ("query", "key", "value")]))


def take_layer(layer: nn.Module, p: Mapping[str, Tensor], at: str, names: tuple[str, str]) -> None:
    """torch keeps a matrix as (outputs, inputs), handgrad as (inputs, outputs)."""
    layer.weight.copy_(p[f"{at}.{names[0]}"].mT if names[0] == "w" else p[f"{at}.{names[0]}"])
    if layer.bias is not None:
        layer.bias.copy_(p[f"{at}.{names[1]}"])
