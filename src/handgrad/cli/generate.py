"""`handgrad generate`: a model writes on from a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.options import MODEL_HELP, Json, output_of


def generate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    prompt: Annotated[
        str | None, typer.Option(help="Text to write on from; none starts from a line end.", metavar="TEXT")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="A text file with one prompt a line.", metavar="FILE")] = None,
    batch_size: Annotated[
        int, typer.Option(help="With --prompts: so many at once, each shown when all of them are done.", metavar="N")
    ] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="At most so many tokens a prompt.", metavar="N")] = 200,
    temperature: Annotated[
        float, typer.Option(help="Below 1 bolder choices are rarer; 0 always takes the likeliest.", metavar="T")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Only the K likeliest tokens; 0 is off.", metavar="K")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Only the likeliest tokens that together reach P; 1 is off.", metavar="P")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Only tokens at least P times as likely as the likeliest; 0 is off.", metavar="P")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, tokens that are there already are less likely; 1 is off.", metavar="R")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.", metavar="N")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End where this text comes, without it and its ids; may be repeated.", metavar="TEXT"),
    ] = None,
    unknown: Annotated[
        str, typer.Option(help="Characters the model does not know: abort, skip or replace.", metavar="WHAT")
    ] = "abort",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Read the whole text again for each token.")] = False,
    dtype: Annotated[
        str,
        typer.Option(help="Compute in float32, float64 or bfloat16; auto is what it was trained in.", metavar="TYPE"),
    ] = "auto",
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile the pass of a token first (up to minutes), for long texts."),
    ] = False,
    check_cache: Annotated[
        bool,
        typer.Option(
            "--check-cache", help="Afterwards, compare logits with and without the cache (each token with --json)."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Write on from a prompt, token by token.

    The text may grow beyond the model's context: it then goes on from the later half of what it looked at.

    Try: handgrad generate runs/demo --prompt "The " --temperature 0.8
    """
    from handgrad.cli.writing import Request, write

    request = Request(
        prompt=prompt,
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        greedy=greedy,
        stops=tuple(stop or ()),
        unknown=unknown,
        use_cache=not no_cache,
        check_cache=check_cache,
        dtype=dtype,
        compiled=compile,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        batch_size=batch_size,
    )
    if status := write(request, model, output_of(context, json)):
        raise typer.Exit(status)
