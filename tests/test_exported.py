"""Our tokenizers as transformers reads them: the same ids of every text, or no tokenizer and the reason."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from test_tokenizers_pieces import shared, small_pieces, trained

from handgrad.core.errors import ConfigError, DataError
from handgrad.data.control import Control
from handgrad.data.exported import data_of, files_of, splits
from handgrad.data.formats import from_folder, from_llama2c
from handgrad.data.library import Library, byte_alphabet, byte_level
from handgrad.data.sentencepiece_style import SentencePiece
from handgrad.data.tokenizers import Bytes, Chars, Ids

pytest.importorskip("tokenizers")

PARTS = ["a", "b", "n", " ", "an", "é", "☃", "😀", "e\u0301", "\n", "\n\n", ".", " .", "'", "do n't", "\u2581", "\0"]
PARTS += ["<s>", "</s>", "<unk>", "<0x0A>", "\u00a0", "\r", "  ", "\ufffd", "\ufeff", "12", "the ", " s"]
FIXED = ["", " ", "  ", "<s>", "</s> a", " a", "a ", "\u2581a", "Hello , world !", "don't  I'll\n\n"]


def nasty(n: int, alphabet: str | None = None) -> list[str]:
    draw = random.Random(0)
    texts = [*FIXED, *("".join(draw.choices(PARTS, k=draw.randrange(25))) for _ in range(n))]
    texts += ["".join(chr(draw.randrange(0xD800)) for _ in range(draw.randrange(12))) for _ in range(n // 4)]
    return texts if alphabet is None else ["".join(c for c in text if c in alphabet) for text in texts]


def folder(path: Path, tokenizer: Any) -> Path:
    for name, content in files_of(tokenizer).items():
        (path / name).write_bytes(content)
    return path


def compared(path: Path, tokenizer: Any, texts: list[str]) -> None:
    """transformers, and we ourselves, read from the folder what `tokenizer` says."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder(path, tokenizer), local_files_only=True)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    assert settings["clean_up_tokenization_spaces"] is False  # older versions take spaces before marks away
    back = from_folder(path)
    begin = list(getattr(tokenizer, "control", Control()).begin)
    for text in texts:
        ids = tokenizer.encode(text).tolist()
        assert theirs(text)["input_ids"] == [*begin, *ids], text
        assert theirs.decode(ids) == text
        assert back.encode(text).tolist() == ids, text
        assert back.decode(ids) == text
    assert list(back.control.begin) == begin
    assert set(back.control.end) == set(getattr(tokenizer, "control", Control()).end)


def test_bytes(tmp_path: Path) -> None:
    compared(tmp_path, Bytes(), nasty(400))


def test_characters(tmp_path: Path) -> None:
    alphabet = "abn é☃😀\n.'<s>/\u2581\0\u0301,Ã©"  # é is two bytes, which the letters Ã and © stand for
    compared(tmp_path, Chars.of(alphabet), nasty(400, alphabet))
    back = from_folder(tmp_path)
    assert back.encode("aZé\u00e8b", "skip").tolist() == Chars.of(alphabet).encode("aéb").tolist()
    with pytest.raises(DataError, match="'Z' at position 1, '\u00e8' at position 3"):
        back.encode("aZé\u00e8b")


def test_a_vocabulary_of_ours(tmp_path: Path) -> None:
    compared(tmp_path, trained(), nasty(200))


def test_start_tokens_go_along(tmp_path: Path) -> None:
    pieces = [*byte_alphabet(), "ab", "<s>", "<go>", "</s>"]
    added = dict.fromkeys(pieces[257:], True)
    text = byte_level({piece: i for i, piece in enumerate(pieces)}, ["a b"], added)
    for control in (Control(begin=(257,), end=(259,)), Control(begin=(258, 257), end=(257, 259))):
        compared(tmp_path, Library(text, control), [text for text in nasty(20) if "s>" not in text])
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert (settings["bos_token"], settings["eos_token"]) == (pieces[control.begin[0]], "</s>")


def test_pieces_of_llama2c(tmp_path: Path) -> None:
    compared(tmp_path, from_llama2c(shared("tok512.bin")), nasty(600))
    story = shared("stories260K.golden.txt").read_text(encoding="utf-8")
    assert from_folder(tmp_path).encode(story).tolist() == from_llama2c(shared("tok512.bin")).encode(story).tolist()
    assert "\u2581" in "".join(nasty(600))


def of_pieces(words: list[str], scores: list[float], prefix: bool = True) -> SentencePiece:
    front = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = (2, 3, 3, *[6] * 256, *[1] * len(words))
    return SentencePiece((*front, *words), (*[0.0] * 259, *scores), types, prefix)


@pytest.mark.parametrize("prefix", [True, False])
def test_ranks_are_scores_unless_two_scores_are_the_same(prefix: bool) -> None:
    """Vocabularies of any shape, of pieces that several pairs join to; with equal scores the ids would differ."""
    draw, n_several, n_differ = random.Random(1), 0, 0
    for _ in range(120):
        longer = {"".join(draw.choices("ab", k=draw.choice((2, 2, 3, 3, 4, 5)))) for _ in range(draw.randrange(5, 14))}
        words = [*"ab ", *sorted(longer)]
        scores = draw.sample([-float(i) for i in range(1, 3 * len(words))], len(words))
        texts = ["".join(draw.choices("ab ", (5, 5, 1), k=11)) for _ in range(40)]
        tokenizer = of_pieces(words, scores, prefix)
        data = data_of(tokenizer)
        said = Library(json.dumps(data))
        for text in texts:
            assert said.encode(text).tolist() == tokenizer.encode(text).tolist(), (words, scores, text)
        n_several += any(len(splits(word, {*words})) > 1 for word in words)
        equal = of_pieces(words, [-1.0] * len(words), prefix)
        with pytest.raises(ConfigError, match="two tokens have one score"):
            data_of(equal)
        n_differ += any(said.encode(text).tolist() != equal.encode(text).tolist() for text in texts)
    assert n_several > 30
    assert n_differ > 30


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (Ids(9), "its texts are numbers, the ids themselves"),
        (small_pieces(fallback=False), "not every byte is a token"),
        (small_pieces(), "two tokens have one score"),
        (of_pieces(["a", "b", "ab", "<s>"], [-1.0, -2.0, -3.0, -4.0]), "a token is there twice"),
        (of_pieces(["a", "\u2581a"], [-1.0, -2.0]), "a token holds \u2581"),
        (of_pieces(["a", "ab"], [-1.0, -2.0]), "a character of some token is no token itself"),
        (of_pieces([*"abc", "ab", "bc"], [-1.0, -2.0, -3.0, -4.0, -4.0]), "two tokens have one score"),
    ],
)
def test_what_cannot_be_said_there_is_refused_with_the_reason(tokenizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        files_of(tokenizer)


def test_tokens_of_other_types_that_would_be_read_from_text() -> None:
    tokens = of_pieces(["a", "b"], [-1.0, -2.0])
    for kind, message in ((4, "looked up before all others"), (5, "that no text becomes looks like one")):
        odd = SentencePiece(tokens.tokens, tokens.scores, (*tokens.types[:-1], kind))
        with pytest.raises(ConfigError, match=message):
            files_of(odd)
