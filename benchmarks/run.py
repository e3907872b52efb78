"""All measurements, one process each: `make bench`."""

from __future__ import annotations

import subprocess
import sys

WORKS = ("benchmarks.step_time", "benchmarks.shakespeare", "benchmarks.attention_cost", "benchmarks.dependent_steps")


def main() -> int:
    failed = [work for work in WORKS if subprocess.run([sys.executable, "-m", work]).returncode]
    print("failed: " + ", ".join(failed) if failed else f"{len(WORKS)} measurements done")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
