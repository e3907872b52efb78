"""The process in which a chat template is rendered: one request on its standard input, one answer, and it is over.

It is run as a file and imports nothing of handgrad, so it is there in a tenth of a second. Two things bound it. The
system does, where it can: memory, and time of the processor. And everywhere the sandbox does: a template reaches only
the filters, methods and functions named here, each text it makes has at most `MOST` characters, and all of them
together `MOST_MADE`, whatever becomes of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from contextlib import suppress
from datetime import datetime
from functools import wraps
from types import FrameType
from typing import Any

MOST = 1 << 20  # characters of a text
MOST_MADE = 1 << 25  # characters of all texts that a template makes on its way
ENTRY = 16  # what an entry of a list counts, in characters
MOST_NUMBER = 1 << 64
MOST_STEPS = 200_000
MOST_BYTES = 400 << 20  # of the process
MOST_SECONDS = 4  # of the processor

if __name__ == "__main__":
    REQUEST = json.loads(sys.stdin.buffer.read())
    sys.path += [entry for entry in REQUEST["path"] if entry not in sys.path]  # where jinja2 is, for `python -I`

from jinja2 import TemplateError, Undefined, nodes, pass_context, pass_environment  # noqa: E402
from jinja2.ext import Extension  # noqa: E402
from jinja2.filters import make_attrgetter  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402
from jinja2.utils import Namespace  # noqa: E402
from jinja2.visitor import NodeTransformer  # noqa: E402

FILTERS = """abs capitalize count d default dictsort e escape first float format groupby indent int items join last
length list lower map max min reject rejectattr replace reverse safe select selectattr sort string sum title tojson trim
unique upper wordcount"""
OF_TEXTS = """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric
isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit
rstrip split splitlines startswith strip swapcase title upper"""
METHODS: dict[type, str] = {
    str: OF_TEXTS,
    list: "count index",
    tuple: "count index",
    dict: "get items keys values",
    **dict.fromkeys((int, float, bytes, range, type(None)), ""),
}


class TooMuch(TemplateError):
    """A template that writes or computes without end."""


def check(n: int) -> None:
    if n > MOST:
        raise TooMuch(f"a text of {n:,} characters; at most {MOST:,} are made")


def weight(value: Any) -> int:
    """Characters of a text; of a list those of all that it holds, as often as it does, and `ENTRY` for each entry.

    >>> weight(["ab", ["c"]])
    51
    """
    n, left = 0, [value]
    while left:
        x = left.pop()
        if isinstance(x, Namespace):
            x = getattr(x, "_Namespace__attrs", {})
        if isinstance(x, str):
            n += len(x)
        elif isinstance(x, dict | list | tuple | KeysView | ValuesView | ItemsView):
            n += ENTRY * len(x)
            check(n)
            left += [*x, *x.values()] if isinstance(x, dict) else x
        elif isinstance(x, int) and abs(x) >= MOST_NUMBER:
            raise TooMuch("a number of more than 64 bits")
        check(n)
    return n


def replaced(text: Any, old: Any, new: Any, *_: Any) -> int:
    """How long `text.replace(old, new)` becomes at most."""
    return len(str(text)) + str(text).count(str(old)) * len(str(new))


def filled(form: Any, *values: Any, **named: Any) -> int:
    """How long `form % values` becomes at most, without widths. A number is short, a spelling ten times as long."""
    if re.search("%[^a-zA-Z%]", str(form)):
        raise TooMuch("it formats with widths")
    spelled = re.search("%[ra]", str(form)) or not all(isinstance(x, str | int | float) for x in values)
    return len(str(form)) + str(form).count("%") * ((10 if spelled else 1) * (weight(values) + weight(named)) + 320)


def indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    return len(str(text)) + (str(text).count("\n") + 2) * (len(width) if isinstance(width, str) else int(width))


FORESEEN: dict[str, Callable[..., int]] = {"replace": replaced, "format": filled, "indent": indented}


def listed(values: Iterable[Any], between: str) -> list[Any]:
    """A list of what will be joined."""
    found, n = [], 0
    for value in values:
        n += weight(value) + len(between)
        check(n)
        found.append(value)
    return found


@pass_environment
def join(environment: Any, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return str(d).join(map(str, listed(value, str(d))))


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The one of transformers, which writes no HTML."""
    if weight([indent, *(separators or ())]) > 8 * ENTRY or (isinstance(indent, int) and indent > 16):
        raise TooMuch("it writes JSON with too much space")
    pieces: list[str] = []
    n = 0
    for piece in json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    ).iterencode(value):
        check(n := n + len(piece))
        pieces.append(piece)
    return "".join(pieces)


def cut(value: Any, start: Any, stop: Any, step: Any) -> Any:
    return value[start:stop:step]


def now(form: Any) -> str:
    if re.search("%(?!-?[a-zA-Z%])", str(form)) or len(str(form)) > 100:
        raise TooMuch("it asks for a date of unusual form")
    return datetime.now().strftime(str(form))


def refuse(message: Any = "") -> None:
    raise TemplateError(str(message)[:300])


