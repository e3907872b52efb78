"""Drawings of the laboratory as figures for plotly, with words and a table for who has no script.

A trace carries its role in `meta`: "s0" to "s7" for a series, with "-band" behind it for the interval; the page's
script gives roles their colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from handgrad.inspect.plots import Plot
from handgrad.inspect.text import number, plot_text, printable, shorten

ROLES = 8
STANDING = 7  # more bars than these lie, so that their names can be read
ROWS = 60  # of a table below a plot
CELLS = 32  # of a side of a field of counted places, drawn cell by cell
DASHES = ("solid", "dash", "dot", "dashdot")


class Drawn(NamedTuple):
    """A plot and what its table says."""

    title: str
    plot: Plot
    heads: list[str]
    rows: list[list[str]]
    left_out: int


def drawn(drawing: Mapping[str, Any]) -> list[Drawn]:
    """The figures of one drawing: one, and of a field one for each series.

    >>> lines = {"title": "recall", "x": "pairs", "y": "accuracy", "series": {"rnn": {"x": [2, 4], "y": [1.0, 0.5]}}}
    >>> drawn(lines)[0].plot.summary
    'recall: accuracy over pairs. rnn from 1 at 2 to 0.5 at 4.'
    """
    kind = drawing.get("kind", "lines")
    if kind == "field":
        return [field(drawing, name, series) for name, series in drawing["series"].items()]
    figure, notes = (bars if kind == "bars" else lines)(drawing)
    heads, rows = table(drawing)
    return [Drawn(drawing["title"], Plot(figure, summary(drawing), notes), heads, rows[:ROWS], len(rows[ROWS:]))]


def finite(value: Any) -> float | None:
    """A number that JSON and a plot can take; None for a gap."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def lines(drawing: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    log, traces, missing = drawing.get("log", ""), [], 0
    for i, (name, series) in enumerate(drawing["series"].items()):
        x, y = places(series["x"]), [finite(v) for v in series["y"]]
        missing += sum(v is None for v in y)
        traces += band(i, x, series)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(x) <= 60 else "lines",
                "x": x,
                "y": y,
                "name": plot_text(shorten(name, 48)),
                "meta": f"s{i % ROLES}",
                "line": {"width": 2.5, "dash": DASHES[i % len(DASHES)]},
                "marker": {"size": 7},
                "connectgaps": False,
                "hovertemplate": "%{y:.4~g}<extra>" + plot_text(shorten(name, 48)) + "</extra>",
            }
        )
    notes = [f"{missing} value{'s are' if missing > 1 else ' is'} not finite, drawn as a gap."] if missing else []
    return (figure(drawing, traces, 380, log) if traces else None), notes


