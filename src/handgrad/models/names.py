"""Where each parameter lies in the files of other libraries: tables of names, read in both directions.

Theirs are mostly (n_out, n_in), ours (n_in, n_out). GPT-2's files hold (n_in, n_out) already, with w_q, w_k and w_v
side by side in one matrix. GGUF and llama2.c order the features of a query or key head for interleaved rotary pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from handgrad.layers.rope import to_half_split, to_interleaved
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.llama import LlamaConfig

BRANCHES = ("query", "key", "value")

GPT2_WHOLE = {
    "embedding.token.w_emb": "wte.weight",
    "embedding.position.w_pos": "wpe.weight",
    "norm.gamma": "ln_f.weight",
    "norm.beta": "ln_f.bias",
}
GPT2_BLOCK = {
    "norm_1": "ln_1",
    "norm_2": "ln_2",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
LLAMA_WHOLE = {"embedding.token.w_emb": "embed_tokens.weight", "norm.gamma": "norm.weight"}
LLAMA_BLOCK = {
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
GGUF_WHOLE = {
    "embedding.token.w_emb": "token_embd.weight",
    "norm.gamma": "output_norm.weight",
    "head.w_emb": "output.weight",
}
GGUF_BLOCK = {
    "norm_1": "attn_norm",
    "norm_2": "ffn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.out": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
LEAVES = {"w": "weight", "gamma": "weight", "b": "bias", "beta": "bias"}
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Piece:
    """One parameter in a file: the tensor's name and shape there, and how to get ours out of it.

    turned    it is (n_out, n_in) there
    columns   ours are only these columns of it
    heads     its features are ordered for interleaved pairs, in so many heads

    >>> import torch
    >>> Piece("c_attn.weight", (4, 12), columns=(4, 8)).ours(torch.zeros(4, 12)).shape
    torch.Size([4, 4])
    """

    theirs: str
    shape: tuple[int, ...]
    turned: bool = False
    columns: tuple[int, int] | None = None
    heads: int = 0

    def ours(self, x: Tensor) -> Tensor:
        x = x.mT if self.turned else x
        x = x[..., slice(*self.columns)] if self.columns else x
        return to_half_split(x, self.heads) if self.heads else x

    def back(self, x: Tensor) -> Tensor:
        """What `ours` undoes; of a piece with columns, these alone."""
        x = to_interleaved(x, self.heads) if self.heads else x
        return x.mT if self.turned else x


Shapes = Mapping[str, tuple[int, ...]]


def gpt2_pieces(c: GPT2Config, shapes: Shapes, prefix: str = "transformer.") -> dict[str, Piece]:
    """Our name -> piece, for GPT-2's files; `shapes` are those of every parameter that is stored."""
    found = {}
    for name, shape in shapes.items():
        if name == "head.w_emb":
            found[name] = Piece(HEAD, shape)
            continue
        theirs = prefix + named(name, GPT2_WHOLE, GPT2_BLOCK, "h")
        branch = name.split(".")[-2]
        columns = None
        if branch in BRANCHES:
            first = BRANCHES.index(branch) * c.d_model
            columns, shape = (first, first + c.d_model), (*shape[:-1], 3 * shape[-1])
        found[name] = Piece(theirs, shape, columns=columns)
    return found


def llama_pieces(c: LlamaConfig, shapes: Shapes, prefix: str = "model.") -> dict[str, Piece]:
    """Our name -> piece, for files of the Llama family in Hugging Face's names: half-split pairs, as ours."""
    found = {}
    for name, shape in shapes.items():
        theirs = HEAD if name == "head.w_emb" else prefix + named(name, LLAMA_WHOLE, LLAMA_BLOCK, "layers")
        turned = name.endswith(".w")
        found[name] = Piece(theirs, shape[::-1] if turned else shape, turned)
    return found


def gguf_pieces(c: LlamaConfig, shapes: Shapes, interleaved: bool) -> dict[str, Piece]:
    """Our name -> piece, for GGUF; `interleaved` where its queries and keys are ordered that way."""
    sizes = {"query": c.n_heads, "key": c.n_kv_heads or c.n_heads} if interleaved else {}
    found = {}
    for name, shape in shapes.items():
        turned, branch = name.endswith(".w"), name.split(".")[-2]
        theirs = named(name, GGUF_WHOLE, GGUF_BLOCK, "blk")
        found[name] = Piece(theirs, shape[::-1] if turned else shape, turned, heads=sizes.get(branch, 0))
    return found


def named(name: str, whole: Mapping[str, str], block: Mapping[str, str], blocks: str) -> str:
    """Their name of our parameter.

    >>> named("blocks.3.mlp.up.w", LLAMA_WHOLE, LLAMA_BLOCK, "layers")
    'layers.3.mlp.up_proj.weight'
    """
    if name in whole:
        return whole[name]
    _, i, rest = name.split(".", 2)
    part, _, leaf = rest.rpartition(".")
    return f"{blocks}.{i}.{block[part]}.{LEAVES[leaf]}"
