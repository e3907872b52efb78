"""`handgrad import`, `handgrad export` and `handgrad models`: models of other libraries in, out, and by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.options import MODEL_HELP, Json, output_of
from handgrad.cli.waiting import waiting

Out = Annotated[Path, typer.Option(help="The new folder; one that holds something is refused.", metavar="DIR")]
NoTokenizer = Annotated[bool, typer.Option("--no-tokenizer", help="Leave the tokenizer out, of whatever kind it is.")]


def import_(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help=MODEL_HELP)],
    out: Out,
    dtype: Annotated[
        str, typer.Option(help="float32 or float64; auto is float32 unless the file has float64.", metavar="TYPE")
    ] = "auto",
    no_tokenizer: NoTokenizer = False,
    json: Json = False,
) -> None:
    """Turn a model of another library into a handgrad checkpoint folder.

    generate, chat, eval and verify take it; handgrad train --resume does not, for it is a model without a run.

    Try: handgrad import model.gguf --out runs/mine
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.converting import import_model

    import_model(source, out, dtype, not no_tokenizer, output)


def export(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    out: Out,
    dtype: Annotated[
        str,
        typer.Option(help="float32, float64, float16 or bfloat16; auto is the type that MODEL has.", metavar="TYPE"),
    ] = "auto",
    no_tokenizer: NoTokenizer = False,
    json: Json = False,
) -> None:
    """Write a model as a Hugging Face folder that transformers loads.

    Try: handgrad export runs/demo --out exported
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.converting import export_model

    export_model(model, out, dtype, not no_tokenizer, output)


def models(context: typer.Context, json: Json = False) -> None:
    """List the models that can be named: bundled ones, and those of installed packages.

    Try: handgrad models
    """
    from handgrad.cli.converting import list_models

    list_models(output_of(context, json))
