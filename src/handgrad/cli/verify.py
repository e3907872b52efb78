"""`handgrad verify`: activations, error signals and gradients of a model, against what they must be."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import Json, Unknown, output_of


def verify(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a checkpoint, another model or its name.")],
    text: Annotated[
        str | None, typer.Option(help="Text to pass through the model [48 ids drawn with seed 0]", metavar="TEXT")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float64, float32 or bfloat16; may be repeated [all three]", metavar="TYPE"),
    ] = None,
    draws: Annotated[int, typer.Option(help="Over how many draws errors of rounding are added up.", metavar="N")] = 8,
    peer: Annotated[
        bool, typer.Option("--transformers/--no-transformers", help="Compare with transformers, where installed.")
    ] = True,
    every: Annotated[bool, typer.Option("--all", help="Show every signal, not the worst of each comparison.")] = False,
    unknown: Unknown = "abort",
    json: Json = False,
) -> None:
    """Is every gradient right? Signal by signal, against autograd, other formulas and other software.

    float64 is judged against torch's autograd, the fused forms against the explicit ones, float32 and bfloat16 against
    float64 beside torch's own error, and all of it against transformers where that is installed. Exit status 0 when
    every signal holds; 1 when one does not, and the first in the order of computation is named.

    Try: handgrad verify docs-1m
    """
    from handgrad.cli.verifying import Request, show

    request = Request(text, tuple(dtype or ()), draws, peer, every, unknown)
    if status := show(request, model, output_of(context, json)):
        raise typer.Exit(status)
