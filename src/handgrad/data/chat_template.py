"""Turns of talk as the ids that a chat model was trained on: its Jinja template, rendered in a sandbox with bounds.

A template comes with a model and is not trusted: it reaches nothing but the messages, cannot change them, and is ended
after `MOST_STEPS` steps or where a text grows beyond `MOST` characters. What people typed never becomes a control
token, whatever it looks like; only what the template itself writes does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import wraps
from types import FrameType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from handgrad.core.errors import DataError
from handgrad.data.control import control_names, control_of, cut_at

MOST = 1 << 20  # characters of a text, entries of a list
MOST_STEPS = 200_000
PLAIN = ("User:", "Assistant:")  # for models that were not trained to talk
NAMES = {"user": PLAIN[0], "assistant": PLAIN[1], "system": "System:"}

Message = dict[str, str]


class TooMuch(TemplateError):
    """A template that writes or computes without end."""


class JoinAll(NodeTransformer):
    """`a ~ b` as `[a, b] | join`, so that its size is checked as that of every filter."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        joined = [self.visit(part) for part in node.nodes]
        return nodes.Filter(nodes.List(joined), "join", [], [], None, None, lineno=node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """No attribute of Python's own, no change of what is given, nothing larger than `MOST`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        self.filters = {name: bounded(function) for name, function in self.filters.items()}
        self.globals["raise_exception"] = refuse
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form)[:100])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = JoinAll().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [size(left), size(right)]
        if operator == "*" and any(sizes):
            factor = next((abs(x) for x in (left, right) if isinstance(x, int)), 1)
            check(max(sizes) * factor)
        if operator == "**" and not all(isinstance(x, int | float) and abs(x) < 100 for x in (left, right)):
            raise TooMuch("it raises large numbers to a power")
        if operator == "%" and isinstance(left, str) and any(c.isdigit() or c == "*" for c in left):
            raise TooMuch("it formats with widths")
        check(sum(sizes))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        return bounded(super().call)(context, obj, *args, **kwargs)


def size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def check(n: int) -> None:
    if n > MOST:
        raise TooMuch(f"a text of {n:,} characters; at most {MOST:,} are made")


def bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, for numbers up to `MOST`, and results of that size."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and not isinstance(value, bool):
                check(abs(value))
            if isinstance(value, list | tuple):
                check(sum(map(size, value)))
        texts = [len(value) for value in (*args, *kwargs.values()) if isinstance(value, str)]
        if len(texts) > 2:  # x.replace(a, b)
            check(texts[0] * max(texts[1:]))
        result = function(*args, **kwargs)
        check(size(result))
        return result

    return checked


def refuse(message: Any = "") -> None:
    raise TemplateError(str(message)[:300])


def rendered(template: str, **values: Any) -> str:
    """The text of a template. Raises DataError where the template is at fault, or refuses the messages.

    >>> rendered("{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}",
    ...          messages=[{"role": "user", "content": " hi "}])
    '<user>hi'
    """
    steps = 0

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != "<template>":
            return None
        steps += 1
        if steps > MOST_STEPS:
            raise TooMuch(f"it does not come to an end within {MOST_STEPS:,} steps")
        return count

    before = sys.gettrace()
    try:
        made = Sandbox().from_string(template)
        pieces, n = [], 0
        sys.settrace(count)
        for piece in made.generate(**values):
            check(n := n + len(piece))
            pieces.append(piece)
    except TooMuch as error:
        raise DataError(f"the model's chat template was ended: {error}.") from None
    except TemplateError as error:
        raise DataError(f"the model's chat template refuses these messages: {str(error)[:300]}.") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"the model's chat template fails: {type(error).__name__}: {str(error)[:200]}.") from None
    finally:
        sys.settrace(before)
    return "".join(pieces)


def talk_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The ids of all turns and of the beginning of the next answer. Messages: {"role": …, "content": …}.

    Raises DataError where the template, or the tokenizer, refuses them.
    """
    control, names = control_of(tokenizer), control_names(tokenizer)
    if not control.template:
        text = "".join(f"{NAMES[m['role']]} {m['content']}\n" for m in messages) + PLAIN[1]
        return [*control.begin, *(int(i) for i in tokenizer.encode(text))]
    mark = next(c for c in map(chr, range(0xE000, 0xF8FF)) if not any(c in m["content"] for m in messages))
    marked = [{**m, "content": harmless(m["content"], names, mark)} for m in messages]
    by_id = {i: name for name, i in names.items()}
    text = rendered(
        control.template,
        messages=marked,
        add_generation_prompt=True,
        bos_token=by_id.get(control.begin[0], "") if control.begin else "",
        eos_token=by_id.get(control.end[0], "") if control.end else "",
        tools=None,
    )
    ids = list(encoded_talk(tokenizer, names, text, mark))
    return ids if tuple(ids[: len(control.begin)]) == control.begin else [*control.begin, *ids]


def harmless(content: str, names: Iterable[str], mark: str) -> str:
    """A message whose names of control tokens are broken by a mark, which is taken out again before encoding."""
    for name in names:
        content = content.replace(name, name[:1] + mark + name[1:])
    return content


def encoded_talk(tokenizer: Any, names: Any, text: str, mark: str) -> Iterable[int]:
    if mark not in text:
        yield from map(int, tokenizer.encode(text, **({"control": True} if names else {})))
        return
    for at, (piece, i) in enumerate(cut_at(names, text)):
        if i is not None:
            yield i
        else:
            more = at > 0 and tokenizer.kind != "sentencepiece"
            yield from map(int, tokenizer.encode(piece.replace(mark, ""), more=more))
