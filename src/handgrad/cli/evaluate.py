"""`handgrad eval`: how well a model predicts a text."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import Json, Unknown, output_of
from handgrad.cli.waiting import waiting


def evaluate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a checkpoint, another model or its name.")],
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="Text files, .npy or .bin of ids; `embedded` is Python's documentation."),
    ],
    context_length: Annotated[
        int | None, typer.Option("--context", help="Most tokens of a window [the model's, at most 1024]", metavar="N")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="From one window to the next; smaller is slower and sees more [--context]", metavar="N"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows at once [as many as make about 2048 tokens]", metavar="N")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first N tokens of DATA, the very first included.", metavar="N")
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(help="Compute in float32, float64 or bfloat16; auto is the type of the model.", metavar="TYPE"),
    ] = "auto",
    unknown: Unknown = "abort",
    bos: Annotated[
        bool, typer.Option("--bos/--no-bos", help="Begin a text with the model's start token, where it has one.")
    ] = True,
    json: Json = False,
) -> None:
    """Nats a token, perplexity and bits a byte of a text, nothing dropped and nothing sampled.

    Every token is predicted once, from at least context - stride + 1 tokens before it (fewer only where the text
    begins). The first counts where a start token comes before it. Several DATA are read as one text.

    Try: handgrad eval runs/demo embedded --limit 20000 --stride 32
    """
    output = output_of(context, json)
    with waiting(f"loading {model}", output.live):
        from handgrad.cli.evaluating import Request, show

    request = Request(tuple(data), context_length, stride, batch_size, limit, dtype, unknown, bos)
    show(request, model, output)
