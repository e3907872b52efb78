"""How long `handgrad --help` takes, the median of ten, and whether torch is loaded for it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import spread, write

SCRIPT = Path(sys.executable).with_name("handgrad")
LOADS = """
import sys
sys.argv = ["handgrad", "--help"]
try:
    from handgrad.cli.entry import main
    main()
except SystemExit:
    pass
print("torch" in sys.modules, file=sys.stderr)
"""


def loads_torch() -> bool:
    found = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True)
    return found.stderr.strip().splitlines()[-1] == "True"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if not SCRIPT.exists():
        print(f"skipped: the command {SCRIPT.name} is not installed beside {Path(sys.executable).name}")
        return
    seconds: list[float] = []
    for _ in range(options.rounds + 1):  # the first warms the disk's cache
        start = time.perf_counter()
        subprocess.run([str(SCRIPT), "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    row = {"work": "handgrad --help", "who": "handgrad", **spread(seconds[1:]), "loads_torch": loads_torch()}
    print(f"{row['work']}: {row['median_ms']} ms, torch loaded: {row['loads_torch']}")
    write("start", [row])


if __name__ == "__main__":
    main()
