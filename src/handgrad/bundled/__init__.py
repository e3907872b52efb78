"""Models that come with the package, so that every command has something to work on the minute after installation.

Each is a checkpoint folder like those of a run, its numbers rounded to bfloat16; its `recipe.toml` trains it again.
"""

from __future__ import annotations

from pathlib import Path

NAMES = ("docs-1m",)


def find(name: str) -> Path | None:
    """The checkpoint folder of a bundled model; None for a name that is none.

    >>> find("docs-1m").name, find("gpt2")
    ('docs-1m', None)
    """
    folder = Path(__file__).parent / name
    return folder if name in NAMES and folder.is_dir() else None
