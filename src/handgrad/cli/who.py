"""`handgrad who`: which tokens a weight's gradient comes from, and which branches a block's error."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import MODEL_HELP, Json, Unknown, output_of
from handgrad.cli.waiting import waiting


def who(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    text: Annotated[str, typer.Option(help="The text that the model reads.", metavar="TEXT")],
    weight: Annotated[
        str | None, typer.Option(help="A parameter, such as blocks.0.attention.query.w.", metavar="NAME")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="One head's columns of query, key or value, or rows of out.", metavar="N")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Instead of a weight: a block, such as blocks.2.", metavar="BLOCK")
    ] = None,
    top: Annotated[int, typer.Option(help="How many terms to show.", metavar="N")] = 10,
    position: Annotated[
        int | None, typer.Option(help="Only the token at this position, counted from 0.", metavar="P")
    ] = None,
    loss_at: Annotated[
        int | None, typer.Option(help="The loss counts only what is predicted at this position.", metavar="P")
    ] = None,
    unknown: Unknown = "abort",
    json: Json = False,
) -> None:
    """Who taught this weight? Its gradient on a text as a sum over tokens, the largest terms first.

    Shares add up to 100 %; a token with a negative share pulls the other way. With --split, the error that a block
    sends down is cut into what comes by the skip, the MLP, and query, key and value of each head: exactly, so that it
    adds up.

    Try: handgrad who docs-1m --text "def f(x): return x" --weight blocks.0.attention.query.w --head 3
    """
    output = output_of(context, json)
    with waiting(f"loading {model}", output.live):
        from handgrad.cli.teaching import Request, show

    show(Request(text, weight, head, split, top, position, loss_at, unknown), model, output)
