"""What several commands share: the options of output, how problems are listed, and how a path is quoted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.output import Output

MODEL_HELP = "A run, checkpoint, adapter or Hugging Face folder, a .gguf, a llama2.c .bin, or a name."
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object a line on standard output, the rest on standard error.")
]

# How tokens are drawn, for generate and chat alike; each has defaults of its own.
MaxNewTokens = Annotated[int, typer.Option(help="At most so many new tokens a text.", metavar="N")]
Temperature = Annotated[
    float, typer.Option(help="Below 1 bolder choices are rarer; 0 always takes the likeliest.", metavar="T")
]
TopK = Annotated[int, typer.Option(help="Only the K likeliest tokens; 0 is off.", metavar="K")]
TopP = Annotated[float, typer.Option(help="Only the likeliest tokens that together reach P; 1 is off.", metavar="P")]
MinP = Annotated[
    float, typer.Option(help="Only tokens at least P times as likely as the likeliest; 0 is off.", metavar="P")
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1, tokens that are there already are less likely; 1 is off.", metavar="R")
]
Seed = Annotated[int, typer.Option(help="The same seed and the same words give the same text.", metavar="N")]
Unknown = Annotated[
    str, typer.Option(help="Characters the model does not know: abort, skip or replace.", metavar="WHAT")
]
Greedy = Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="End where this text comes, without it and its ids; may be repeated.", metavar="TEXT"),
]
Dtype = Annotated[
    str, typer.Option(help="Compute in float32, float64 or bfloat16; auto is what it was trained in.", metavar="TYPE")
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