class Measured(NodeTransformer):
    """What Python would make unseen, as filters, which are measured: `a ~ b` as `[a, b] | join`, slices, lists."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return filter_of(nodes.List([self.visit(part) for part in node.nodes]), "join", node.lineno)

    def visit_Getitem(self, node: Any) -> Any:
        node = self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [x or nodes.Const(None) for x in (node.arg.start, node.arg.stop, node.arg.step)]
        return filter_of(node.node, "[:]", node.lineno, bounds)

    def visit_List(self, node: Any) -> nodes.Node:
        node = self.generic_visit(node)
        written = getattr(node, "ctx", "load") != "load"  # the names on the left of a `set`
        return node if written else filter_of(node, "[]", node.lineno)

    visit_Tuple = visit_Dict = visit_List


def filter_of(node: Any, name: str, line: int, arguments: Any = ()) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=line)


class Generation(Extension):
    """`{% generation %}`, which marks what a model is trained on, and writes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

    def written(self, caller: Any) -> Any:
        return caller()


class Sandbox(ImmutableSandboxedEnvironment):
    """No attribute of Python's own, no change of what is given, no more than `MOST` at once and `MOST_MADE` in all."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        loops = "jinja2.ext.loopcontrols"
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=self.printed, extensions=[loops, Generation]
        )
        self.made = 0
        filters = self.filters | {"join": join, "tojson": tojson}
        self.filters = {name: self.measured(filters[name], FORESEEN.get(name)) for name in FILTERS.split()}
        self.filters |= {"[:]": self.measured(cut), "[]": self.kept}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = refuse
        self.globals["strftime_now"] = now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Measured().visit(super()._parse(source, name, filename))
        return tree

    def charged(self, n: int) -> None:
        check(n)
        self.made += n
        if self.made > MOST_MADE:
            raise TooMuch(f"it makes more than {MOST_MADE:,} characters on its way")

    def measured(self, function: Callable[..., Any], foreseen: Callable[..., int] | None = None) -> Callable[..., Any]:
        """The same function, of arguments of bounded size; `foreseen` says how large its result becomes."""

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                weight(value)
            if foreseen is not None:
                check(foreseen(*args[hasattr(function, "jinja_pass_arg") :], **kwargs))
            result = function(*args, **kwargs)
            self.charged(weight(result))
            return result

        return checked

    def kept(self, value: Any) -> Any:
        """A list that was written down. What it holds was made before."""
        self.charged(ENTRY * len(value))
        return value

    def concat(self, pieces: Iterable[str]) -> str:
        """What a macro, or a block that is set, has written."""
        found = listed(pieces, "")
        text = "".join(found)
        self.charged(len(text))
        return text

    @pass_context
    def printed(self, context: Any, value: Any) -> Any:
        """What stands between {{ and }}, as a text."""
        weight(value)
        if isinstance(value, str | Undefined):
            return value
        text = str(value)
        self.charged(len(text))
        return text

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        n = weight(left) + weight(right)
        if operator == "%" and isinstance(left, str):
            check(filled(left, *(right if isinstance(right, tuple) else (right,))))
        elif operator == "*" and not all(isinstance(x, int | float) for x in (left, right)):
            check(n * next((abs(x) for x in (left, right) if isinstance(x, int)), 1))
        elif operator == "**" and not all(isinstance(x, int | float) and abs(x) < 100 for x in (left, right)):
            raise TooMuch("it raises large numbers to a power")
        result = super().call_binop(context, operator, left, right)
        self.charged(weight(result))
        return result

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        text, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(text, str):
            weight(args)
            if name == "join" and len(args) == 1:
                args = (listed(args[0], text),)
            elif name == "replace" and len(args) > 1:
                check(replaced(text, *args))
        self.charged(ENTRY * (len(args) + len(kwargs)))
        return self.measured(super().call)(context, obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.unsafe_undefined(obj, attribute) if beyond(obj, attribute) else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        weight(argument)  # an error shows it
        if isinstance(argument, str) and not (isinstance(obj, dict) and argument in obj) and beyond(obj, argument):
            return self.unsafe_undefined(obj, argument)
        return super().getitem(obj, argument)


def beyond(obj: Any, name: str) -> bool:
    """Is that a method of Python's that no template needs?"""
    known = next((names.split() for kind, names in METHODS.items() if isinstance(obj, kind)), None)
    return known is not None and hasattr(type(obj), name) and name not in known


def render(template: str, values: dict[str, Any]) -> dict[str, str]:
    """{"text": …}, or why there is none: {"ended": …}, {"refused": …}, {"failed": …}.

    >>> render("{{ a | upper }}", {"a": "b"}), render("{{ a * 9999999 }}", {"a": "b"})
    ({'text': 'B'}, {'ended': 'a text of 9,999,999 characters; at most 1,048,576 are made'})
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
        return {"text": "".join(pieces)}
    except TooMuch as error:
        return {"ended": str(error)}
    except MemoryError:
        return {"ended": "it takes too much memory"}
    except TemplateError as error:
        return {"refused": str(error)[:300]}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
    finally:
        sys.settrace(before)


def bound() -> None:
    """The system's own bounds. Where it has none, those of the sandbox and the clock of the caller are left."""
    with suppress(ImportError):
        import resource

        limits = ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CPU, MOST_SECONDS), (resource.RLIMIT_CORE, 0))
        for which, most in limits:
            with suppress(ValueError, OSError):
                resource.setrlimit(which, (most, most))


if __name__ == "__main__":
    bound()
    print(json.dumps(render(REQUEST["template"], REQUEST["values"])))
