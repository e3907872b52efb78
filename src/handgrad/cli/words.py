"""Usage errors in the words of this program: what was typed, what is meant perhaps, where help is."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any


def usage_problem(error: Any, arguments: Sequence[str]) -> str:
    """One line for an error of the command line's parser. It is known by its attributes: its class has moved before."""
    command = getattr(getattr(error, "ctx", None), "command_path", "handgrad")
    text = problem(error, arguments)
    return f"{text}{'' if text.endswith('?') else '.'} See {command} --help"


def problem(error: Any, arguments: Sequence[str]) -> str:
    if option := getattr(error, "option_name", None):
        if not hasattr(error, "possibilities"):
            return f"{option} needs a value"
        near = max(error.possibilities or [], key=lambda other: likeness(other, option), default=None)
        return f"there is no option {option}" + (f"; did you mean {near}?" if near else "")
    message = str(getattr(error, "message", error)).strip().rstrip(".")
    name = spelled(error)
    if not name:
        return message[:1].lower() + message[1:]
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    given = value_of(name, arguments)
    if given is None or not (kind := kind_wanted(message)):
        return f"{name}: {message}"
    return f"{name} is {given!r}, and must be {kind}"


def likeness(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


def spelled(error: Any) -> str:
    """The option or argument that an error is about, as it is typed."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return ""
    if getattr(parameter, "param_type_name", "") == "argument":
        return str(getattr(parameter, "metavar", None) or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """What was typed for an option, last of all where it was typed twice.

    >>> value_of("--lr", ["train", "--lr", "a", "--lr=b"]), value_of("--lr", ["train"])
    ('b', None)
    """
    found = None
    for word, after in zip(arguments, [*arguments[1:], None], strict=True):
        if word == option:
            found = after
        elif word.startswith(f"{option}="):
            found = word.removeprefix(f"{option}=")
    return found


def kind_wanted(message: str) -> str:
    """What kind of value the parser wanted, from its message."""
    kinds = {"integer": "a whole number", "float": "a number", "number": "a number", "boolean": "true or false"}
    return next((words for word, words in kinds.items() if word in message), "")
