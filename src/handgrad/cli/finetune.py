"""`handgrad finetune`: a model and text in; a small adapter beside the model out, or the whole model trained on."""

from __future__ import annotations

from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of
from handgrad.cli.waiting import waiting

NOT_FLAGS = ("model", "data", "out", "resume", "json")


def finetune(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As for generate; an adapter may get another on top.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="Text files, .npy or .bin of ids; `embedded` is Python's documentation."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run and the adapter.", metavar="DIR")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in DIR; of the rest, --steps.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Train all parameters, without an adapter.")] = False,
    rank: Annotated[int | None, typer.Option(help="Columns of A [8]", metavar="R")] = None,
    alpha: Annotated[float | None, typer.Option(help="The update is scaled by ALPHA/R [16]", metavar="ALPHA")] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            help="Linear layers that get an update: names or globs, such as attention.*,mlp.up "
            "[attention.query,attention.key,attention.value]",
            metavar="NAMES",
        ),
    ] = None,
    rslora: Annotated[bool, typer.Option("--rslora", help="Scale by ALPHA/√R.")] = False,
    dropout: Annotated[float | None, typer.Option(help="On the input of updates [0]", metavar="RATE")] = None,
    context_length: Annotated[
        int | None, typer.Option("--context", help="Tokens of a window [MODEL's context, at most 512]", metavar="N")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps of the whole run [200]", metavar="N")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows of one micro-batch [4]", metavar="N")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Micro-batches of one step [1]", metavar="N")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate at its peak [0.0003; 0.00003 with --full]", metavar="RATE")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Steps until the peak [100, at most a tenth of --steps]", metavar="N")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's, on matrices only [0]", metavar="RATE")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm, 0 is off [1.0]", metavar="NORM")] = None,
    seed: Annotated[int | None, typer.Option(help="Of A, of windows and of dropout [0]", metavar="N")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations [50]", metavar="N")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints [100]", metavar="N")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float64 [float32]", metavar="NAME")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N [cpu]", metavar="NAME")] = None,
    recompute: Annotated[
        str | None, typer.Option(help="To save memory: nothing, cheap or blocks [cheap]", metavar="WHAT")
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the blocks; needs a C++ compiler.")] = False,
    json: Json = False,
) -> None:
    """Train low-rank updates (LoRA) beside a model that stays as it is.

    DIR becomes a PEFT adapter (adapter_config.json, adapter_model.safetensors) that generate, chat, eval and peft take,
    with what --resume needs beside it: config.toml, metrics.jsonl, checkpoints/, data/, and report.html. Texts are
    read with MODEL's own tokenizer. Square brackets give what holds otherwise.

    Try: handgrad finetune docs-1m notes.txt --out runs/notes
    """
    output = output_of(context, json)
    typed = {name: value for name, value in context.params.items() if name not in NOT_FLAGS and value is not None}
    flags = {("window" if name == "context_length" else name): v for name, v in typed.items() if v is not False}
    with waiting("loading torch", output.live):
        from handgrad.cli.finetuning import begin, go_on
        from handgrad.cli.running import run_folder
        from handgrad.core.errors import ConfigError

    if out is None:
        raise ConfigError("--out is missing: the folder that the adapter is written to, such as --out runs/tuned")
    if resume:
        if others := [n for n in ("model", "data") if context.params[n]] + [n for n in flags if n != "steps"]:
            spelled = ", ".join(n.upper() if n in ("model", "data") else "--" + n.replace("_", "-") for n in others)
            raise ConfigError(
                f"--resume takes only --out and --steps beside it, all else is in DIR; leave out {spelled}"
            )
        go_on(run_folder(out), steps, output)
    elif model is None:
        raise ConfigError("MODEL is missing: what to train on from, such as docs-1m or a folder")
    else:
        begin(model, data or [], run_folder(out), flags, output)
