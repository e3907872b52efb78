"""The lines of the table: which figure, whose, against whom, and what was aimed at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import Results


class NotMeasured(Exception):
    """Why there is no such figure."""


Figure = Callable[[Results, str], float]


@dataclass(frozen=True)
class Line:
    """One line.

    work      what is measured, in words
    figure    from the results and a name to the number
    ours      the name of our row
    peers     names of the rows that are shown beside it
    shown     how a figure is written, with its unit
    against   ours is divided by this peer's figure; "" compares the figure itself
    at_least, at_most   what was aimed at; neither: the line is shown only
    flags     what handgrad is run with, beyond what the line's words say

    >>> line = Line("speed", lambda results, who: 3.0, "ours", at_least=1.4, against="peer")
    >>> line.aim(), line.reached(1.5), line.reached(1.39)
    ('at least 1.4 x peer', 'yes', 'no')
    """

    work: str
    figure: Figure
    ours: str
    peers: tuple[str, ...] = ()
    shown: str = "{:.2f}"
    against: str = ""
    at_least: float | None = None
    at_most: float | None = None
    flags: str = ""

    def label(self) -> str:
        """What is measured, and what handgrad is run with."""
        return f"{self.work}; handgrad {self.flags}" if self.flags else self.work

    def aim(self) -> str:
        for words, value in (("at least", self.at_least), ("at most", self.at_most)):
            if value is not None:
                return f"{words} {value} x {self.against}" if self.against else f"{words} {self.shown.format(value)}"
        return ""

    def reached(self, value: float) -> str:
        if self.at_least is not None:
            return "yes" if value >= self.at_least else "no"
        if self.at_most is not None:
            return "yes" if value <= self.at_most else "no"
        return "-"


def number(results: Results, file: str, work: str, who: str, column: str) -> float:
    """Raises NotMeasured where there is no such row, or the row says why it has no figure."""
    row = results.row(file, work, who)
    if row is None:
        raise NotMeasured(f"no row in {file}.csv")
    if row.get("unavailable"):
        raise NotMeasured(row["unavailable"])
    if not row.get(column):
        raise NotMeasured(f"{file}.csv has no {column} for it")
    return float(row[column])


def column(file: str, work: str, name: str, scale: float = 1.0) -> Figure:
    return lambda results, who: scale * number(results, file, work, who, name)


def per_second(file: str, work: str) -> Figure:
    return lambda results, who: 1e3 / number(results, file, work, who, "median_ms")


GPT2 = "GPT-2 124M step, batch 2 x 1024"
SMALL, TWIN = "step 4x128, context 64, batch 12", "autograd twin, eager"
INSIDE = "update inside the backward pass"
LOSS = "tinyshakespeare chars 4x128, 600 steps"


def over_ideal(results: Results, who: str) -> float:
    """A step's time over the time of its products and attention alone, in the same dtype."""
    dtype = "bfloat16" if "bfloat16" in who else "float32"
    ideal = number(results, "ceilings", GPT2, f"ideal step, {dtype}", "median_ms")
    return 2048e3 / number(results, "gpt2_step", GPT2, who, "tokens_per_s") / ideal


def loss_gap(results: Results, who: str) -> float:
    """How far the loss reached in bfloat16 lies from the one in float32, in nats."""
    here, there = (number(results, "small_loss", LOSS, name, "val_loss_nats") for name in (who, "handgrad float32"))
    return abs(here - there)


def growth(results: Results, how: str) -> float:
    """The largest peak memory of any context over the smallest."""
    contexts = (1024, 2048, 4096, 8192)
    found = [
        number(results, "memory_context", "memory against context", f"{how} T {t}", "above_base_bytes")
        for t in contexts
    ]
    return max(found) / min(found)


def start_ms(results: Results, who: str) -> float:
    row = results.row("start", "handgrad --help", who)
    if row is not None and row["loads_torch"] == "True":
        raise NotMeasured("it loads torch, so its time is torch's")
    return number(results, "start", "handgrad --help", who, "median_ms")


SPEED, PEAK = column("gpt2_step", GPT2, "tokens_per_s"), column("gpt2_step", GPT2, "peak_bytes", 1e-9)
FLOAT32 = ("transformers eager float32", "twin eager float32")
BF16 = ("transformers autocast bfloat16", "compiled twin bfloat16", "handgrad compiled bfloat16")
SMOL, SPEED_OF_ONE = "SmolLM2-135M shape", "{:.1f} tokens/s"
CHEAP, BLOCKS = "--recompute cheap", "--update inside --recompute blocks"
RATE, GB, TIMES = "{:.0f} tokens/s", "{:.2f} GB", "{:.2f}"

LORA = "LoRA step of GPT-2 124M, r 8, batch 2 x 1024"
PEFT = {"float32": ("peft float32",), "bfloat16": ("peft autocast bfloat16", "peft on bfloat16 weights")}

SAMPLES = "GPT-2 124M per-sample norms, batch 4 x 128, float32"

