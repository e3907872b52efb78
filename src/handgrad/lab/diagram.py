"""Diagrams of models, drawn from what connects to what: units in time, boxes that follow each other, a key-value store.

Colours are classes that the page's style sheet knows; a diagram has its own text for who cannot see it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NamedTuple, Protocol

NOTHING, ALL, FIXED, SOURCE, ITSELF, PAIR, WINDOW, BLOCKS = (
    "",
    "all",
    "fixed",
    "source",
    "itself",
    "pair",
    "window",
    "blocks",
)
COLOURS = 8  # classes c0 to c7
STEP_X, STEP_Y, RADIUS, MARGIN = 84, 78, 15, 44


class Sketch(Protocol):
    """Anything that can be drawn; `words` say the same."""

    def words(self) -> str: ...
    def svg(self, caption: str) -> str: ...


class Edge(NamedTuple):
    """An arrow between units (layer, place), counted from 0; layer 0 is the input."""

    start: tuple[int, int]
    end: tuple[int, int]
    kind: str  # "up", "recurrent", "memory", "attention", "skip"
    colour: int | None = None


@dataclass(frozen=True)
class Units:
    """T places by L layers over the inputs.

    reach      which places a unit reads: all up to its own, a window of two, the first block of two and its own, itself
    recurrent  each unit also reads the one before it in its own layer
    remembers  each unit also reads all units before it in its own layer
    skip       the token goes around the unit and is added to its output
    counted    units show the length of the longest chain of units that ends in them

    >>> Units(recurrent=True).steps(), Units(reach=ALL).steps()
    (5, 2)
    """

    recurrent: bool = False
    reach: str = NOTHING
    layers: int = 2
    places: int = 4
    remembers: bool = False
    skip: bool = False
    counted: bool = False

    def reads(self, end: int, start: int) -> bool:
        """Whether the unit at place `end` reads place `start` of the layer below."""
        if start > end:
            return False
        near = {
            WINDOW: end - start < 2,
            BLOCKS: start // 2 in (0, end // 2),
            NOTHING: start == end,
            ITSELF: start == end,
        }
        return near.get(self.reach, True)

    def edges(self) -> list[Edge]:
        found = []
        for layer in range(1, self.layers + 1):
            for end in range(self.places):
                for start in range(end + 1):
                    if self.reads(end, start):
                        kind = "up" if start == end and self.recurrent else "attention" if self.reach else "up"
                        found.append(Edge((layer - 1, start), (layer, end), kind, self.colour(start, end)))
                if self.recurrent and end:
                    found.append(Edge((layer, end - 1), (layer, end), "recurrent"))
                if self.remembers:
                    found += [Edge((layer, start), (layer, end), "memory") for start in range(end)]
                if self.skip:
                    found.append(Edge((layer - 1, end), (layer, end), "skip"))
        return found

    def colour(self, start: int, end: int) -> int | None:
        """Equal weights have equal colours."""
        pair = end * (end + 1) // 2 + start
        return {SOURCE: start, FIXED: pair % COLOURS, PAIR: pair % COLOURS, ITSELF: end}.get(self.reach)

    def chain(self) -> dict[tuple[int, int], int]:
        """For each unit the longest chain of units that ends in it, along the arrows."""
        length: dict[tuple[int, int], int] = {(0, t): 0 for t in range(self.places)}
        for layer in range(1, self.layers + 1):
            for t in range(self.places):
                length[layer, t] = 1 + max(length[e.start] for e in self.edges() if e.end == (layer, t))
        return length

    def steps(self) -> int:
        return max(self.chain().values())

    def words(self) -> str:
        reading = {
            NOTHING: "each reads only its own place below",
            ALL: "each reads its own place and all before it",
            FIXED: "each reads all places up to its own with a weight of that pair of places",
            SOURCE: "each reads all places up to its own; arrows from one source share one weight",
            ITSELF: "each reads its own place with its own weight and no other",
            PAIR: "each reads all places up to its own; every arrow has a weight of its own",
            WINDOW: "each reads its own place and the one before",
            BLOCKS: "each reads the first and its own block of two places",
        }[self.reach]
        text = f"{self.places} places, {self.layers} layer{'s' * (self.layers > 1)} of units; {reading}"
        text += ", and the unit before it in its own layer" * self.recurrent
        text += ", and all units before it in its own layer" * self.remembers
        text += "; the token goes around the unit and is added" * self.skip
        return text + (f"; the longest chain has {self.steps()} steps" if self.counted else "") + "."

    def svg(self, caption: str) -> str:
        width, height = 2 * MARGIN + STEP_X * (self.places - 1), 2 * MARGIN - 10 + STEP_Y * self.layers
        at = lambda layer, t: (MARGIN + STEP_X * t, height - MARGIN + 8 - STEP_Y * layer)  # noqa: E731
        parts = [self.arrow(edge, at) for edge in self.edges()]
        chain = self.chain()
        for layer in range(self.layers + 1):
            for t in range(self.places):
                x, y = at(layer, t)
                kind = "input" if layer == 0 else "output" if layer == self.layers else "hidden"
                parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="{RADIUS}"/>')
                top = layer == self.layers
                label = str(chain[layer, t]) if self.counted and layer else ("x" if not layer else "o" if top else "h")
                sub = "" if self.counted and layer else f'<tspan class="sub" dy="3">{t + 1}</tspan>'
                parts.append(f'<text x="{x}" y="{y + 4}">{label}{sub}</text>')
        return framed(width, height, "".join(parts), f"{caption} {self.words()}")

    @staticmethod
    def arrow(edge: Edge, at: Callable[[int, int], tuple[float, float]]) -> str:
        (x1, y1), (x2, y2) = at(*edge.start), at(*edge.end)
        colour = "" if edge.colour is None else f" c{edge.colour}"
        if edge.kind == "memory":
            high = min(y1, y2) - RADIUS - 12 - 7 * (edge.end[1] - edge.start[1])
            over = f"M{x1 + 5} {y1 - 15} C{x1 + 25} {high} {x2 - 25} {high} {x2 - 7} {y2 - 19}"
            return f'<path class="attention" d="{over}"/>'
        if edge.kind == "skip":
            around = f"M{x1 - 11} {y1 - 11} C{x1 - 34} {y1 - 26} {x2 - 34} {y2 + 26} {x2 - 14} {y2 + 12}"
            return f'<path class="skip" d="{around}"/>'
        return line(edge.kind + colour, x1, y1, x2, y2, RADIUS + 1)


@dataclass(frozen=True)
class Boxes:
    """Rows of boxes, the input first; each row feeds the next, box to box where both have as many.

    around     (row, row): a skip connection from the output of one to another
    """

    rows: Sequence[Sequence[str]]
    around: Sequence[tuple[int, int]] = ()

    def words(self) -> str:
        text = "From the input on: " + ", then ".join(" and ".join(box for box in row if box) for row in self.rows)
        skips = "".join(f"; a skip from {self.rows[a][0]} to the next {self.rows[b][0]}" for a, b in self.around)
        return f"{text}{skips}."

    def svg(self, caption: str) -> str:
        wide = max(8 * max(len(box) for row in self.rows for box in row) + 18, 46)
        most = max(map(len, self.rows))
        width, height = most * (wide + 18) + (64 if self.around else 20), len(self.rows) * 54 + 8
        middle = width / 2

        def at(row: int, i: int) -> tuple[float, float]:
            return middle + (i - (len(self.rows[row]) - 1) / 2) * (wide + 18), height - 30 - 54 * row

        parts = []
        for row, (below, above) in enumerate(pairwise(self.rows)):
            for i, start in enumerate(below):
                for j, end in enumerate(above):
                    if (len(below) != len(above) or i == j) and start and end:
                        (x1, y1), (x2, y2) = at(row, i), at(row + 1, j)
                        parts.append(line("up", x1, y1 - 15, x2, y2 + 15, 2))
                    elif i == j and start and row + 2 < len(self.rows):  # no box here: straight on to the row after
                        (x1, y1), (x2, y2) = at(row, i), at(row + 2, min(i, len(self.rows[row + 2]) - 1))
                        parts.append(line("up", x1, y1 - 15, x2 - 8, y2 + 15, 2))
        for a, b in self.around:
            (x, y1), (_, y2) = at(a, 0), at(b, 0)
            side = x - wide / 2
            parts.append(f'<path class="skip" d="M{side} {y1} C{side - 34} {y1} {side - 34} {y2} {side} {y2}"/>')
        for row, boxes in enumerate(self.rows):
            kind = "input" if row == 0 else "output" if row == len(self.rows) - 1 else "hidden"
            for i, box in enumerate(boxes):
                x, y = at(row, i)
                if box:
                    parts.append(
                        f'<rect class="{kind}" x="{x - wide / 2}" y="{y - 15}" width="{wide}" height="30" rx="6"/>'
                    )
                    parts.append(f'<text x="{x}" y="{y + 4}">{lettered(box)}</text>')
        return framed(width, height, "".join(parts), f"{caption} {self.words()}")


@dataclass(frozen=True)
class Store:
    """The MLP as keys and values: coordinates below, patterns between, coordinates above.

    values     each pattern writes to all coordinates (W_2); otherwise to the one above it
    """

    values: bool
    width: int = 3

    @property
    def patterns(self) -> int:
        return self.width + 2 if self.values else self.width

    def words(self) -> str:
        writes = "a value over all of them" if self.values else "to one of them only"
        text = f"{self.width} coordinates, {self.patterns} patterns; "
        return text + f"each reads all coordinates with its key and writes {writes}."

    def svg(self, caption: str) -> str:
        width, height = 2 * MARGIN + STEP_X * (self.width + 1), 2 * MARGIN + 2 * STEP_Y

        def at(row: int, i: int) -> tuple[float, float]:
            n = (self.width, self.patterns, self.width)[row]
            return width / 2 + (i - (n - 1) / 2) * STEP_X, height - MARGIN - STEP_Y * row

        parts = []
        for i in range(self.patterns):
            for c in range(self.width):
                parts.append(line(f"attention c{i}", *at(0, c), *at(1, i), RADIUS + 1))
                if self.values or i == c:
                    parts.append(line(f"attention c{i}", *at(1, i), *at(2, c), RADIUS + 1))
        for row, (n, kind, name) in enumerate(
            ((self.width, "input", "h"), (self.patterns, "", "m"), (self.width, "output", "a"))
        ):
            for i in range(n):
                x, y = at(row, i)
                parts.append(f'<circle class="{kind or f"pattern c{i}"}" cx="{x}" cy="{y}" r="{RADIUS}"/>')
                parts.append(f'<text x="{x}" y="{y + 4}">{name}<tspan class="sub" dy="3">{i + 1}</tspan></text>')
        return framed(width, height, "".join(parts), f"{caption} {self.words()}")


def line(kind: str, x1: float, y1: float, x2: float, y2: float, room: float) -> str:
    """An arrow that leaves `room` at both ends.

    >>> line("up", 0, 100, 0, 0, 10)
    '<line class="up" x1="0.0" y1="90.0" x2="0.0" y2="14.0"/>'
    """
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    tip = room + 4  # the head of the arrow
    ends = (x1 + dx * room, y1 + dy * room, x2 - dx * tip, y2 - dy * tip)
    return '<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'.format(kind, *ends)


def lettered(label: str) -> str:
    """A label with its indices set low.

    >>> lettered("W_o: r")
    'W<tspan class="sub" dy="3">o</tspan><tspan dy="-3">: r</tspan>'
    """
    out = ""
    for i, part in enumerate(re.split(r"_(\w+)", escape(label))):
        if i % 2:
            out += f'<tspan class="sub" dy="3">{part}</tspan>'
        else:
            out += f'<tspan dy="-3">{part}</tspan>' if i and part else part
    return out


def framed(width: float, height: float, inside: str, words: str) -> str:
    """One <svg>; its arrow heads are the page's <marker>."""
    return (
        f'<svg class="model" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'aria-label="{escape(words)}">{inside}</svg>'
    )