def band(i: int, x: Sequence[Any], series: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The interval of a series as an area behind it, where it has one at every place."""
    ends = zip(x, series.get("low") or (), series.get("high") or (), strict=False)
    kept = [(at, low, high) for at, low, high in ends if finite(low) is not None and finite(high) is not None]
    if len(kept) < 2:
        return []
    there, low, high = (list(column) for column in zip(*kept, strict=True))
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": there + there[::-1],
            "y": high + low[::-1],
            "fill": "toself",
            "meta": f"s{i % ROLES}-band",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]


def bars(drawing: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    traces, missing = [], 0
    most = max((len(series["x"]) for series in drawing["series"].values()), default=0)
    lying = most > STANDING
    for i, (name, series) in enumerate(drawing["series"].items()):
        y = [finite(v) for v in series["y"]]
        missing += sum(v is None for v in y)
        trace = {
            "type": "bar",
            "x": [plot_text(shorten(str(x), 32)) for x in series["x"]],
            "y": y,
            "name": plot_text(shorten(name, 48)),
            "meta": f"s{i % ROLES}",
            "marker": {},
            "hovertemplate": "%{"
            + ("x" if lying else "y")
            + ":.4~g}<extra>"
            + plot_text(shorten(name, 48))
            + "</extra>",
        }
        if lying:
            trace |= {"x": y, "y": trace["x"], "orientation": "h"}
        if series.get("low") and series.get("high"):
            above = [distance(v, high) for v, high in zip(y, series["high"], strict=False)]
            below = [distance(v, low) for v, low in zip(y, series["low"], strict=False)]
            trace["error_x" if lying else "error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": above,
                "arrayminus": below,
                "thickness": 1.5,
            }
        traces.append(trace)
    notes = [f"{missing} value{'s are' if missing > 1 else ' is'} not finite, no bar is drawn."] if missing else []
    if not traces:
        return None, notes
    log = drawing.get("log", "").replace("x", "")
    if not lying:
        return figure(drawing, traces, 360, log), notes
    turned = {**drawing, "x": drawing["y"], "y": drawing["x"]}
    found = figure(turned, traces, 90 + 22 * most * len(traces), log.replace("y", "x"))
    found["layout"]["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    found["layout"]["xaxis"] |= {"showgrid": True}
    return found, notes


def distance(value: float | None, end: Any) -> float:
    other = finite(end)
    return 0.0 if value is None or other is None else abs(other - value)


def field(drawing: Mapping[str, Any], name: str, series: Mapping[str, Any]) -> Drawn:
    """Contours of z ~ (y, x); cells where both axes count places, between which there is nothing."""
    z = [[finite(v) for v in row] for row in series["z"]]
    values = [v for row in z for v in row if v is not None]
    title = f"{drawing['title']}: {name}"
    if not values:
        return Drawn(title, Plot(None, f"{title}. There is no finite value to draw."), [], [], 0)
    contours = {"type": "contour", "ncontours": 14, "contours": {"coloring": "heatmap"}}
    trace = {
        **({"type": "heatmap"} if counted(series["x"]) and counted(series["y"]) else contours),
        "x": places(series["x"]),
        "y": places(series["y"]),
        "z": z,
        "meta": "field",
        "colorbar": {"thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{x:.3~g}, %{y:.3~g}: %{z:.4~g}<extra></extra>",
    }
    what = "Cells" if trace["type"] == "heatmap" else "Contours"
    text = f"{title}. {what} of {len(z)} by {len(z[0])} values from {number(min(values))} to {number(max(values))}."
    at = [(i, j) for i in ends(len(z)) for j in ends(len(z[0]))]
    rows = [
        [shown(series["x"][j]), shown(series["y"][i]), shown(z[i][j])]
        for i, j in at  # corners and middles: the form of it
    ]
    return Drawn(title, Plot(figure(drawing, [trace], 360, ""), text), [drawing["x"], drawing["y"], name], rows, 0)


def counted(places: Sequence[Any]) -> bool:
    return len(places) <= CELLS and all(isinstance(x, int) for x in places)


def ends(n: int) -> list[int]:
    return sorted({0, n // 2, n - 1})


def figure(drawing: Mapping[str, Any], traces: list[dict[str, Any]], height: int, log: str) -> dict[str, Any]:
    axis = lambda which: {  # noqa: E731
        "title": {"text": plot_text(drawing[which])},
        "zeroline": False,
        "automargin": True,
        **({"type": "log"} if which in log else {}),
    }
    layout = {
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
        "hovermode": "closest",
        "barmode": "group",
        "xaxis": axis("x") | {"showgrid": False},
        "yaxis": axis("y"),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "showlegend": len(drawing["series"]) > 1 and traces[0]["meta"] != "field",
    }
    return {"data": traces, "layout": layout}


def places(x: Sequence[Any]) -> list[Any]:
    """Places on an axis: numbers as they are, anything else as text."""
    numbers = [finite(v) for v in x]
    return [plot_text(str(v)) for v in x] if None in numbers else list(x)


def shown(value: Any) -> str:
    """A value of a table.

    >>> shown(0.5), shown(1024), shown("rnn"), shown(None)
    ('0.5', '1,024', 'rnn', 'not a number')
    """
    if value is None:
        return "not a number"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else printable(str(value))


def table(drawing: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """One row for each value of x, one column for each series, the interval in brackets."""
    columns: list[dict[Any, str]] = []
    order: dict[Any, None] = {}
    for series in drawing["series"].values():
        low, high = series.get("low") or (), series.get("high") or ()
        column = {}
        for i, (x, y) in enumerate(zip(series["x"], series["y"], strict=False)):
            known = i < len(low) and i < len(high) and low[i] is not None and high[i] is not None
            column[x] = shown(y) + (f" ({shown(low[i])} to {shown(high[i])})" if known else "")
            order[x] = None
        columns.append(column)
    numeric = all(isinstance(x, int | float) for x in order)
    keys = sorted(order) if numeric else list(order)
    return [drawing["x"], *drawing["series"]], [[shown(x), *(column.get(x, "") for column in columns)] for x in keys]


def summary(drawing: Mapping[str, Any]) -> str:
    text = f"{drawing['title']}: {drawing['y']} over {drawing['x']}."
    for name, series in drawing["series"].items():
        kept = [(x, y) for x, y in zip(series["x"], series["y"], strict=False) if finite(y) is not None]
        if len(kept) > 1:
            (x1, y1), (x2, y2) = kept[0], kept[-1]
            text += f" {name} from {shown(y1)} at {shown(x1)} to {shown(y2)} at {shown(x2)}."
        elif kept:
            text += f" {name} {shown(kept[0][1])} at {shown(kept[0][0])}."
    return text
