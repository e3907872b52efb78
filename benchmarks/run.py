"""All measurements, one after the other, then the table: `make bench`.

`--only NAME ...` measures some, `--quick` takes fewer rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.process import ROOT

WORKS: dict[str, tuple[str, ...]] = {  # module -> what --quick adds
    "start": (),
    "ceilings": ("--rounds", "1"),
    "gpt2_step": ("--rounds", "1"),
    "lora": ("--rounds", "1"),
    "per_sample": ("--rounds", "1"),
    "update_in_backward": (),
    "memory_context": (),
    "step_time": ("--rounds", "2"),
    "small_loss": (),
    "decoding": (),
    "shakespeare": (),
    "attention_cost": ("--repeats", "5"),
    "dependent_steps": (),
    "table": (),
}


def chosen(only: Sequence[str]) -> list[str]:
    """In the order of WORKS, and always with the table at the end.

    >>> chosen(["step_time", "start"])
    ['start', 'step_time', 'table']
    """
    return [name for name in WORKS if not only or name in only or name == "table"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=[], metavar="NAME", help=", ".join(WORKS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args(arguments)
    names, failed = chosen(options.only), []
    for i, name in enumerate(names, 1):
        if importlib.util.find_spec(f"benchmarks.{name}") is None:
            print(f"[{i}/{len(names)}] {name}: skipped, benchmarks/{name}.py is not there", flush=True)
            continue
        print(f"[{i}/{len(names)}] {name}", flush=True)
        start = time.perf_counter()
        extra = WORKS[name] if options.quick else ()
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *extra], cwd=ROOT).returncode:
            failed.append(name)
        print(f"[{i}/{len(names)}] {name}: {time.perf_counter() - start:.0f} s", flush=True)
    print("failed: " + ", ".join(failed) if failed else f"{len(names)} done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
