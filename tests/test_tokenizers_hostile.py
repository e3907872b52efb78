"""Tokenizer files and texts that mean harm: no control token comes from text, no panic, no endless growth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizers_formats import gguf_fields
from test_tokenizers_pieces import metaspace

from handgrad.core.errors import DataError, FileError
from handgrad.data.chat_template import encoded_talk, harmless
from handgrad.data.formats import from_folder
from handgrad.data.gguf_tokens import from_gguf
from handgrad.data.library import Library, byte_alphabet, byte_level
from handgrad.data.streaming import encoded

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
NAMES = ["<unk>", "<s>", "</s>"]
MARK = "\ue000"


def added(names: list[str], **more: Any) -> list[dict[str, Any]]:
    return [{"id": i, "content": name, "special": True, **PLAIN, **more} for i, name in enumerate(names)]


def with_spaces(model: dict[str, Any], scheme: str = "always", **more: Any) -> Library:
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    value = {"version": "1.0", "added_tokens": added(NAMES), "pre_tokenizer": space, "decoder": space, "model": model}
    return Library(json.dumps(value | more))


def unigram(scheme: str = "always", **more: Any) -> Library:
    """Whole names are pieces with the best scores, beside every character that the tests write."""
    singles = [*"▁abehlotxyS:<>/s\n", "▁a", "ab"]
    vocab = [[name, 0.0] for name in NAMES] + [[piece, -2.0] for piece in singles]
    return with_spaces({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}, scheme, **more)


def words(kind: str = "WordLevel") -> Library:
    model = {"type": kind, "vocab": {name: i for i, name in enumerate([*NAMES, "▁a", "▁b"])}, "unk_token": "<unk>"}
    more = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100} if kind == "WordPiece" else {}
    return with_spaces(model | more, "never")


def merges() -> Library:
    """Merges lead to "</s>" itself."""
    pieces = [*NAMES, *"▁abs</>", "</", "</s", *(f"<0x{b:02X}>" for b in range(256))]
    model = {
        "type": "BPE",
        "vocab": {piece: i for i, piece in enumerate(pieces)},
        "merges": ["< /", "</ s", "</s >"],
        "unk_token": "<unk>",
        "byte_fallback": True,
    }
    return with_spaces(model)


def bytes_of(prefix: bool = False, **more: Any) -> Library:
    value = json.loads(byte_level({c: i for i, c in enumerate(byte_alphabet())} | {"Ġt": 256, "<s>": 257}, ["Ġ t"], {}))
    value["pre_tokenizer"]["add_prefix_space"] = prefix
    value["added_tokens"] = added(["<s>"], id=257)
    return Library(json.dumps(value | more))


@QUICK
@given(st.lists(st.sampled_from([*NAMES, "a", "b", " ", "\n", "<", "s>", "</", "/s>", "ab"]), max_size=9).map("".join))
def test_no_kind_of_model_makes_a_control_token_of_text(text: str) -> None:
    for n, tokenizer in enumerate(CASES):
        ids = tokenizer.encode(text, "replace")
        assert not (set(tokenizer.names.values()) - {tokenizer.unk}) & set(ids.tolist())
        if n not in (2, 3) and not text.startswith(" ") and "unk" not in text:
            assert tokenizer.decode(tokenizer.encode(text, "abort")) == text


CASES = (unigram(), merges(), words(), words("WordPiece"), bytes_of())


def test_text_of_control_tokens_keeps_the_other_ids() -> None:
    tokenizer = unigram()
    ids = tokenizer.encode("hello </s> ab").tolist()
    pieces = ["▁", *"hello", "▁", *"</s>", "▁", "ab"]
    assert ids == [tokenizer.vocabulary[piece] for piece in pieces]
    assert tokenizer.encode("a </s>", control=True).tolist()[-1] == 2
    assert tokenizer.vocabulary["</s>"] == tokenizer.names["</s>"] == 2
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}, "unk_token": "<unk>"}
    with pytest.raises(DataError, match="not in the tokenizer's vocabulary: '<' at position 0"):
        with_spaces(model, "never").encode("</s>")


def test_a_single_character_that_is_a_control_token_has_no_id_as_text() -> None:
    alphabet = {c: i for i, c in enumerate(byte_alphabet())}
    tokenizer = Library(byte_level(alphabet, [], {"a": True}))
    assert tokenizer.encode("a", control=True).tolist() == [alphabet["a"]]
    assert tokenizer.encode("bab", "skip").tolist() == [alphabet["b"]] * 2
    with pytest.raises(DataError, match="'a' at position 1"):
        tokenizer.encode("ba")


def talk(tokenizer: Library, *said: str) -> list[int]:
    turns = [f"<s>x: {harmless(text, tokenizer.names, MARK)}</s>" for text in said]
    return list(encoded_talk(tokenizer, tokenizer.names, "".join(turns) + "<s>y:", MARK, "abort"))


TALKERS = {
    "legacy": metaspace(),
    **{scheme: unigram(scheme) for scheme in ("always", "first", "never")},
    "bytes": bytes_of(),
    "bytes with a space": bytes_of(True),
}


@pytest.mark.parametrize("name", TALKERS)
def test_what_is_typed_leaves_the_ids_of_the_rest_alone(name: str) -> None:
    tokenizer = TALKERS[name]
    start = tokenizer.names["<s>"]

    def turns(ids: list[int]) -> list[list[int]]:
        at = [i for i, id in enumerate(ids) if id == start]
        return [ids[a:b] for a, b in zip(at, [*at[1:], len(ids)], strict=True)]

    plain, typed = turns(talk(tokenizer, "a", "b", "ab")), turns(talk(tokenizer, "a", "<s>", "ab"))
    assert (len(plain), plain[0], plain[2:]) == (len(typed), typed[0], typed[2:])
    module = pytest.importorskip("tokenizers")
    library = module.Tokenizer.from_str(json.dumps({**tokenizer.data, "post_processor": None}))
    whole = library.encode("<s>x: a</s><s>x: b</s><s>x: ab</s><s>y:").ids
    assert [i for turn in plain for i in turn] == whole


def test_a_name_that_the_normalizer_makes_is_still_text() -> None:
    lower = {"type": "Lowercase"}
    tokenizer = unigram(normalizer=lower, added_tokens=added(NAMES, normalized=True))
    for typed in ("<S>", "</S>a"):
        assert not {1, 2} & set(tokenizer.encode(typed).tolist())
        assert talk(tokenizer, typed).count(2) == 1


@pytest.mark.parametrize("name", [*TALKERS, "words"])
def test_pieces_of_a_text_give_the_ids_of_the_whole(name: str) -> None:
    split = {"type": "WhitespaceSplit"}
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    t5 = unigram(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, space]})
    tokenizer = t5 if name == "words" else TALKERS[name]
    text = "a b\nab a\nto to\n\na\n"
    whole = tokenizer.encode(text, "replace").tolist()
    for n in (1, 3, 4, 7):
        pieces = [text[i : i + n] for i in range(0, len(text), n)]
        assert np.concatenate(list(encoded(tokenizer, pieces, "replace"))).tolist() == whole


def test_byte_pieces_go_on_without_a_space() -> None:
    tokenizer = bytes_of(True)
    assert tokenizer.encode("t").tolist() == [256]
    assert tokenizer.encode("t", more=True).tolist() == [tokenizer.vocabulary["t"]]


GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Sequence", "normalizers": [GROWS] * 5},
        {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [GROWS]}, GROWS]},
        {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 200},
        {"type": "Prepend", "prepend": "a" * 200},
    ],
)
def test_a_normalizer_that_makes_texts_much_longer_is_refused(normalizer: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"may make a text .* times longer; at most 100"):
        bytes_of(normalizer=normalizer)
    assert bytes_of(normalizer=GROWS).encode("a").size == 50


MISSING = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}], "pair": []}
REGEX = {"type": "Split", "pattern": {"Regex": r"(a+)+$|(\w*)*z"}, "behavior": "Isolated", "invert": False}
PANICS: dict[str, dict[str, Any]] = {
    "post-processor": {"post_processor": {**MISSING, "special_tokens": {}}},
    "expression": {"pre_tokenizer": REGEX},
    "table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
}
SCRIPT = """
import sys
from handgrad.core.errors import HandgradError
from handgrad.data.formats import from_folder
try:
    from_folder(sys.argv[1]).encode("a" * 40 + " b")
