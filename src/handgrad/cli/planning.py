"""What `handgrad plan` does once its options are known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from handgrad.cli.options import problems
from handgrad.cli.output import Output, duration
from handgrad.cli.presets import Preset
from handgrad.cli.settings import (
    MODEL_FIELDS,
    TRAIN_FIELDS,
    as_flags,
    attempt,
    check_model,
    merged,
    picked,
    preset_named,
    with_followers,
)
from handgrad.cli.waiting import waiting
from handgrad.core.errors import ConfigError
from handgrad.models.found import find
from handgrad.models.load import config_of
from handgrad.models.store import read_state
from handgrad.plan.cache import CacheBytes, cache_of
from handgrad.plan.calibrate import calibration
from handgrad.plan.fits import SEARCHES, Fit, bytes_of, changed, fits, in_units
from handgrad.plan.plan import CACHE_DTYPES, Plan, meta_ids, plan
from handgrad.train.config import TrainConfig
from handgrad.train.size import memory_bytes

VOCABULARIES = {"gpt2-small": 50257}  # of the tokenizers that these presets are named after
BYTES = 256
FIELDS = MODEL_FIELDS | {"vocabulary": "vocabulary"}


@dataclass(frozen=True)
class Asked:
    """The command line: `flags` holds what was typed, a flag's name without its dashes -> its value."""

    model: str | None
    preset: str | None
    flags: Mapping[str, Any]
    cache_dtype: str | None
    fits: str | None
    search: str | None
    time: bool
    calibrate: bool
    cache_only: bool


def show(asked: Asked, output: Output) -> None:
    """Plan, and print it. Raises ConfigError, FileError."""
    if asked.cache_only and (asked.fits is not None or asked.calibrate):
        raise ConfigError("--cache-only plans the cache and nothing else; leave out --fits and --calibrate")
    if asked.calibrate and not asked.time:
        raise ConfigError("--no-time leaves out the estimate that --calibrate measures for; leave one of them out")
    search = SEARCHES[0] if asked.search is None else asked.search
    if search not in SEARCHES:
        raise ConfigError(f"--search is {asked.search!r}, and must be one of {', '.join(SEARCHES)}")
    if asked.search is not None and asked.fits is None:
        raise ConfigError("--search is for --fits, which is not there; give a size such as --fits 8GB, or leave it out")
    shape, config = resolved(asked)
    if config.compile:
        output.note("this run compiles its blocks; it is planned as if it did not, and may hold a little less")
        config = replace(config, compile=False)
    if config.sample_clip or config.sample_norms:
        more = "up to the size of its parameters" if config.sample_clip else "a little"
        output.note(f"this run looks at single samples; it is planned as if it did not, and may hold {more} more")
        config = replace(config, sample_clip=0.0, sample_norms=False)
    if asked.cache_dtype is not None and asked.cache_dtype not in CACHE_DTYPES:
        raise ConfigError(f"--cache-dtype is {asked.cache_dtype!r}, and must be one of {', '.join(CACHE_DTYPES)}")
    cache_dtype = CACHE_DTYPES[asked.cache_dtype or config.dtype]
    if asked.cache_only:
        cache = cache_of(shape.layers(), meta_ids(config.batch_size, 1), shape.context, cache_dtype, shape.ties())
        output.record({"cache_bytes": cache.total, "cache_bytes_per_token": cache.per_token, "cache": asdict(cache)})
        output.text(lines_of(cache_rows(cache)))
        return
    base, found = resident_bytes(), None
    if asked.fits is not None:
        limit = bytes_of(asked.fits)
        if (given := asked.flags.get(search.replace("-", "_"))) is not None:
            output.note(f"--{search} is what --fits searches: the {given} given does not count")
        output.note(f"searching the largest --{search} within {in_units(limit)} …")
        with waiting(f"trying one --{search} after another", output.live):
            found = fits(shape, config, limit, search, base)
        shape, config = changed(shape, config, found.search, found.value)
    try:
        with waiting("counting a step", output.live):
            planned = plan(shape, config, cache_dtype)
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise ConfigError(
            "this plan has more bytes than can be counted; use a smaller --batch-size, --context or --width"
        ) from None
    step_s = None
    if asked.time:
        if asked.calibrate:
            output.note("measuring this machine's rates …")
        with waiting("measuring this machine's rates", output.live):
            step_s = calibration(asked.calibrate).step_s(planned.trace)
    output.record(record(planned, config, base, step_s, found))
    output.text(text(planned, config, base, step_s, found))


