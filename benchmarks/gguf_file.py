"""A GGUF file of a `LlamaConfig` model, as far as a comparison needs it: all numbers, and names for tokens."""

from __future__ import annotations

from pathlib import Path

from handgrad.layers.rope import to_interleaved
from handgrad.models.model import Model

PARTS = {
    "attention.query.w": "attn_q",
    "attention.key.w": "attn_k",
    "attention.value.w": "attn_v",
    "attention.out.w": "attn_output",
    "mlp.gate.w": "ffn_gate",
    "mlp.up.w": "ffn_up",
    "mlp.down.w": "ffn_down",
    "norm_1.gamma": "attn_norm",
    "norm_2.gamma": "ffn_norm",
}
WHOLE = {"embedding.token.w_emb": "token_embd", "norm.gamma": "output_norm", "head.w_emb": "output"}


def write_gguf(model: Model, path: Path, dtype: str) -> None:
    """`dtype` is float32 or bfloat16; norms are float32 either way, as that program wants them."""
    import gguf

    c, kind = model.config, gguf.GGMLQuantizationType.BF16 if dtype == "bfloat16" else gguf.GGMLQuantizationType.F32
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_context_length(c.context)
    file.add_embedding_length(c.d_model)
    file.add_block_count(c.n_layers)
    file.add_feed_forward_length(c.d_inner)
    file.add_head_count(c.n_heads)
    file.add_head_count_kv(c.n_kv_heads or c.n_heads)
    file.add_layer_norm_rms_eps(c.epsilon)
    file.add_rope_dimension_count(c.head)
    file.add_rope_freq_base(c.rope.base)
    file.add_vocab_size(c.vocabulary)
    file.add_tokenizer_model("llama")
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    file.add_token_list([*names, *(f"t{i}" for i in range(len(names), c.vocabulary))])
    file.add_token_scores([0.0] * c.vocabulary)
    kinds = gguf.TokenType
    file.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
        + [kinds.BYTE] * 256
        + [kinds.NORMAL] * (c.vocabulary - len(names))
    )
    for name, w in model.params.items():
        heads = {"query": c.n_heads, "key": c.n_kv_heads or c.n_heads}.get(name.split(".")[-2], 0)
        w = to_interleaved(w, heads) if heads else w
        numbers = (w.mT if name.endswith(".w") else w).contiguous().float().numpy()
        if name in WHOLE:
            there = WHOLE[name]
        else:
            _, i, part = name.split(".", 2)
            there = f"blk.{i}.{PARTS[part]}"
        if numbers.ndim == 2 and dtype == "bfloat16":
            file.add_tensor(f"{there}.weight", gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            file.add_tensor(f"{there}.weight", numbers)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
