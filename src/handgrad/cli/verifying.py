"""What `handgrad verify` does once its options are known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from handgrad.check.tolerance import FLOAT64, OVER_TORCH
from handgrad.check.verify import DTYPES, verify
from handgrad.check.verify_rows import Row, Verified
from handgrad.cli.options import problems
from handgrad.cli.output import Output
from handgrad.cli.proving import table
from handgrad.cli.waiting import waiting
from handgrad.cli.writing import with_flags
from handgrad.core.errors import ConfigError, DataError, HandgradError
from handgrad.data.checks import check_choice
from handgrad.models.load import load
from handgrad.models.model import Model

MOST_TOKENS = 256  # of a text; every signal of every pass is kept
ROWS, LENGTH = 2, 24  # of the ids that are drawn where no text is given
HEADS = ("comparison", "rows", "worst", "error", "torch's", "budget", "ok")


@dataclass(frozen=True)
class Request:
    """The options of one `handgrad verify`. Raises ConfigError at once for what cannot be, all of it together."""

    text: str | None = None
    dtypes: tuple[str, ...] = ()
    draws: int = 8
    peer: bool = True
    every: bool = False
    unknown: str = "abort"

    def __post_init__(self) -> None:
        wrong = [
            f"--dtype is {name!r}, and must be one of {', '.join(DTYPES)}" for name in self.dtypes if name not in DTYPES
        ]
        if self.draws < 1:
            wrong.append(f"--draws is {self.draws}, and must be at least 1")
        if self.text == "":
            wrong.append("--text is empty; leave it out to use ids that are drawn")
        try:
            check_choice(self.unknown)
        except HandgradError as error:
            wrong.append(f"--unknown: {error}")
        if wrong:
            raise ConfigError(problems(wrong))


def show(request: Request, name: str, output: Output) -> int:
    """Verify the model of that name and print the tables; 1 when a signal is wrong. Raises HandgradError."""
    with waiting(f"loading {name}", output.live):
        model = load(name)
    tokens, what = tokens_of(model, request.text, output, request.unknown)
    if (needed := bytes_needed(model, tokens)) > (free := free_bytes()):
        raise ConfigError(
            f"verifying {tokens.numel()} tokens of this model needs about {needed / 1e9:.1f} GB, for every signal in "
            f"float64 and its oracle, and {free / 1e9:.1f} GB are free; a shorter --text needs less"
        )
    found = run(model, tokens, request, output)
    for row in found.rows:
        output.record(asdict(row))
    output.text(f"{model.params.layout.count:,} parameters, {what}")
    for layer, rows in by_layer(found):
        output.text(f"\n{layer}\n" + indented(table(HEADS, shown(rows, request.every))))
    output.text("\n" + budgets(found))
    for reason in found.left_out:
        output.text(reason)
    output.text(verdict(found))
    wrong = found.first_wrong
    last = {"ok": found.ok, "rows": len(found.rows), "tokens": tokens.tolist(), "left_out": found.left_out}
    output.record(last | {"first_wrong": None if wrong is None else asdict(wrong)})
    return 0 if found.ok else 1


def run(model: Model, tokens: Tensor, request: Request, output: Output) -> Verified:
    """`verify`, with what it is doing on a terminal."""
    wanted = request.dtypes or tuple(DTYPES)
    if not output.live:
        return verify(model, tokens, wanted, request.peer, request.draws)
    with Console(stderr=True, highlight=False).status("verifying") as status:
        return verify(model, tokens, wanted, request.peer, request.draws, status.update)


def tokens_of(
    model: Model, text: str | None, output: Output, unknown: str = "abort", most: int = MOST_TOKENS
) -> tuple[Tensor, str]:
    """Ids ~ (B, T), and in words what they are. A text that is too long is cut, and that is said."""
    if text is None:
        length = min(LENGTH, model.config.context)
        ids = torch.randint(model.config.vocabulary, (ROWS, length), generator=torch.Generator().manual_seed(0))
        return ids, f"{ROWS} rows of {length} ids drawn with seed 0"
    if model.tokenizer is None:
        raise ConfigError("this model comes without a tokenizer, so it cannot read --text; leave it out to draw ids")
    try:
        found = [int(i) for i in model.tokenizer.encode(text, unknown)]
    except DataError as error:
        raise DataError(f"--text: {with_flags(str(error))}") from None
    if len(found) < 2:
        raise ConfigError(f"--text has {len(found)} token{'s' * (len(found) != 1)}, and at least 2 are needed")
    most = min(most, model.config.context)
    if len(found) > most:
        output.note(f"--text is cut to its first {most} of {len(found)} tokens")
    return torch.tensor([found[:most]]), f"{min(len(found), most)} tokens of the text"


def bytes_needed(model: Model, tokens: Tensor) -> int:
    """About the memory of float64 passes that are compared: their signals, parameters and gradients."""
    c: Any = model.config
    B, T = tokens.shape
    signals = c.n_layers * (24 * c.d_model + 8 * c.d_inner + 10 * c.n_heads * T) + 4 * c.vocabulary
    return 8 * (6 * B * T * signals + 8 * model.params.layout.count)


def free_bytes() -> float:
    """Memory that is free, as the system says; without bound where it does not say."""
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return float("inf")


def by_layer(found: Verified) -> list[tuple[str, list[Row]]]:
    """Layers in the order in which forward comes to them, each with its rows."""
    layers: dict[str, list[Row]] = {}
    for row in found.rows:
        layers.setdefault(row.layer, []).append(row)
    return list(layers.items())


def of_budget(row: Row) -> tuple[bool, float]:
    """How bad a row is: whether it fails, and its error by what is allowed; a signal that is missing is allowed 0."""
    return not row.ok, row.error / row.budget if row.budget else row.error


def shown(rows: Sequence[Row], every: bool) -> list[tuple[str, ...]]:
    """The cells of a layer's table: all rows, or the worst of each comparison."""
    cells = []
    ordered = sorted(rows, key=lambda row: row.comparison)
    for comparison, group in groupby(ordered, key=lambda row: row.comparison):
        several = list(group)
        for row in several if every else [max(several, key=of_budget)]:
            signal = row.signal + (f" ({row.note})" if row.note else "")
            torchs = "" if row.torchs is None else f"{row.torchs:.1e}"
            n = "" if every else str(len(several))
            verdict = "yes" if row.ok else "NO"
            cells.append((comparison, n, signal, f"{row.error:.1e}", torchs, f"{row.budget:.1e}", verdict))
    return cells


def indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))


def budgets(found: Verified) -> str:
    """What each comparison is and how much it allows, for those that were made."""
    texts = {
        "float64": f"float64       backward against torch's autograd: at most {FLOAT64:g} of the signal's norm",
        "fused": f"fused         fused forms against explicit ones, float64: at most {FLOAT64:g}",
        "float32": f"float32       against float64: at most {OVER_TORCH:g} times the error of torch, and one rounding",
        "bfloat16": f"bfloat16      against float64: at most {OVER_TORCH:g} times the error of torch, and one rounding",
        "transformers": "transformers  float64 against the library of that name: the budget of its row",
    }
    made = {name.split(" ")[0] for name in found.comparisons}
    return "\n".join(text for name, text in texts.items() if name in made)


def verdict(found: Verified) -> str:
    wrong = found.first_wrong
    if wrong is None:
        return f"all {len(found.rows):,} rows hold"
    n = sum(not row.ok for row in found.rows)
    note = f", {wrong.note}" if wrong.note else ""
    return (
        f"WRONG: {n:,} of {len(found.rows):,} rows do not hold. First in the order of computation: {wrong.signal} "
        f"({wrong.comparison}: error {wrong.error:.1e}, budget {wrong.budget:.1e}{note})"
    )