def resolved(asked: Asked) -> tuple[Any, TrainConfig]:
    """Model and training, from a model on disk or from a preset, and the flags above them. Raises ConfigError once."""
    wrong: list[str] = []
    shape: Any = None
    if asked.model is not None:
        if asked.preset is not None:
            raise ConfigError("MODEL and --preset were both given, and both say what the shape is; leave one out")
        source = find(asked.model)
        state = read_state(source.path) if source.kind == "checkpoint" else {"train": {}}
        known = {f.name for f in fields(TrainConfig)}
        train: Mapping[str, Any] = {name: value for name, value in state["train"].items() if name in known}
        try:
            shape = replace(config_of(asked.model), **picked(asked.flags, FIELDS))
        except ConfigError as error:
            wrong.append(as_flags(str(error)))
    else:
        chosen = attempt(wrong, lambda: preset_named(asked.preset), Preset("", {}))
        first = {"vocabulary": VOCABULARIES.get(asked.preset or "", BYTES)}
        shape = check_model(merged(first, chosen.model, picked(asked.flags, FIELDS)), wrong)
        train = chosen.train
    options = with_followers(train, picked(asked.flags, TRAIN_FIELDS))
    config = attempt(wrong, lambda: TrainConfig(**options), None)
    if wrong or config is None:
        raise ConfigError(problems(wrong))
    return shape, config


def resident_bytes() -> int:
    """What this process holds now, its libraries above all; 0 where the system does not say."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        if found := re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE):
            return int(found[1]) * 1024
    return 0


def record(p: Plan, config: TrainConfig, base: int, step_s: float | None, found: Fit | None) -> dict[str, Any]:
    """The plan for programs."""
    numbers = {f.name: getattr(p, f.name) for f in fields(p) if f.name not in ("cache", "trace")}
    return {
        **numbers,
        "backward_flops": p.step_flops - p.forward_flops,
        "base_bytes": base,
        "process_bytes": base + p.held_bytes,
        "machine_bytes": memory_bytes(),
        "cache_bytes": p.cache.total,
        "cache_bytes_per_token": p.cache.per_token,
        "cache": asdict(p.cache),
        "step_s": step_s,
        "tokens_per_s": None if step_s is None else p.tokens_per_step / step_s,
        "batch_size": config.batch_size,
        "context": p.cache.tokens,
        "dtype": config.dtype,
        "recompute": config.recompute,
        "update": config.update,
        "fits": None if found is None else asdict(found),
    }


def text(p: Plan, config: TrainConfig, base: int, step_s: float | None, found: Fit | None) -> str:
    """The plan for people."""
    rows = [
        ("parameters", f"{p.n_parameters:,}", ""),
        ("products, forward", flops(p.forward_flops), f"a step of {p.tokens_per_step:,} tokens"),
        ("products, the rest", flops(p.step_flops - p.forward_flops), "backward, and what is recomputed"),
        ("", "", ""),
        ("parameters", in_units(p.parameter_bytes), ""),
        ("their shadow", in_units(p.shadow_bytes), "in bfloat16, for passes") if p.shadow_bytes else None,
        ("gradient", in_units(p.gradient_bytes), "" if p.gradient_bytes else "never whole: it comes piece by piece"),
        ("moments of the optimiser", in_units(p.moment_bytes), ""),
        ("saved for backward", in_units(p.saved_bytes), f"{config.batch_size} x {p.cache.tokens} tokens, exact"),
        ("the rest at the peak", in_units(p.rest_bytes), "errors and results on their way"),
        ("alive at the peak", in_units(p.peak_bytes), "the sum"),
        ("held by the process", in_units(base + p.held_bytes), held_note(p, base)),
        ("", "", ""),
        *cache_rows(p.cache),
    ]
    if step_s is not None:
        rows += [("", "", ""), ("time of a step", seconds(step_s), f"about {p.tokens_per_step / step_s:,.0f} tokens/s")]
    lines = [lines_of(list(filter(None, rows)))]
    if found is not None:
        lines += ["", fit_text(found)]
    machine = memory_bytes()
    if machine is not None and base + p.held_bytes > machine:
        lines += ["", f"This machine has {in_units(machine)}: the step does not fit."]
    return "\n".join(lines)


def cache_rows(cache: CacheBytes) -> list[tuple[str, str, str]]:
    return [
        ("cache, keys", in_units(cache.keys), f"{cache.batch} x {cache.tokens} tokens"),
        ("cache, values", in_units(cache.values), f"{in_units(cache.per_token)} a token for both"),
    ]


def lines_of(rows: list[tuple[str, str, str]]) -> str:
    return "\n".join(f"{name:<22}{value:>16}   {note}".rstrip() for name, value, note in rows)


def held_note(p: Plan, base: int) -> str:
    return f"{in_units(p.held_bytes)} with what the allocator cannot use again, {in_units(base)} libraries"


def fit_text(found: Fit) -> str:
    return (
        f"--{found.search} {found.value} is the largest that fits {in_units(found.limit_bytes)}: it takes "
        f"{in_units(found.held_bytes)}; {found.next_value} would take {in_units(found.next_held_bytes)}"
    )


def flops(n: float) -> str:
    """
    >>> flops(1_670_164_512_768)
    '1.67 TFLOP'
    """
    for unit in ("", "k", "M", "G", "T"):
        if n < 1000:
            return f"{n:.2f} {unit}FLOP"
        n /= 1000
    return f"{n:,.2f} PFLOP"


def seconds(s: float) -> str:
    return duration(s) if s >= 60 else f"{s:.2f} s" if s >= 1 else f"{1e3 * s:.1f} ms"
