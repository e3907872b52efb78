"""Figures as plain dictionaries in plotly's format, each with the words that go with it.

Colours are not set here: a trace carries its role in `meta` ("train", "validation", "reference", ...), and the page's
script gives each role its colour in light, dark and print. Values that are not finite become gaps (`None`), because
JSON has no word for them, and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from handgrad.inspect.data import Curve
from handgrad.inspect.text import number, places, plot_text, power_of_ten, printable, shorten

POINT_LIMIT = 2_000
SIGNAL_LIMIT = 240


@dataclass(frozen=True)
class Plot:
    """`figure` for plotly (`None` where there is nothing to draw), `summary` for who cannot see it, `notes` for all."""

    figure: dict[str, Any] | None
    summary: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Points:
    """A curve made finite and short: gaps are NaN; each point stands for `bucket` consecutive values."""

    steps: np.ndarray
    values: np.ndarray
    bucket: int
    notes: list[str]


def points(curve: Curve, name: str, limit: int = POINT_LIMIT) -> Points:
    """At most `limit` points: the mean of each run of consecutive values, placed at the middle step.

    >>> points(Curve([1, 2, 3, 4], [4.0, 2.0, float("inf"), 1.0]), "training loss", limit=2).values.tolist()
    [3.0, 1.0]
    """
    steps = np.asarray(curve.steps, dtype=np.float64)
    values = np.asarray(curve.loss_nats, dtype=np.float64)
    finite = np.isfinite(values)
    notes = []
    if not finite.all():
        bad = np.flatnonzero(~finite).tolist()
        what = "value is" if len(bad) == 1 else "values are"
        where = places(bad, [int(step) for step in curve.steps])
        notes.append(f"{name}: {len(bad):,} {what} not finite (NaN or infinite), drawn as a gap, at {where}.")
    bucket = max(1, math.ceil(len(values) / limit))
    if bucket == 1:
        return Points(steps, np.where(finite, values, np.nan), 1, notes)
    starts = range(0, len(values), bucket)
    means = [_mean(values[i : i + bucket]) for i in starts]
    middles = [steps[i : i + bucket][len(steps[i : i + bucket]) // 2] for i in starts]
    notes.append(f"{name}: {len(values):,} values, each point drawn is the mean of {bucket} in a row.")
    return Points(np.array(middles), np.array(means), bucket, notes)


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over `window` (odd) neighbours, fewer at both ends; gaps stay gaps and do not count.

    >>> smooth(np.array([1.0, 2.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.0]
    """
    finite = np.isfinite(values)
    ones = np.ones(window)
    sums = np.convolve(np.where(finite, values, 0.0), ones)[window // 2 :][: len(values)]
    counts = np.convolve(finite.astype(float), ones)[window // 2 :][: len(values)]
    return np.where(finite, sums / np.maximum(counts, 1), np.nan)


def _gaps(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _line(steps: np.ndarray, values: np.ndarray, name: str, role: str, width: float) -> dict[str, Any]:
    few = len(steps) <= 60
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "x": [int(step) for step in steps],
        "y": _gaps(values),
        "name": name,
        "meta": role,
        "line": {"width": width},
        "marker": {"size": 6},
        "connectgaps": False,
        "hovertemplate": "%{y:.4~g}<extra>" + name + "</extra>",
    }


def _layout(x_title: str, y_title: str, height: int) -> dict[str, Any]:
    return {
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
        "hovermode": "x unified",
        "xaxis": {"title": {"text": x_title}, "zeroline": False, "showgrid": False, "separatethousands": True},
        "yaxis": {"title": {"text": y_title}, "zeroline": False, "automargin": True},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
    }


def loss_plot(train: Curve, validation: Curve | None, references: Mapping[str, float]) -> Plot:
    """Training and validation loss in nats a token over steps, with the reference losses as dashed lines."""
    notes: list[str] = []
    traces: list[dict[str, Any]] = []
    summaries: list[str] = []
    for curve, role, name in ((train, "train", "training"), (validation, "validation", "validation")):
        if curve is None or not len(curve.steps):
            continue
        drawn = points(curve, f"{name.capitalize()} loss")
        notes += drawn.notes
        window = len(drawn.values) // 50 | 1
        if role == "train" and window > 1:
            mean = "each step" if drawn.bucket == 1 else f"mean of {drawn.bucket}"
            traces.append(_line(drawn.steps, drawn.values, f"training ({mean})", "train-raw", 1))
            drawn = Points(drawn.steps, smooth(drawn.values, window), drawn.bucket, [])
            name = "training (smoothed)"
        traces.append(_line(drawn.steps, drawn.values, name, role, 2.5))
        summaries += _journey(drawn, name)
    if not traces:
        return Plot(None, "No steps yet: there is no loss to draw.", notes)
    steps = [step for trace in traces for step in trace["x"]]
    first, last = _ends(steps)
    lines, labels, line_notes = _reference_lines(references, first, last)
    layout = _layout("training step", "loss (nats a token)", 420) | {"annotations": labels}
    layout["xaxis"]["range"] = [first, last]
    summary = "Loss over training steps. " + " ".join(summaries)
    return Plot({"data": lines + traces, "layout": layout}, summary.strip(), notes + line_notes)


def _ends(steps: Sequence[int]) -> tuple[float, float]:
    """First and last place of the step axis, with room beside them for markers."""
    low, high = min(steps), max(steps)
    room = 0.01 * (high - low) or 1.0
    return low - room, high + room


def _journey(drawn: Points, name: str) -> list[str]:
    values = drawn.values[np.isfinite(drawn.values)]
    if not len(values):
        return []
    if len(values) == 1:
        return [f"{name.capitalize()} loss {number(values[0])}."]
    return [f"{name.capitalize()} loss from {number(values[0])} to {number(values[-1])}."]


def _reference_lines(
    references: Mapping[str, float], first: float, last: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Dashed lines and their labels, at the right end, where a falling curve leaves room; and a note if needed."""
    lines: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    finite = sorted((float(loss), name) for name, loss in references.items() if math.isfinite(loss))
    for i, (loss, name) in enumerate(finite):
        above = finite[i + 1][0] if i + 1 < len(finite) else math.inf
        below = above - loss < 0.06 * finite[-1][0]
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [first, last],
                "y": [loss, loss],
                "meta": "reference",
                "line": {"width": 1.25, "dash": "dash"},
                "hoverinfo": "skip",
                "showlegend": False,
            }
        )
        labels.append(
            {
                "text": plot_text(f"{shorten(name, 40)}: {number(loss)}"),
                "x": 1,
                "xref": "paper",
                "xanchor": "right",
                "y": loss,
                "yanchor": "top" if below else "bottom",
                "showarrow": False,
            }
        )
    missing = [name for name, loss in references.items() if not math.isfinite(loss)]
    notes = [f"Reference without a finite value, not drawn: {', '.join(map(printable, missing))}."] if missing else []
    return lines, labels, notes


def rate_plot(learning_rate: Curve | None) -> Plot:
    """The learning rate over steps; nothing where there is none."""
    if learning_rate is None or not len(learning_rate.steps):
        return Plot(None, "No learning rate was recorded.")
    drawn = points(learning_rate, "Learning rate")
    trace = _line(drawn.steps, drawn.values, "rate", "rate", 2)
    layout = _layout("training step", "", 190) | {"showlegend": False}
    layout["xaxis"]["range"] = list(_ends(trace["x"]))
    layout["yaxis"] |= {"rangemode": "tozero", "exponentformat": "power", "nticks": 4}
    values = drawn.values[np.isfinite(drawn.values)]
    summary = "Learning rate over training steps."
    if len(values):
        summary += f" Highest {number(values.max())}, last {number(values[-1])}."
    return Plot({"data": [trace], "layout": layout}, summary, drawn.notes)


def error_plot(error_sizes: Sequence[tuple[str, float]]) -> Plot:
    """Root mean square of each error signal, the loss at the top and the embedding at the bottom, on a log axis."""
    if not error_sizes:
        return Plot(None, "No error signals were recorded.")
    kept = list(error_sizes)
    notes = []
    if len(kept) > SIGNAL_LIMIT:
        at = np.unique(np.linspace(0, len(kept) - 1, SIGNAL_LIMIT).round().astype(int))
        notes.append(f"Shown here: {len(at):,} of {len(kept):,} signals, evenly spread from the loss to the embedding.")
        kept = [kept[i] for i in at]
    sizes = [float(size) if math.isfinite(size) and size > 0 else math.nan for _, size in kept]
    absent = [(name, size) for name, size in kept if not (math.isfinite(size) and size > 0)]
    if absent:
        listed = ", ".join(f"{printable(name)} ({number(size)})" for name, size in absent[:3])
        more = f" and {len(absent) - 3:,} more" if len(absent) > 3 else ""
        notes.append(f"Without a place on a logarithmic axis, drawn as a gap: {listed}{more}.")
    finite = [(name, size) for (name, _), size in zip(kept, sizes, strict=True) if math.isfinite(size)]
    names = [plot_text(name) for name, _ in kept]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": _gaps(np.array(sizes)),
        "y": list(range(len(kept))),
        "customdata": names,
        "meta": "error",
        "line": {"width": 1},
        "marker": {"size": 9},
        "connectgaps": False,
        "hovertemplate": "%{customdata}<br>root mean square %{x:.4~g}<extra></extra>",
    }
    ends = _decades(finite)
    ticks = _log_ticks(*ends)
    row_height = 24 if len(kept) <= 60 else 16
    layout = {
        "height": 90 + row_height * len(kept),
        "margin": {"l": 8, "r": 16, "t": 44, "b": 12},
        "hovermode": "closest",
        "showlegend": False,
        "xaxis": {
            "type": "log",
            "side": "top",
            "range": ends,
            "tickvals": [value for value, _ in ticks],
            "ticktext": [text for _, text in ticks],
            "title": {"text": "root mean square (log scale)"},
            "zeroline": False,
        },
        "yaxis": {
            "automargin": True,
            "zeroline": False,
            "range": [len(kept) - 0.4, -0.6],
            "tickvals": list(range(len(kept))),
            "ticktext": [plot_text(shorten(name, 44)) for name, _ in kept],
        },
        "meta": {"narrow_ticktext": [plot_text(shorten(name, 22)) for name, _ in kept]},
    }
    summary = "Size of the error signal from the loss down to the embedding."
    if finite:
        (largest, most), (smallest, least) = max(finite, key=lambda f: f[1]), min(finite, key=lambda f: f[1])
        summary += f" Largest {number(most)} at {largest}, smallest {number(least)} at {smallest}."
    return Plot({"data": [trace], "layout": layout}, summary, notes)


def _decades(finite: Sequence[tuple[str, float]]) -> list[float]:
    """Ends of a log axis that holds every value with room beside it, and at least one decade."""
    logs = [math.log10(size) for _, size in finite] or [0.0]
    low, high = min(logs) - 0.15, max(logs) + 0.15
    missing = max(0.0, 1.0 - (high - low))
    return [low - missing / 2, high + missing / 2]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten, at most about seven of them, and 3 times a power between them where the axis is short.

    >>> [text for _, text in _log_ticks(-4.6, -3.2)]
    ['3×10⁻⁵', '10⁻⁴', '3×10⁻⁴']
    """
    stride = math.ceil((high - low) / 7)
    ticks = []
    for exponent in range(math.floor(low), math.floor(high) + 1):
        if exponent % stride == 0:
            ticks.append((float(f"1e{exponent}"), power_of_ten(exponent)))
        if high - low < 2.5:
            ticks.append((float(f"3e{exponent}"), "3×" + power_of_ten(exponent)))
    return [(value, text) for value, text in ticks if low <= math.log10(value) <= high]