LINES: tuple[Line, ...] = (
    Line(f"{GPT2}, float32", SPEED, "handgrad float32", FLOAT32, RATE, FLOAT32[0], at_least=1.4, flags=CHEAP),
    Line(f"{GPT2}, bfloat16", SPEED, "handgrad bfloat16", BF16, RATE, BF16[0], at_least=1.5, flags=CHEAP),
    Line(f"{GPT2}, bfloat16", SPEED, "handgrad bfloat16", BF16, RATE, BF16[1], at_least=1.25, flags=CHEAP),
    Line("its peak memory, float32", PEAK, "handgrad float32", FLOAT32, GB, FLOAT32[0], at_most=0.5, flags=CHEAP),
    Line("its peak memory, bfloat16", PEAK, "handgrad bfloat16", BF16, GB, BF16[0], at_most=0.5, flags=CHEAP),
    *(
        Line(
            f"its peak memory, {dtype}, update inside the backward pass, {clip}",
            column("update_in_backward", INSIDE, "peak_bytes", 1e-9),
            f"peak, {clip}, {dtype}",
            (f"plain peak, {clip}, {dtype}",),
            shown=GB,
            at_most=2.2,
            flags=BLOCKS,
        )
        for dtype in ("float32", "bfloat16")
        for clip in ("no clipping", "clipping to 1.0")
    ),
    *(
        Line(
            f"weights after 10 such steps against plain ones, {dtype}, {clip}: largest relative difference",
            column("update_in_backward", INSIDE, "largest_gap"),
            f"weights, {clip}, {dtype}",
            shown="{:.1e}",
            at_most=1e-6,
            flags=BLOCKS,
        )
        for dtype in ("float32", "bfloat16")
        for clip in ("no clipping", "clipping to 1.0")
    ),
    *(
        Line(
            f"{LORA}, {dtype}{words}",
            column("lora", LORA, figure, scale),
            f"handgrad {dtype}",
            PEFT[dtype],
            shown,
            PEFT[dtype][0],
            **aim,
        )
        for words, figure, scale, shown, aim in (
            ("", "tokens_per_s", 1.0, RATE, {"at_least": 1.3}),
            (": peak memory", "peak_bytes", 1e-9, GB, {"at_most": 0.5}),
        )
        for dtype in PEFT
    ),
    *(
        Line(
            f"{SAMPLES}{words}",
            column("per_sample", SAMPLES, figure, scale),
            who,
            ("plain step", "opacus"),
            shown,
            "plain step",
            **aim,
            flags=flags,
        )
        for who, flags, aims in (
            ("step with norms", "--sample-norms", ({"at_least": 0.8}, {"at_most": 1.3})),
            ("step with every sample clipped", "--sample-clip 1", ({}, {})),
        )
        for words, figure, scale, shown, aim in (
            ("", "tokens_per_s", 1.0, RATE, aims[0]),
            (": peak memory", "peak_bytes", 1e-9, GB, aims[1]),
        )
    ),
    Line("step time / ideal, bfloat16", over_ideal, "handgrad bfloat16", BF16, TIMES, at_most=1.25, flags=CHEAP),
    Line("step time / ideal, float32", over_ideal, "handgrad float32", FLOAT32, TIMES, flags=CHEAP),
    *(
        Line(
            f"{SMALL}, {dtype}{way}",
            per_second("step_time", SMALL),
            ours,
            (TWIN, f"{TWIN}, autocast bfloat16") if dtype == "bfloat16" else (TWIN,),
            "{:.1f} steps/s",
            TWIN,
            at_least=at_least,
        )
        for dtype, way, ours, at_least in (
            ("float32", "", "handgrad", 1.25),
            ("float32", ", --compile", "handgrad compiled", 1.25),
            ("bfloat16", "", "handgrad bfloat16", 1.6),
            ("bfloat16", ", --compile", "handgrad compiled bfloat16", 1.6),
        )
    ),
    Line(f"{LOSS}: bfloat16's loss from float32's", loss_gap, "handgrad bfloat16", shown="{:.4f} nats", at_most=0.01),
    Line(
        "memory of a step, context 1k to 8k at equal tokens: largest / smallest",
        growth,
        "fused",
        ("explicit",),
        TIMES,
        at_most=1.15,
        flags="--impl fused",
    ),
    *(
        Line(
            f"greedy decoding, {model}, {dtype}, {way}: {ours}",
            column("decoding", f"greedy decoding, {model}", name),
            f"handgrad {way} {dtype}",
            peers,
            shown,
            against,
            at_least=at_least,
            flags="--compile" if way == "compiled" else "",
        )
        for dtype in ("float32", "bfloat16")
        for model, way, ours, name, peers, shown, against, at_least in (
            (
                "GPT-2 124M",
                "compiled",
                "part of read bandwidth",
                "fraction",
                (f"transformers {dtype}",),
                TIMES,
                "",
                0.8,
            ),
            ("GPT-2 124M", "compiled", "speed", "tokens_per_s", (f"transformers {dtype}",), SPEED_OF_ONE, "", None),
            ("GPT-2 124M", "eager", "speed", "tokens_per_s", (f"transformers {dtype}",), SPEED_OF_ONE, "", None),
            (
                SMOL,
                "compiled",
                "speed",
                "tokens_per_s",
                (f"llama.cpp {dtype}",),
                SPEED_OF_ONE,
                f"llama.cpp {dtype}",
                1.0,
            ),
            (SMOL, "eager", "speed", "tokens_per_s", (f"llama.cpp {dtype}",), SPEED_OF_ONE, "", None),
        )
    ),
    Line("`handgrad --help`, without torch", start_ms, "handgrad", shown="{:.0f} ms", at_most=300),
)
