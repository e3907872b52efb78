"""`handgrad`: the commands, and how any of them ends.

Nothing heavy is imported before a command runs, so that help and refusals are there at once. Exit status: 0 done;
1 our fault; 2 the request or the input is at fault; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated

import typer
from typer.main import get_command

from handgrad import __version__
from handgrad.cli import (
    chat,
    convert,
    demo,
    equations,
    evaluate,
    explain,
    finetune,
    generate,
    lab,
    merge,
    plan,
    train,
    verify,
    who,
)
from handgrad.cli.output import NoOutput, Output, lenient, no_output, opened_streams, silence
from handgrad.cli.presets import PRESETS
from handgrad.cli.words import usage_problem

PRESETS_HELP = "\b\nPresets:\n" + "\n".join(f"  {name:<12} {preset.about}" for name, preset in PRESETS.items())

# Another spelling that is understood -> the one that the help shows.
SPELLINGS = {"vocabulary": "vocab-size"}
SPELLED = {"token_normalize_func": lambda name: SPELLINGS.get(name, name)}

app = typer.Typer(
    name="handgrad",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 110},
)
app.command("demo")(demo.demo)
app.command("train", epilog=PRESETS_HELP, context_settings=SPELLED)(train.train)
app.command("finetune")(finetune.finetune)
app.command("merge")(merge.merge)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("eval")(evaluate.evaluate)
app.command("verify")(verify.verify)
app.command("plan", epilog=PRESETS_HELP, context_settings=SPELLED)(plan.plan)
app.command("explain")(explain.explain)
app.command("who")(who.who)
app.add_typer(lab.app, name="lab")
app.command("models")(convert.models)
app.command("import")(convert.import_)
app.command("export")(convert.export)
app.command("equations")(equations.equations)
app.command("mistakes")(equations.mistakes)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line on standard output, the rest on standard error.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Transformers trained by hand-written backpropagation.

    Start with `handgrad demo`. Every command explains itself: `handgrad train --help`.
    """
    context.obj = Output(as_json)
    if version:
        context.obj.record({"version": __version__})
        if not as_json:
            context.obj.text(f"handgrad {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None and as_json:
        context.fail("--json needs a command whose results it gives, such as handgrad eval")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The console script."""
    opened_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status; what went wrong is said, never raised."""
    lenient(sys.stdout)
    lenient(sys.stderr)
    status = 0
    try:
        try:
            status = invoked(arguments)
        except KeyboardInterrupt:
            status = 130
            told("interrupted", status, "--json" in arguments)
        except Exception as error:
            status, text = verdict(error, arguments)
            told(text, status, "--json" in arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        if status != 2:
            told(str(no_output(error)), 2, False)
        status = 2
    return status


def invoked(arguments: list[str]) -> int:
    command = get_command(app)
    if "--json" in arguments and not {"--help", "-h"}.isdisjoint(arguments):
        told("--help is text for people and --json is for programs; leave one of them out", 2, True)
        return 2
    try:
        with command.make_context("handgrad", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def verdict(error: Exception, arguments: list[str]) -> tuple[int, str]:
    """Whose fault it was, and what to say about it."""
    if isinstance(error, BrokenPipeError):
        raise error
    if isinstance(error, NoOutput):
        silence(sys.stdout)
        return 2, str(error)
    if callable(getattr(error, "format_message", None)):
        return 2, usage_problem(error, arguments)
    # An error of ours can only have been raised where its module was loaded, and loading it here would load torch.
    errors = sys.modules.get("handgrad.core.errors")
    if errors is not None and isinstance(error, errors.HandgradError):
        return 2, str(error)
    if isinstance(error, OSError) and printing(error):
        silence(sys.stdout)
        return 2, str(no_output(error))
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return 2, "there is not enough memory for this; a smaller --batch-size, --context or --width needs less"
    if os.environ.get("HANDGRAD_TRACEBACK") == "1":
        traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}".splitlines()[0][:500]
    return 1, f"internal error, {what}. Please report it; HANDGRAD_TRACEBACK=1 shows where it happened"


def printing(error: OSError) -> bool:
    """Whether an error came up while the parser of the command line printed its help."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    module = "" if where is None else str(where.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in ("click", "typer")


def told(text: str, status: int, for_programs: bool) -> None:
    """One line a problem, for people; the same as one object, for programs."""
    Output().note("handgrad: " + text)
    with suppress(BrokenPipeError, NoOutput):
        Output(for_programs).record({"error": text, "exit": status})
