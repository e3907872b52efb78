"""Reading `results/*.csv`: of each work, the rows of its latest run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.common import read


class Results:
    """Rows by file, work and who. Rows of an earlier run of the same work are not seen."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows = cache(lambda name: read(folder / f"{name}.csv"))

    def latest(self, file: str, work: str) -> list[dict[str, str]]:
        rows = [row for row in self.rows(file) if row.get("work") == work]
        run = max((row.get("run") or "" for row in rows), default="")
        return [row for row in rows if (row.get("run") or "") == run]

    def row(self, file: str, work: str, who: str) -> dict[str, str] | None:
        return next((row for row in self.latest(file, work) if row.get("who") == who), None)

    def machines(self) -> list[str]:
        """Where the rows that have a run's stamp were measured, each once, oldest first."""
        found = {}
        for path in sorted(self.folder.glob("*.csv")):
            for row in self.rows(path.stem):
                if row.get("run"):
                    found[f"{row['machine']}, Python {row['python']}, torch {row['torch']}"] = row["run"]
        return sorted(found, key=found.__getitem__)
