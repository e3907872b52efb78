"""`handgrad demo`: the whole of it, from text that every Python has to a model that writes, in about two minutes."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of


def demo(
    context: typer.Context,
    out: Annotated[
        str | None, typer.Option(help="Folder of the run [runs/demo, or the next free name]", metavar="DIR")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time for training; at least 100 steps are done.", metavar="M")] = 2.0,
    seed: Annotated[int, typer.Option(help="Of first weights, windows and the sample.", metavar="N")] = 0,
    json: Json = False,
) -> None:
    """The main job end to end, in minutes: train, sample, report.

    The text is Python's own documentation, so nothing is downloaded.
    """
    from handgrad.cli.showing import show

    show(out, minutes, seed, output_of(context, json))
