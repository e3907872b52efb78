"""The `tokenizers` library behind one door: calls that may panic, and what a `tokenizer.json` may ask of it.

The file comes with a model and is not trusted. A panic of the library becomes one line, without what Rust prints about
it. Steps that make a text many times longer are refused before anything is encoded.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from handgrad.core.errors import ConfigError, DataError, HandgradError
from handgrad.data.checks import shown

MOST_GROWTH = 100  # T5's own file: 66 (the longest character that its table writes out, and spaces)
MOST_NESTED = 16
EXTRA = (
    "this tokenizer needs the library 'tokenizers', which is not installed: pip install 'handgrad[tokenizers]', "
    "or use bytes or chars"
)


def library() -> Any:
    """The module `tokenizers`. Raises ConfigError where it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(EXTRA) from None
    return tokenizers


class Silence:
    """Standard error of the process goes nowhere inside `with`, from whichever threads; Rust writes there itself."""

    def __init__(self) -> None:
        self.lock, self.n, self.kept = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self.lock:
            if self.n == 0:
                self.kept = -1
                try:
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    with suppress(OSError):  # there is no standard error
                        self.kept = os.dup(2)
                        os.dup2(nowhere, 2)
                    os.close(nowhere)
                except OSError:
                    pass  # then Rust is heard
            self.n += 1

    def __exit__(self, *args: object) -> None:
        with self.lock:
            self.n -= 1
            if self.n == 0 and self.kept >= 0:
                os.dup2(self.kept, 2)
                os.close(self.kept)


SILENCE = Silence()


@contextmanager
def refused() -> Iterator[None]:
    """What the library refuses, or panics at, as a DataError; what Python code of ours raises passes."""
    try:
        yield
    except HandgradError:
        raise
    except BaseException as error:  # a panic derives from BaseException
        panic = type(error).__name__ == "PanicException"
        if not panic and type(error) is not Exception and not isinstance(error, ValueError | OverflowError):
            raise
        verb = "fails at this tokenizer, or at this text" if panic else "refuses it"
        said = " ".join(str(error).split()).rstrip(".")[:200]
        raise DataError(f"the tokenizers library {verb}: {said}.") from None


def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """`function` of the library, in silence. Raises DataError where it refuses or panics.

    >>> call(int, "x")
    Traceback (most recent call last):
    handgrad.core.errors.DataError: the tokenizers library refuses it: invalid literal for int() with base 10: 'x'.
    """
    with refused(), SILENCE:
        return function(*args, **options)


def steps(part: Any) -> list[dict[str, Any]]:
    """The parts of a sequence, or the part itself."""
    if not isinstance(part, dict):
        return []
    if part.get("type") != "Sequence":
        return [part]
    inner: Any = next((part[key] for key in ("decoders", "normalizers", "pretokenizers") if key in part), [])
    return [step for step in inner if isinstance(step, dict)] if isinstance(inner, list) else []


def growth(normalizer: Any, depth: int = 0) -> float:
    """How many times longer a text can become, as the step declares. DataError beyond `MOST_GROWTH`.

    Unicode's own forms (NFKC, capitals) count as 1: they are fixed, and nothing grows twice.

    >>> growth({"type": "Replace", "pattern": {"String": " "}, "content": "abc"}), growth({"type": "NFKC"})
    (3.0, 1.0)
    """
    if depth > MOST_NESTED:
        raise DataError(f"its normalizer is nested deeper than {MOST_NESTED} sequences.")
    part = normalizer if isinstance(normalizer, dict) else {}
    kind, factor = part.get("type"), 1.0
    if kind == "Sequence":
        for step in steps(part):
            factor *= growth(step, depth + 1)
    elif kind == "Replace":
        pattern, content = part.get("pattern"), part.get("content")
        found = pattern.get("String") if isinstance(pattern, dict) else None
        n_in, n_out = (len(t.encode("utf-8", "replace")) if isinstance(t, str) else 0 for t in (found, content))
        factor = max(1.0, n_out / n_in) if n_in else 1.0 + n_out  # a regular expression may match between characters
    elif kind == "Prepend":
        factor = 1.0 + len(part["prepend"]) if isinstance(part.get("prepend"), str) else 1.0
    elif kind == "Precompiled":
        factor = float(longest(part.get("precompiled_charsmap")))
    if factor > MOST_GROWTH:
        raise DataError(
            f"its normalizer ({shown(kind)}) may make a text {factor:.3g} times longer; at most {MOST_GROWTH} times is "
            "accepted."
        )
    return factor


