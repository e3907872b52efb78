"""`handgrad chat`: a conversation with a model, in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of


def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What handgrad generate takes, too.")],
    system: Annotated[
        str | None, typer.Option(help="What the model is told before the first turn.", metavar="TEXT")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="At most so many tokens an answer.", metavar="N")] = 512,
    temperature: Annotated[
        float, typer.Option(help="Below 1 bolder choices are rarer; 0 always takes the likeliest.", metavar="T")
    ] = 0.7,
    top_k: Annotated[int, typer.Option(help="Only the K likeliest tokens; 0 is off.", metavar="K")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Only the likeliest tokens that together reach P; 1 is off.", metavar="P")
    ] = 0.95,
    min_p: Annotated[
        float, typer.Option(help="Only tokens at least P times as likely as the likeliest; 0 is off.", metavar="P")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, tokens that are there already are less likely; 1 is off.", metavar="R")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed and the same words give the same answers.", metavar="N")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="End an answer where this text comes; may be repeated.", metavar="TEXT")
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(help="Compute in float32, float64 or bfloat16; auto is what it was trained in.", metavar="TYPE"),
    ] = "auto",
    json: Json = False,
) -> None:
    """Talk with a model. One line is one turn; it works with piped input, too.

    /reset forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer.

    Try: handgrad chat MODEL --system "You answer in one sentence."
    """
    from handgrad.cli.chatting import talk
    from handgrad.cli.writing import Request

    request = Request(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        greedy=greedy,
        stops=tuple(stop or ()),
        dtype=dtype,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    talk(request, model, system, output_of(context, json))
