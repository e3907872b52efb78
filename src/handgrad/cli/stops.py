"""Ends of a text: show what is certain, hold back what may be the beginning of a stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UntilStop:
    """Text in pieces, up to the first occurrence of any of `stops`, which is not shown.

    The first is the one that begins first; a stop that is there already waits for a longer one that began before it.
    So what is shown does not depend on where the pieces were cut.

    >>> until = UntilStop(("END",))
    >>> [until.push(piece) for piece in ("one E", "NO two EN", "D three")], until.found
    (['one ', 'ENO two ', ''], True)
    """

    stops: tuple[str, ...]
    held: str = ""
    found: bool = False

    def push(self, text: str) -> str:
        """What can be shown now; nothing any more once a stop was found."""
        if self.found:
            return ""
        self.held += text
        first, keep = self.first(), max((beginning(self.held, stop) for stop in self.stops), default=0)
        certain = len(self.held) - keep
        if 0 <= first <= certain:
            return self.end(first)
        shown, self.held = self.held[:certain], self.held[certain:]
        return shown

    def first(self) -> int:
        """Where the first stop of the held text begins; -1 where there is none."""
        return min((at for stop in self.stops if (at := self.held.find(stop)) >= 0), default=-1)

    def end(self, at: int) -> str:
        self.found = True
        shown, self.held = self.held[:at], ""
        return shown

    def flush(self) -> str:
        """What was held back, once no more comes: up to a stop that waited, or all of it."""
        if (first := self.first()) >= 0:
            return self.end(first)
        shown, self.held = self.held, ""
        return shown


def beginning(text: str, stop: str) -> int:
    """How many of the last characters of `text` are the beginning of `stop`.

    >>> beginning("abcab", "abd"), beginning("abc", "x")
    (2, 0)
    """
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
