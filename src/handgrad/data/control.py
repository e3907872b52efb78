"""What a tokenizer knows besides text: where every text begins, what ends an answer, how turns of talk are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from handgrad.core.errors import DataError
from handgrad.data.checks import shown

MAX_TEMPLATE = 1 << 17  # characters of a chat template
FIELDS = ("begin", "end", "template")


@dataclass(frozen=True)
class Control:
    """Facts that come with the tokenizer of a trained model; a model of your own has none of them.

    begin      ids that every text begins with (Llama's <s>)
    end        ids that end an answer, each of them
    template   the chat template, in Jinja

    >>> Control(begin=(1,), end=(2,)).to_json()
    {'begin': [1], 'end': [2], 'template': ''}
    """

    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    template: str = ""

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            ids = getattr(self, name)
            if not isinstance(ids, tuple) or len(ids) > 64 or any(type(i) is not int or i < 0 for i in ids):
                raise DataError(f"{name} is {shown(ids)}; it has to be a list of at most 64 token ids.")
        if not isinstance(self.template, str) or len(self.template) > MAX_TEMPLATE:
            raise DataError(f"the chat template is no text of at most {MAX_TEMPLATE} characters.")

    def to_json(self) -> dict[str, Any]:
        return {"begin": list(self.begin), "end": list(self.end), "template": self.template}

    def checked(self, vocab_size: int) -> Control:
        """Itself; DataError where an id is outside the vocabulary."""
        for name in ("begin", "end"):
            if bad := [i for i in getattr(self, name) if i >= vocab_size]:
                raise DataError(f"{name} names token {bad[0]}, and the vocabulary has {vocab_size} tokens.")
        return self


NONE = Control()


def control_from(value: Mapping[str, Any]) -> Control:
    """The inverse of `to_json`. Raises DataError."""
    begin, end = value.get("begin"), value.get("end")
    if not isinstance(begin, list) or not isinstance(end, list):
        raise DataError("begin and end have to be lists of token ids.")
    return Control(tuple(begin), tuple(end), value.get("template", ""))


def control_of(tokenizer: Any) -> Control:
    """What `tokenizer` knows; nothing for bytes, characters and ids."""
    found: Control = getattr(tokenizer, "control", NONE)
    return found


def control_names(tokenizer: Any) -> Mapping[str, int]:
    """Text form -> id of every control token; empty for bytes, characters and ids."""
    names: Mapping[str, int] = getattr(tokenizer, "names", {})
    return names


def cut_at(names: Mapping[str, int], text: str) -> Iterator[tuple[str, int | None]]:
    """`text` in pieces: (plain text, None) and (name, its id), the longest name first where several fit.

    >>> list(cut_at({"<s>": 1}, "<s>ab"))
    [('<s>', 1), ('ab', None)]
    """
    if not names:
        yield from [(text, None)] if text else []
        return
    pattern = re.compile("(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")")
    for piece in pattern.split(text):
        if piece:
            yield piece, names.get(piece)
