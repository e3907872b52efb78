"""`handgrad plan`: what a training step costs, before anything is allocated."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of
from handgrad.cli.waiting import waiting

NOT_FLAGS = ("model", "preset", "fits", "search", "cache_dtype", "time", "calibrate", "cache_only", "json")


def plan(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="As in handgrad generate; none: the options.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="As in handgrad train, see below.", metavar="NAME")] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option("--vocab-size", help="Number of tokens [50257 with gpt2-small, else 256]", metavar="N"),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of the model [4]", metavar="N")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads of a block [4]", metavar="N")] = None,
    width: Annotated[int | None, typer.Option(help="Width, a multiple of --heads [128]", metavar="N")] = None,
    context_length: Annotated[
        int | None, typer.Option("--context", help="Tokens of a window [64]", metavar="N")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Share dropped while training [0]", metavar="RATE")] = None,
    bias: Annotated[bool | None, typer.Option(help="Offsets in linear layers and norms [bias]")] = None,
    activation: Annotated[str | None, typer.Option(help="Function inside the MLP [gelu_tanh]", metavar="NAME")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows of one micro-batch [12]", metavar="N")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Micro-batches of one step [1]", metavar="N")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm, 0 is off [1.0]", metavar="NORM")] = None,
    clip_by: Annotated[
        str | None, typer.Option(help="Norm of the whole gradient, or each parameter's [whole]", metavar="WHAT")
    ] = None,
    optimiser: Annotated[str | None, typer.Option(help="adamw or sgd [adamw]", metavar="NAME")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float64 [float32]", metavar="NAME")] = None,
    impl: Annotated[str | None, typer.Option(help="auto, explicit or fused formulas [auto]", metavar="NAME")] = None,
    recompute: Annotated[
        str | None, typer.Option(help="nothing, cheap or blocks, as in handgrad train [nothing]", metavar="WHAT")
    ] = None,
    update: Annotated[
        str | None, typer.Option(help="after the backward pass, or inside it [after]", metavar="WHEN")
    ] = None,
    cache_dtype: Annotated[
        str | None, typer.Option(help="Numbers of the cache of keys and values [as --dtype]", metavar="NAME")
    ] = None,
    cache_only: Annotated[bool, typer.Option("--cache-only", help="Only the cache of keys and values.")] = False,
    fits: Annotated[
        str | None, typer.Option(help="Search the largest step that a process of this size takes.", metavar="8GB")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="With --fits: batch-size or context [batch-size]", metavar="WHAT")
    ] = None,
    time: Annotated[bool, typer.Option(help="Estimate the time; rates are measured once, in seconds.")] = True,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine's rates again.")] = False,
    json: Json = False,
) -> None:
    """Parameters, FLOPs, memory, cache and time of a training step, before anything is allocated.

    The step's own code runs on tensors that have a shape and no memory. As in handgrad train, flags win over MODEL or
    --preset. Square brackets give what holds otherwise.

    Try: handgrad plan --preset gpt2-small --layers 6 --dtype bfloat16 --fits 8GB
    """
    typed = {name: value for name, value in context.params.items() if name not in NOT_FLAGS and value is not None}
    flags = {("context" if name == "context_length" else name): value for name, value in typed.items()}
    output = output_of(context, json)
    with waiting("loading torch", output.live):
        from handgrad.cli.planning import Asked, show

    asked = Asked(model, preset, flags, cache_dtype, fits, search, time, calibrate, cache_only)
    show(asked, output)
