"""What several commands share: the options of output, how problems are listed, and how a path is quoted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.output import Output

MODEL_HELP = "A run or checkpoint folder, a Hugging Face folder, a .gguf, a llama2.c .bin, or a name."
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object a line on standard output, the rest on standard error.")
]


def output_of(context: typer.Context, json: bool) -> Output:
    """`--json` counts before and after the command's name."""
    return Output(json or context.obj.json)


def problems(wrong: Iterable[str]) -> str:
    """Several problems as one text: one a line, none twice.

    >>> print(problems(["--lr is -1; --clip is -2", "--lr is -1"]))
    --lr is -1
    --clip is -2
    """
    return "\n".join(dict.fromkeys(line for text in wrong for line in re.split(r"; (?=--)", text)))


def quoted(path: Path | str) -> str:
    """A path as it can be pasted into a shell; a name that begins with a dash would be read as an option.

    >>> quoted("runs/a"), quoted("my run"), quoted("-run")
    ('runs/a', "'my run'", './-run')
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
