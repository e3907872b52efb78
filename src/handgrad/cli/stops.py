"""Ends of a text: show what is certain, hold back what may be the beginning of a stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UntilStop:
    """Text in pieces, up to the first occurrence of any of `stops`, which is not shown.

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
        places = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if places:
            self.found = True
            shown, self.held = self.held[: min(places)], ""
            return shown
        keep = max((beginning(self.held, stop) for stop in self.stops), default=0)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back and turned out to be no stop."""
        shown, self.held = self.held, ""
        return shown


def beginning(text: str, stop: str) -> int:
    """How many of the last characters of `text` are the beginning of `stop`.

    >>> beginning("abcab", "abd"), beginning("abc", "x")
    (2, 0)
    """
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
