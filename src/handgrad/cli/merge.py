"""`handgrad merge`: a model and its adapter as one plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of
from handgrad.cli.waiting import waiting


def merge(
    context: typer.Context,
    adapter: Annotated[str, typer.Argument(metavar="ADAPTER", help="A PEFT folder, such as handgrad finetune writes.")],
    out: Annotated[
        Path | None, typer.Option(help="The new Hugging Face folder [ADAPTER-merged]", metavar="DIR")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="float32, float64, float16 or bfloat16; auto is the type of MODEL.", metavar="TYPE")
    ] = "auto",
    json: Json = False,
) -> None:
    """Add an adapter's updates to the weights of its model, w + s A B, and write the result as a Hugging Face folder.

    The sum is formed in float32. ADAPTER and its model stay as they are, so that nothing ever has to be subtracted.

    Try: handgrad merge runs/notes --out notes-model
    """
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.finetuning import merge_adapter

    merge_adapter(adapter, out, dtype, output)
