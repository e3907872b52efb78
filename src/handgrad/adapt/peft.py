"""Adapters as PEFT folders, in and out: adapter_config.json and adapter_model.safetensors.

Theirs are lora_A ~ (r, n_in) and lora_B ~ (n_out, r), ours A ~ (n_in, r) and B ~ (r, n_out), for layers of either
orientation. GPT-2's query, key and value are one matrix there, c_attn, with one A and one B; ours are three, with A
shared and B the columns of each. What is not shared here (ranks that differ) is written as one A of all ranks side by
side and a B of blocks; a branch without an update is columns of zeros. All of that is the same function.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from handgrad.adapt.lora import Fit, fitted, updates
from handgrad.adapt.peft_config import Described, read_config, written_config
from handgrad.core.errors import ConfigError, FileError, cut
from handgrad.layers.lowrank import LowRank
from handgrad.models.export import new_folder, synced
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.load import load
from handgrad.models.model import Model
from handgrad.models.names import Piece, gpt2_pieces, llama_pieces
from handgrad.models.stored import FLOATS, Stored, some
from handgrad.models.tensors import tensors_of, write_tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
KEY = re.compile(r"base_model\.model\.(.{1,200})\.lora_([AB])\.weight")
DEEPEST = 8  # adapters on adapters


def modules(model: Model) -> dict[str, dict[str, Piece]]:
    """Their linear layer -> our linear layers in it, with the place of each."""
    layer = model.config.layers()
    shapes = {name: slot.shape for name, slot in layer.slots().items() if name.endswith(".w")}
    pieces = (gpt2_pieces if isinstance(model.config, GPT2Config) else llama_pieces)(model.config, shapes)
    found: dict[str, dict[str, Piece]] = {}
    for name, piece in pieces.items():
        found.setdefault(piece.theirs.removesuffix(".weight"), {})[name.removesuffix(".w")] = piece
    return found


def write_adapter(model: Model, folder: str | Path, base: str) -> Path:
    """Write the updates that are trained, the newest of each layer, as a new folder that peft loads onto `base`.

    Raises ConfigError where the model has none, FileError where the folder holds something or the disk refuses.
    """
    target = Path(folder)
    with new_folder(target) as unfinished:
        write_files(model, unfinished, base)
    return target


def write_files(model: Model, folder: Path, base: str) -> None:
    """The two files, into a folder that is there. Each takes its name only when it is whole."""
    newest = {
        name: stack[0] for name, stack in updates(model).items() if f"{stack[0][0]}.B" in model.params.layout.slots
    }
    if not newest:
        raise ConfigError(
            "the model has no low-rank update, so there is no adapter to write; see handgrad.adapt.adapted"
        )
    tensors: dict[str, Tensor] = {}
    fits: dict[str, Fit] = {}
    for module, members in modules(model).items():
        if any(name in newest for name in members):
            A, B, fits[module] = together(model, {name: newest.get(name) for name in members})
            for factor, x in (("A", A), ("B", B)):
                tensors[f"base_model.model.{module}.lora_{factor}.weight"] = x.mT.contiguous()
    part = next(iter(newest.values()))[1]
    gpt2 = isinstance(model.config, GPT2Config)
    about = Described(fits, part.rslora, part.dropout, gpt2, base)
    text = json.dumps(written_config(about, model.config.n_layers), indent=2, sort_keys=True) + "\n"
    shapes = {name: tuple(x.shape) for name, x in sorted(tensors.items())}
    for name in (WEIGHTS, CONFIG):
        unfinished = folder / f".{name}.{os.getpid()}"
        with open(unfinished, "wb") as file:
            if name == CONFIG:
                file.write(text.encode())
            else:
                write_tensors(file, shapes, model.params.flat.dtype, lambda n: tensors[n].cpu(), {"format": "pt"})
            synced(file)
        os.replace(unfinished, folder / name)


def together(model: Model, members: Mapping[str, tuple[str, LowRank] | None]) -> tuple[Tensor, Tensor, Fit]:
    """One A ~ (n_in, R) and one B ~ (R, n_out) for all our layers in one of theirs, and their rank and alpha.

    Of layers with one A and one scale, R is their rank. Of others it is the sum of the ranks, and B is made of blocks:
    layer i has its own rows and its own columns, and is 0 elsewhere.
    """
    there = [one for one in members.values() if one is not None]
    numbers, first = model.params, there[0][1]
    As = {numbers[f"{at}.A"].data_ptr(): numbers[f"{at}.A"] for at, _ in there}
    one = len(As) == 1 and len({(part.rank, part.alpha) for _, part in there}) == 1
    rank = first.rank if one else sum(part.rank for _, part in there)
    alpha = first.alpha if one else first.s * (rank**0.5 if first.rslora else rank)
    width = next(iter(there))[1].n_out
    columns, row = [], 0
    for found in members.values():
        block = numbers.flat.new_zeros(rank, width if found is None else found[1].n_out)
        if found is not None:
            at, part = found
            scale = 1.0 if one else part.s / first.s
            block[row : row + part.rank] = numbers[f"{at}.B"] * scale
            row += 0 if one else part.rank
        columns.append(block)
    A = next(iter(As.values())) if one else torch.cat([numbers[f"{at}.A"] for at, _ in there], 1)
    return A, torch.cat(columns, 1), Fit(rank, alpha)


def load_adapter(
    folder: str | Path,
    base: Model | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: bool = True,
) -> Model:
    """The model that an adapter belongs to, with the adapter on it: to be written with, merged, or trained on.

    base    the model; left out, the one that the folder names, as a path or a name on this machine. Nothing is fetched.

    Raises FileError for what is missing, damaged or of another model, ConfigError for what is no plain LoRA.
    """
    folder = Path(folder)
    about, stored = read_config(folder / CONFIG), tensors_in(folder)
    if base is None:
        base = load(base_path(folder, about.base), dtype, tokenizer)
    found = matched(folder, about, stored, modules(base))
    chosen = {
        name: about.fits[module] for module, members in modules(base).items() if module in found for name in members
    }
    model = fitted(base, chosen, about.rslora, about.dropout)
    for module, members in modules(base).items():
        if module not in found:
            continue
        A, B = (found[module][factor].read().to(model.params.flat.dtype).mT for factor in "AB")
        for name, piece in members.items():
            model.params[f"{name}.lora.A"] = A
            model.params[f"{name}.lora.B"] = B[:, slice(*piece.columns)] if piece.columns else B
    return model


def tensors_in(folder: Path) -> dict[str, Stored]:
    if (folder / WEIGHTS).exists():
        return tensors_of(folder / WEIGHTS)
    if (folder / PICKLE).exists():
        raise FileError(
            f"{folder} has its numbers in {PICKLE} only: such a file can run code, and is not read. Expected "
            f"{WEIGHTS}, which save_pretrained of peft writes"
        )
    raise FileError(f"{folder} is not a whole adapter: {WEIGHTS} is missing")


def base_path(folder: Path, base: str) -> str:
    """Where the model lies that an adapter names: as the name is, or seen from the adapter's folder."""
    if not base:
        raise FileError(f"{folder / CONFIG} does not say which model it belongs to: base_model_name_or_path is missing")
    near = folder / base
    path = base if os.path.exists(base) or not os.path.exists(near) else str(near)
    at, seen = Path(path), 0
    while at.is_dir() and (at / CONFIG).exists() and seen <= DEEPEST:
        below = read_config(at / CONFIG).base
        at, seen = (Path(below) if os.path.exists(below) else at / below), seen + 1
    if seen > DEEPEST:
        raise FileError(f"{folder} stands on more than {DEEPEST} adapters, or on itself: name its model another way")
    return path


