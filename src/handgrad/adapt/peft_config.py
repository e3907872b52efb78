"""adapter_config.json, in both directions. What would change the function, or what is trained, is refused by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handgrad.adapt.lora import Fit
from handgrad.core.errors import ConfigError, FileError, cut
from handgrad.data.files import read_json
from handgrad.layers.lowrank import MOST_ALPHA

MOST = 4 << 20  # bytes
SPECIAL = set("\\^$*+?{}[]|()")

# What peft writes beside the fields below, and the values with which it is the update that we compute. Whatever else a
# newer peft writes has to be empty.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": (None, "CAUSAL_LM"),
    "bias": ("none",),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal"),
    "megatron_core": ("megatron.core", None),
    "qalora_group_size": (16, None),
}
WHY = {
    "use_dora": "DoRA scales each column of the whole matrix besides",
    "init_lora_weights": "it changes the model itself before training begins",
    "bias": "training offsets changes the model itself",
    "modules_to_save": "it replaces whole parts of the model",
    "layers_to_transform": "name the layers in target_modules instead",
    "lora_bias": "the update has an offset of its own",
    "trainable_token_indices": "it replaces rows of the embedding",
    "target_parameters": "it changes parameters of layers that are not linear",
}
INERT = {  # whatever they say, the function is the same
    "auto_mapping",
    "peft_version",
    "revision",
    "inference_mode",
    "runtime_config",
    "exclude_modules",
    "target_modules",
    "fan_in_fan_out",
}
TYPES: dict[str, tuple[type, ...]] = {
    "r": (int,),
    "lora_alpha": (int, float),
    "lora_dropout": (int, float),
    "use_rslora": (bool,),
    "rank_pattern": (dict,),
    "alpha_pattern": (dict,),
    "base_model_name_or_path": (str, type(None)),
}


@dataclass
class Described:
    """An adapter by its configuration: rank and alpha of their layers by name, and what holds for all of them."""

    fits: dict[str, Fit]
    rslora: bool
    dropout: float
    gpt2: bool = False
    base: str = ""
    table: Mapping[str, Any] = field(default_factory=dict)

    def targets(self, module: str) -> bool:
        """Whether the configuration names the layer; a pattern (a regular expression) is left to its author."""
        named = self.table.get("target_modules")
        excluded = self.table.get("exclude_modules") or []
        if not isinstance(named, list) or not isinstance(excluded, list):
            return False
        return any(ends(module, name) for name in named) and not any(ends(module, name) for name in excluded)

    def fit(self, module: str, rank: int, folder: Path) -> None:
        """Note the layer's rank and alpha. Raises FileError where the file has another rank than is written there."""
        first = lambda pattern, otherwise: next((v for name, v in pattern.items() if fits(module, name)), otherwise)  # noqa: E731
        said = first(self.table["rank_pattern"], self.table["r"])
        alpha = first(self.table["alpha_pattern"], self.table["lora_alpha"])
        if said != rank:
            raise FileError(
                f"{folder}: the update of {module} has the rank {rank}, and its configuration says {cut(said)}"
            )
        self.fits[module] = Fit(rank, alpha)


def ends(module: str, name: Any) -> bool:
    """
    >>> ends("transformer.h.0.attn.c_attn", "c_attn"), ends("transformer.h.0.attn.c_attn", "attn")
    (True, False)
    """
    return isinstance(name, str) and (module == name or module.endswith(f".{name}"))


def fits(module: str, pattern: Any) -> bool:
    """As peft reads the names of rank_pattern and alpha_pattern: in a regular expression, where a dot is any character.

    >>> fits("model.layers.0.self_attn.q_proj", "q.proj"), fits("model.layers.0.self_attn.q_proj", "proj")
    (True, False)
    """
    return isinstance(pattern, str) and re.fullmatch(rf"(.*\.)?({pattern})", module, re.DOTALL) is not None


def read_config(path: Path) -> Described:
    """Raises FileError for a file that is missing or damaged, ConfigError for an adapter of another kind."""
    if not path.exists():
        raise FileError(f"{path.parent} is not a whole adapter: {path.name} is missing")
    table = read_json(path, MOST)
    if not isinstance(table, dict):
        raise FileError(f"{path} is {cut(table)}, and must be a table")
    table = {"rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False, "lora_dropout": 0.0} | table
    table |= {name: {} for name in ("rank_pattern", "alpha_pattern") if table[name] is None}
    for name, value in table.items():
        allowed = ALLOWED.get(name, ())
        if name in TYPES or name in INERT or (allowed and value in allowed):
            continue
        if allowed or value not in (None, False, [], {}):
            why = f": {WHY[name]}" if name in WHY else ""
            raise ConfigError(
                f"{path}: {cut(name)} is {cut(value)!r}, which is not supported{why}. Only plain low-rank updates of "
                "linear layers are read"
            )
    for name, types in TYPES.items():
        if name not in table and name != "base_model_name_or_path":
            raise FileError(f"{path} is damaged: {name} is missing")
        if type(table.get(name)) not in types:
            raise FileError(f"{path} is damaged: {name} is {cut(table.get(name))!r}, which has the wrong type")
    for pattern, least in (("rank_pattern", 1), ("alpha_pattern", 0)):
        for name, value in table[pattern].items():
            if SPECIAL & set(name):
                raise ConfigError(
                    f"{path}: {pattern} has the regular expression {cut(name)!r}; write out the names of layers"
                )
            if type(value) not in ((int,) if least else (int, float)) or not least <= value < MOST_ALPHA:
                raise FileError(f"{path} is damaged: {pattern} gives {cut(name)!r} the value {cut(value)!r}")
    alpha, dropout = table["lora_alpha"], table["lora_dropout"]
    if not 0 < alpha < MOST_ALPHA or not 0 <= dropout < 1:
        raise FileError(f"{path} is damaged: lora_alpha is {cut(alpha)}, lora_dropout {cut(dropout)}")
    return Described(
        {}, table["use_rslora"], float(dropout), base=table.get("base_model_name_or_path") or "", table=table
    )


def written_config(about: Described, n_layers: int) -> dict[str, Any]:
    """The table that peft reads. Layers are named by the end of their name where each block has its update."""
    (common, _), *_ = Counter(about.fits.values()).most_common(1)
    counts = Counter(suffix(module) for module in about.fits)
    targets = sorted({suffix(m) if counts[suffix(m)] == n_layers else m for m in about.fits})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": about.base,
        "r": common.rank,
        "lora_alpha": whole(common.alpha),
        "lora_dropout": about.dropout,
        "use_rslora": about.rslora,
        "target_modules": targets,
        "rank_pattern": {m: fit.rank for m, fit in about.fits.items() if fit.rank != common.rank},
        "alpha_pattern": {m: whole(fit.alpha) for m, fit in about.fits.items() if fit.alpha != common.alpha},
        "fan_in_fan_out": about.gpt2,
        "bias": "none",
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
    }


def suffix(module: str) -> str:
    """
    >>> suffix("model.layers.3.self_attn.q_proj"), suffix("transformer.h.3.attn.c_proj")
    ('self_attn.q_proj', 'attn.c_proj')
    """
    return ".".join(module.split(".")[-2:])


def whole(x: float) -> float:
    return int(x) if float(x).is_integer() else x
