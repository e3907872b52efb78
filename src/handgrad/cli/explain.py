"""`handgrad explain`: the implementation and the equations in use, and the table of all gradients."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import MODEL_HELP, Json, output_of
from handgrad.cli.waiting import waiting


def explain(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    json: Json = False,
) -> None:
    """Layer by layer: which form of its rule runs, why, and by which equations; then every gradient.

    Blocks that are alike are shown once, as blocks.*; the number before them says how many there are.

    Try: handgrad explain runs/demo
    """
    output = output_of(context, json)
    with waiting(f"loading {model}", output.live):
        from handgrad.cli.proving import show_model

    show_model(model, output)
