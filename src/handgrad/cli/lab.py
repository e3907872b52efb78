"""`handgrad lab`: rebuild the Transformer from a recurrent network, one choice at a time, and measure each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of
from handgrad.cli.waiting import waiting

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=False,
    help="Rebuild the Transformer from an RNN, one choice at a time, and measure each.\n\n"
    "Try: handgrad lab list; handgrad lab run rnn transformer; handgrad lab all --out runs/lab --budget 20",
)


@app.callback(invoke_without_command=True)
def lab(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_(context: typer.Context, json: Json = False) -> None:
    """The rungs of the ladder, the tasks, and the steps of the argument.

    Try: handgrad lab list
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.measuring import show_list
    show_list(output)


@app.command("run")
def run(
    context: typer.Context,
    rungs: Annotated[list[str], typer.Argument(metavar="RUNG...", help="Names from handgrad lab list.")],
    task: Annotated[str, typer.Option(help="recall, pocket or patterns.", metavar="TASK")] = "recall",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Size of the task, such as pairs=16; may be repeated.", metavar="NAME=N"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="So many runs of each, of which the interval is made.", metavar="N")] = 3,
    steps: Annotated[int, typer.Option(help="Training steps, fewer where the task is solved.", metavar="N")] = 500,
    width: Annotated[int, typer.Option(help="Width of the networks.", metavar="N")] = 64,
    layers: Annotated[int, typer.Option(help="Layers of the networks.", metavar="N")] = 2,
    functions: Annotated[int, typer.Option(help="Functions of a weight, or heads.", metavar="N")] = 2,
    parameters: Annotated[
        int, typer.Option(help="Give each the width that brings its layers nearest to N; 0 is off.", metavar="N")
    ] = 0,
    batch_size: Annotated[int, typer.Option(help="Sequences of a step.", metavar="N")] = 64,
    lr: Annotated[float, typer.Option(help="Highest learning rate.", metavar="RATE")] = 3e-3,
    json: Json = False,
) -> None:
    """Compare rungs on one task: accuracy with its interval, parameters, bytes of state a token, seconds.

    All see the same data for the same seed. Ctrl-C ends with what is there.

    Try: handgrad lab run rnn lstm transformer --set pairs=4
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.measuring import Compared, compare
    asked = Compared(
        tuple(rungs), task, tuple(set_ or ()), seeds, steps, width, layers, functions, parameters, batch_size, lr
    )
    if status := compare(asked, output):
        raise typer.Exit(status)


@app.command("all")
def all_(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the results; the same again goes on.", metavar="DIR")],
    budget: Annotated[
        float | None,
        typer.Option(help="At most so many minutes; what does not fit is cut, and said.", metavar="MINUTES"),
    ] = None,
    json: Json = False,
) -> None:
    """Measure every step of the argument and write lab.html and lab.json.

    Each result is saved as soon as it is there: run the same again and it goes on. Ctrl-C keeps all of it.

    Try: handgrad lab all --out runs/lab --budget 20
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.measuring import measure_all
    if status := measure_all(out, budget, output):
        raise typer.Exit(status)


@app.command("report")
def report(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of handgrad lab all.")],
    json: Json = False,
) -> None:
    """Judge and write lab.html and lab.json again from the results that are saved; nothing is measured.

    Try: handgrad lab report runs/lab
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.measuring import report_again
    report_again(folder, output)
