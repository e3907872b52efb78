"""`handgrad generate`: a model writes on from a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.options import (
    MODEL_HELP,
    Dtype,
    Greedy,
    Json,
    MaxNewTokens,
    MinP,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    Unknown,
    output_of,
)
from handgrad.cli.waiting import waiting


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
    max_new_tokens: MaxNewTokens = 200,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    seed: Seed = 0,
    greedy: Greedy = False,
    stop: Stop = None,
    unknown: Unknown = "abort",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Read the whole text again for each token.")] = False,
    dtype: Dtype = "auto",
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
    output = output_of(context, json)
    with waiting("loading torch", output.live):
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
    if status := write(request, model, output):
        raise typer.Exit(status)
