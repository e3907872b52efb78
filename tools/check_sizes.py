"""Fails when a Python file of the project is longer than one sitting of reading.

Run from anywhere: `python tools/check_sizes.py`. Exit status 1 and one line for each file that is too long.
"""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT_LINES = 400
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "benchmarks", "tools", "docs")


def lengths(root: Path) -> dict[str, int]:
    """Lines of each Python file below `root`'s source folders, by its path from `root`."""
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return {path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in files}


def main(root: Path = ROOT) -> int:
    """Print the verdict; 0 when every file is within the limit, 1 otherwise."""
    sizes = lengths(root)
    if not sizes:
        print(f"check_sizes: found no Python file below {root}", file=sys.stderr)
        return 1
    too_long = {path: lines for path, lines in sizes.items() if lines > LIMIT_LINES}
    for path, lines in too_long.items():
        print(f"{path}: {lines} lines, the limit is {LIMIT_LINES}; split it by concept", file=sys.stderr)
    if not too_long:
        longest = max(sizes, key=sizes.__getitem__)
        print(f"{len(sizes)} Python files, {sum(sizes.values())} lines, longest {longest} ({sizes[longest]} lines)")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT))