def matched(
    folder: Path, about: Described, stored: Mapping[str, Stored], known: Mapping[str, Mapping[str, Piece]]
) -> dict[str, dict[str, Stored]]:
    """Their layer -> its lora_A and lora_B, every tensor of the file in its place. Fills in `about.fits`."""
    path = folder / WEIGHTS
    keys = {name: KEY.fullmatch(name) for name in stored}
    here = {name: key for name, key in keys.items() if key and key[1] in known}
    if not here:
        example = f"base_model.model.{next(iter(known))}.lora_A.weight"
        raise FileError(
            f"{path}: none of its {len(stored)} tensors belongs to this model ({some(sorted(stored))}); expected names "
            f"such as {example}. Is it the adapter of another model?"
        )
    if odd := sorted(stored.keys() - here.keys()):
        raise FileError(f"{path} does not fit the model: {some(odd)} found, and no low-rank update of a linear layer")
    found: dict[str, dict[str, Stored]] = {}
    for name, key in here.items():
        found.setdefault(key[1], {})[key[2]] = stored[name]
    for module, factors in found.items():
        if len(factors) < 2:
            raise FileError(f"{path} is not whole: {module} has lora_{next(iter(factors))} alone")
        piece = next(iter(known[module].values()))
        n_in, n_out = piece.shape[::-1] if piece.turned else piece.shape
        rank = factors["A"].shape[0] if len(factors["A"].shape) == 2 else 0
        if rank < 1 or factors["A"].shape != (rank, n_in) or factors["B"].shape != (n_out, rank):
            raise FileError(
                f"{path} does not fit the model: {module} needs lora_A (r, {n_in}) and lora_B ({n_out}, r), found "
                f"{factors['A'].shape} and {factors['B'].shape}"
            )
        for factor in factors.values():
            if factor.kind not in FLOATS:
                raise FileError(
                    f"{path}: {module} is stored as {factor.kind}, which is not read; known: {', '.join(FLOATS)}"
                )
        about.fit(module, rank, folder)
    if missing := sorted(module for module in known if about.targets(module) and module not in found):
        raise FileError(f"{path} is not whole: {cut(some(missing))} should have an update by {CONFIG}, and has none")
    return found
