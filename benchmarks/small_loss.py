"""The loss that a small model reaches in each dtype: tinyshakespeare, the same data, weights and order of windows.

`handgrad train` itself trains, for fewer steps than `benchmarks.shakespeare`; the validation loss is over the whole
validation part.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import DATA, write
from benchmarks.process import Unavailable, answer, in_turns, refusal

STEPS = 600
WORK = f"tinyshakespeare chars 4x128, {STEPS} steps"
WORKS = {f"handgrad {dtype}": dtype for dtype in ("float32", "bfloat16")}


def one(name: str) -> dict[str, Any]:
    text = DATA / "tinyshakespeare.txt"
    if not text.exists():
        raise Unavailable(f"{text.name} is not there (HANDGRAD_DATA names its folder)")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "handgrad", "train", str(text), "--out", str(out), "--preset", "shakespeare"]
        settings = ["--tokenizer", "chars", "--steps", str(STEPS), "--seed", "0", "--dtype", WORKS[name]]
        found = subprocess.run([*command, *settings], capture_output=True, text=True)
        if found.returncode == 2:
            raise Unavailable(" ".join(found.stderr.split()))
        if found.returncode:
            raise RuntimeError(found.stderr.strip().splitlines()[-1])
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {"val_loss_nats": records[-1]["val_loss_nats"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=WORKS)
    options = parser.parse_args()
    if options.one:
        return answer(partial(one, options.one))
    rows: list[dict[str, object]] = []
    for name, answers in in_turns("benchmarks.small_loss", tuple(WORKS), 1).items():
        print(f"{name:20} {refusal(answers) or answers[0]['val_loss_nats']}")
        rows.append({"work": WORK, "who": name, "val_loss_nats": "", "unavailable": "", **answers[0]})
    write("small_loss", rows)


if __name__ == "__main__":
    main()
