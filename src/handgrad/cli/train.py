"""`handgrad train`: text in; a trained model, its metrics and a report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from handgrad.cli.options import Json, output_of
from handgrad.cli.waiting import waiting

NOT_FLAGS = ("data", "out", "preset", "config", "resume", "json", "compile", "sample_norms")


def train(
    context: typer.Context,
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="Text files, .npy or .bin of ids; `embedded` is Python's documentation."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run.", metavar="DIR")] = None,
    preset: Annotated[str | None, typer.Option(help="Settings under one name, see below.", metavar="NAME")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as in a run's config.toml.", metavar="FILE")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in DIR; of the rest, --steps.")] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="bytes, chars, bpe:N, ids or a tokenizer.json [bytes; ids for .npy and .bin]", metavar="NAME"
        ),
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="How many ids there are [largest + 1]", metavar="N")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks of the model [4]", metavar="N")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads of a block [4]", metavar="N")] = None,
    width: Annotated[int | None, typer.Option(help="Width, a multiple of --heads [128]", metavar="N")] = None,
    context_length: Annotated[
        int | None, typer.Option("--context", help="Most tokens that are looked at [64]", metavar="N")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Share dropped while training [0]", metavar="RATE")] = None,
    bias: Annotated[bool | None, typer.Option(help="Offsets in linear layers and norms [bias]")] = None,
    activation: Annotated[str | None, typer.Option(help="Function inside the MLP [gelu_tanh]", metavar="NAME")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps of the whole run [2000]", metavar="N")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows of one micro-batch [12]", metavar="N")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Micro-batches of one step [1]", metavar="N")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate a step at its peak [0.001]", metavar="RATE")] = None,
    lr_floor: Annotated[
        float | None, typer.Option(help="Learning rate at the end [a tenth of --lr]", metavar="RATE")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Steps until the peak [100, at most a tenth of --steps]", metavar="N")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's, on matrices only [0.1]", metavar="RATE")] = None,
    beta1: Annotated[
        float | None, typer.Option(help="Memory of gradients, or SGD's momentum [0.9]", metavar="RATE")
    ] = None,
    beta2: Annotated[float | None, typer.Option(help="AdamW's memory of their squares [0.99]", metavar="RATE")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm, 0 is off [1.0]", metavar="NORM")] = None,
    clip_by: Annotated[
        str | None, typer.Option(help="Norm of the whole gradient, or each parameter's [whole]", metavar="WHAT")
    ] = None,
    optimiser: Annotated[str | None, typer.Option(help="adamw or sgd [adamw]", metavar="NAME")] = None,
    seed: Annotated[int | None, typer.Option(help="Of first weights, windows and dropout [0]", metavar="N")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps between validations [250]", metavar="N")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints [500]", metavar="N")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float64 [float32]", metavar="NAME")] = None,
    impl: Annotated[
        str | None,
        typer.Option(
            help="auto; explicit or fused formulas, where a rule has both, and of the optimiser's update [auto]",
            metavar="NAME",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N [cpu]", metavar="NAME")] = None,
    recompute: Annotated[
        str | None,
        typer.Option(help="To save memory: nothing, cheap (norms, activations) or blocks [nothing]", metavar="WHAT"),
    ] = None,
    update: Annotated[
        str | None, typer.Option(help="after the backward pass, or inside it: less memory [after]", metavar="WHEN")
    ] = None,
    sample_clip: Annotated[
        float | None,
        typer.Option(help="Largest norm of each sample's gradient, 0 is off; gives no privacy [0.0]", metavar="NORM"),
    ] = None,
    sample_norms: Annotated[
        bool, typer.Option("--sample-norms", help="Log every step's sample norms and gradient noise.")
    ] = False,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the blocks; needs a C++ compiler.")] = False,
    json: Json = False,
) -> None:
    """Train a GPT by hand-written backpropagation.

    DIR gets config.toml, metrics.jsonl, checkpoints/, the tokens (data/) and report.html. Ctrl-C saves and stops;
    --resume goes on as if it had never stopped, as long as --steps stays the same; with a larger --steps, the
    learning rate follows the longer schedule from there on. Flags win over --config, which wins over --preset.
    Square brackets give what holds otherwise.

    Try: handgrad train embedded --out runs/first --tokenizer chars --steps 500
    """
    output = output_of(context, json)
    typed = {name: value for name, value in context.params.items() if name not in NOT_FLAGS and value is not None}
    flags = {("context" if name == "context_length" else name): value for name, value in typed.items()}
    with waiting("loading torch", output.live):
        from handgrad.cli.running import conclude, fresh, refuse_taken, resumed, run_folder
        from handgrad.cli.settings import resolve
        from handgrad.core.errors import ConfigError

    flags |= {name: True for name, given in (("compile", compile), ("sample_norms", sample_norms)) if given}
    if out is None:
        raise ConfigError("--out is missing: the folder that the run is written to, such as --out runs/first")
    folder = run_folder(out)
    if resume:
        named = [name for name in ("data", "preset", "config") if context.params[name]]
        refuse_beside_resume(folder, named + [name for name in flags if name != "steps"])
        conclude(resumed(folder, steps, output), folder, output)
    else:
        settings = resolve(flags, data or [], preset, None if config is None else str(config))
        refuse_taken(folder)
        conclude(fresh(folder, settings, output), folder, output)


def refuse_beside_resume(out: Path, others: list[str]) -> None:
    from handgrad.core.errors import ConfigError

    if others:
        spelled = ", ".join("DATA" if name == "data" else "--" + name.replace("_", "-") for name in others)
        raise ConfigError(
            f"--resume goes on with the settings in {out / 'config.toml'} and takes only --out and --steps beside it; "
            f"leave out {spelled}, or start a new run"
        )