def longest(table: Any) -> int:
    """The most bytes that a table of characters (base64) writes for one: its size, its trie, texts that end with 0."""
    try:
        data = base64.b64decode(table or "")
    except (TypeError, ValueError):
        return 1  # the library refuses it
    return max(1, *map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))


def unprefixed(part: Any) -> Any:
    """The same step of the library without what puts a space in front of the text."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "Sequence":
        key = next((key for key in ("normalizers", "pretokenizers") if key in part), "normalizers")
        inner = [step for step in map(unprefixed, part.get(key, [])) if step is not None]
        return {**part, key: inner}
    if kind == "Prepend":
        return None
    if kind == "Metaspace":
        return {name: value for name, value in part.items() if name != "add_prefix_space"} | {"prepend_scheme": "never"}
    if kind == "ByteLevel" and part.get("add_prefix_space"):
        return {**part, "add_prefix_space": False}
    return part


def stand_ins(names: Iterable[str]) -> dict[str, str]:
    """Name of a control token -> a text of characters that Unicode gives to nobody."""
    return {name: f"\U0010fffe{i}\U0010ffff" for i, name in enumerate(names)}


def out_of_reach(data: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The same tokenizer, whose model cannot find the `names` in a text: they are renamed. `data` where it never could.

    Every id stays what it was. Models that look up whole pieces would find "</s>" in plain text; those that merge, only
    by a merge that makes it.
    """
    model: dict[str, Any] = data["model"]
    vocab, merges, new = model.get("vocab"), model.get("merges"), stand_ins(names)
    pieces = [first(entry) for entry in vocab] if isinstance(vocab, list | dict) else []
    inside = new.keys() & set(pieces)
    if not inside:
        return data
    changed = dict(model)
    if isinstance(merges, list):
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
        affixes = [model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")]
        texts = [affixes, *pairs]
        if not all(isinstance(t, list) and len(t) == 2 and all(isinstance(x, str) for x in t) for t in texts):
            return data  # the library refuses it
        made = [left + right[len(affixes[0]) :] for left, right in pairs]
        single = any(len(name) <= 1 + len("".join(affixes)) or name.startswith("<0x") for name in inside)
        if not single and not model.get("ignore_merges") and inside.isdisjoint(made):
            return data
        kept = zip(pairs, made, strict=True)
        changed["merges"] = [pair for pair, joined in kept if inside.isdisjoint((*pair, joined))]
    if isinstance(vocab, list):
        changed["vocab"] = [
            [new[piece], *entry[1:]] if piece in new else entry for piece, entry in zip(pieces, vocab, strict=True)
        ]
    else:
        changed["vocab"] = {new.get(piece, piece): i for piece, i in model["vocab"].items()}
    if isinstance(model.get("unk_token"), str):
        changed["unk_token"] = new.get(model["unk_token"], model["unk_token"])
    added = [
        {**token, "content": new[token["content"]]} if special(token) in new else token
        for token in data.get("added_tokens") or []
    ]
    return {**data, "model": changed, "added_tokens": added}


def first(entry: Any) -> str:
    """The piece of an entry of a vocabulary: ["a", -1.5], or a key."""
    piece = entry[0] if isinstance(entry, list) and entry else entry
    return piece if isinstance(piece, str) else ""


def special(token: Any) -> str:
    """The name of an added token that is a control token; "" for others."""
    content = token.get("content") if isinstance(token, dict) and token.get("special") else ""
    return content if isinstance(content, str) else ""
