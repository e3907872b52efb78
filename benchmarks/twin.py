"""The peer: the same small GPT written for autograd, as a practised torch user would write it (eager)."""

from __future__ import annotations

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
    """One training step by autograd: loss, backward, clipping, fused AdamW."""

    def __init__(self, c: GPT2Config, lr: float = 1e-3, clip: float = 1.0):
        self.net, self.clip = Twin(c), clip
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=lr, betas=(0.9, 0.99), fused=True)

    def __call__(self, x: Tensor, y: Tensor) -> float:
        self.optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.net(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        self.optimiser.step()
        return loss.item()
