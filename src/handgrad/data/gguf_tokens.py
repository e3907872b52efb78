"""The tokenizer of a GGUF file, from its fields: SentencePiece-style ("llama") or byte-level ("gpt2")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from handgrad.core.errors import DataError
from handgrad.data.checks import shown
from handgrad.data.control import Control
from handgrad.data.library import GPT2_SPLIT, MAX_TOKENS, Library, byte_level
from handgrad.data.sentencepiece_style import CONTROL, NORMAL, USER, SentencePiece

ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>", "</s>")
PLAIN_BYTES: dict[str, Any] = {**GPT2_SPLIT, "use_regex": False}


def words(numbers: str) -> dict[str, Any]:
    """The library's step that cuts as Llama 3 does; `numbers` is the pattern of digits that stay together."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + numbers
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, PLAIN_BYTES]}


DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2_SPLIT]}
LLAMA3, QWEN2 = words(r"\p{N}{1,3}"), words(r"\p{N}")
# tokenizer.ggml.pre -> how words are cut, what is normalised, are whole words looked up first
SPLITS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any] | None, bool]] = {
    "gpt-2": (GPT2_SPLIT, None, False),
    "gpt2": (GPT2_SPLIT, None, False),
    "smollm": (DIGITS, None, False),
    "llama-bpe": (LLAMA3, None, True),
    "llama3": (LLAMA3, None, True),
    "qwen2": (QWEN2, {"type": "NFC"}, False),
}


def from_gguf(fields: Mapping[str, Any]) -> SentencePiece | Library | None:
    """The tokenizer that `tokenizer.ggml.*` describes, given as plain values; None where there is none.

    Raises DataError for a kind that is not known, and for fields that contradict each other.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind is None:
        return None
    tokens = listed(fields, "tokens", str)
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise DataError(f"tokenizer.ggml.tokens has {len(tokens)} entries; 1 to {MAX_TOKENS} are read.")
    types = listed(fields, "token_type", int) if "tokenizer.ggml.token_type" in fields else [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise DataError(f"tokenizer.ggml.token_type has {len(types)} entries, and there are {len(tokens)} tokens.")
    if kind == "llama":
        return of_scores(fields, tokens, types)
    if kind == "gpt2":
        return of_merges(fields, tokens, types)
    raise DataError(f"tokenizer.ggml.model is {shown(kind)}; known: gpt2, llama.")


def of_scores(fields: Mapping[str, Any], tokens: list[str], types: list[int]) -> SentencePiece:
    for name in ("remove_extra_whitespaces", "precompiled_charsmap"):
        if fields.get(f"tokenizer.ggml.{name}"):
            raise DataError(f"tokenizer.ggml.{name} is set, which changes a text first; that is not known.")
    scores = [float(score) for score in listed(fields, "scores", (int, float))]
    prefix = asks(fields, "add_space_prefix", True)
    pieces = tuple(token.replace("\u2581", " ") for token in tokens)
    return SentencePiece(pieces, tuple(scores), tuple(types), prefix, control(fields, tokens, types, True))


def of_merges(fields: Mapping[str, Any], tokens: list[str], types: list[int]) -> Library:
    pre = fields.get("tokenizer.ggml.pre", "gpt-2")
    if not isinstance(pre, str) or pre not in SPLITS:
        raise DataError(f"tokenizer.ggml.pre is {shown(pre)}; known: {', '.join(SPLITS)}.")
    split, normalizer, whole_first = SPLITS[pre]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise DataError("tokenizer.ggml.tokens has the same token twice.")
    added = {token: kind == CONTROL for token, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER)}
    text = byte_level(vocabulary, listed(fields, "merges", str), added, split, normalizer, whole_first)
    return Library(text, control(fields, tokens, types, False))


def control(fields: Mapping[str, Any], tokens: list[str], types: list[int], begins: bool) -> Control:
    start = token_id(fields, "bos", 1 if begins else None)
    asked = asks(fields, "add_bos_token", begins)
    ends = [token_id(fields, "eos", 2 if begins else None), token_id(fields, "eot"), token_id(fields, "eom")]
    ends += [i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == CONTROL and token in ENDS]
    end = tuple(dict.fromkeys(i for i in ends if i is not None))
    template = fields.get("tokenizer.chat_template", "")
    return Control((start,) if asked and start is not None else (), end, template)


def token_id(fields: Mapping[str, Any], name: str, default: int | None = None) -> int | None:
    value = fields.get(f"tokenizer.ggml.{name}_token_id")
    value = default if value is None else value
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
        raise DataError(f"tokenizer.ggml.{name}_token_id is {shown(value)}; it has to be a whole number, a token's id.")
    return None if value is None else int(value)


def asks(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool | np.bool_):
        raise DataError(f"tokenizer.ggml.{name} is {shown(value)}; it has to be true or false.")
    return bool(value)


def listed(fields: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> list[Any]:
    values = fields.get(f"tokenizer.ggml.{name}")
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple) or not all(isinstance(value, kind) for value in values):
        raise DataError(f"tokenizer.ggml.{name} is {shown(values)}; expected a list.")
    return list(values)
