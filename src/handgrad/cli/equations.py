"""`handgrad equations` and `handgrad mistakes`: what is proved, and that the proof can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of


def equations(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Only these equations [all of them].")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run the numeric check of each.")] = False,
    json: Json = False,
) -> None:
    """The registry: id, formulas, code, docs page, check and status of every equation.

    Try: handgrad equations raw softmax --check
    """
    from handgrad.cli.proving import show_equations

    if status := show_equations(ids or [], check, output_of(context, json)):
        raise typer.Exit(status)


def mistakes(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Write the table to this CSV file too.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Plant every known mistake in turn, and show where the checks see it first.

    Exit status 1 when one of them is missed or seen at the wrong place.
    """
    from handgrad.cli.proving import show_mistakes

    if status := show_mistakes(out, output_of(context, json)):
        raise typer.Exit(status)