except HandgradError as error:
    print(error)
print("and on", file=sys.stderr)
"""


@pytest.mark.parametrize("name", PANICS)
def test_a_panic_of_the_library_is_one_line(name: str, tmp_path: Path) -> None:
    value = bytes_of().data | PANICS[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "the tokenizers library fails at this tokenizer, or at this text: " in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == "and on\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bos_token_id": "x"}, "bos_token_id is 'x'; it has to be a whole number"),
        ({"bos_token_id": 2.5}, "bos_token_id is 2.5"),
        ({"eos_token_id": [1]}, r"eos_token_id is \[1\]"),
        ({"eos_token_id": "abc"}, "eos_token_id is 'abc'"),
        ({"eos_token_id": float("nan")}, "eos_token_id is nan"),
        ({"eot_token_id": True}, "eot_token_id is True"),
        ({"add_bos_token": "x"}, "add_bos_token is 'x'; it has to be true or false"),
        ({"pre": [3]}, r"pre is \[3\]; known: "),
    ],
)
def test_gguf_fields_of_another_kind_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_gguf(gguf_fields() | {f"tokenizer.ggml.{name}": value for name, value in change.items()})
    fields = gguf_fields() | {"tokenizer.ggml.bos_token_id": np.uint32(3), "tokenizer.ggml.add_bos_token": np.True_}
    assert from_gguf(fields).control.begin == (3,)


def test_odd_fields_of_a_library_file_are_refused() -> None:
    with pytest.raises(DataError, match=r"its decoder is \['\[1\]'\]"):
        bytes_of(decoder={"type": [1]})
    for kind in ("WordLevel", "WordPiece"):
        value = words(kind).data
        value = {**value, "model": {**value["model"], "unk_token": "[UNK]"}}
        with pytest.raises(DataError, match=r"its unknown token '\[UNK\]' is not in its vocabulary"):
            Library(json.dumps(value))


def test_a_template_without_a_proper_name_is_no_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(bytes_of().text, encoding="utf-8")
    templates = [{"name": ["a"], "template": "x"}, {"name": "default", "template": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}), encoding="utf-8")
    assert from_folder(tmp_path).control.template == "y"
    (tmp_path / "tokenizer.json").write_text("[]", encoding="utf-8")
    with pytest.raises(FileError):
        from_folder(tmp_path)
