"""`handgrad chat`: a conversation with a model, in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import (
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


def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What handgrad generate takes, too.")],
    system: Annotated[
        str | None, typer.Option(help="What the model is told before the first turn.", metavar="TEXT")
    ] = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.7,
    top_k: TopK = 0,
    top_p: TopP = 0.95,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    seed: Seed = 0,
    greedy: Greedy = False,
    stop: Stop = None,
    unknown: Unknown = "abort",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Talk with a model. One line is one turn; it works with piped input, too.

    /reset forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer.

    Try: handgrad chat MODEL --system "You answer in one sentence."
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
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
        unknown=unknown,
        dtype=dtype,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    talk(request, model, system, output)
