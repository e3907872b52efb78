"""tinyshakespeare, characters, 4 layers, 4 heads, width 128, context 64, batch 12, 2,000 steps: the loss it reaches.

Trained by `handgrad train` itself; the validation loss is over the whole validation part, not over sampled windows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import DATA, write

SETTINGS = "--preset shakespeare --tokenizer chars --steps 2000 --seed"


def main() -> None:
    text = DATA / "tinyshakespeare.txt"
    if not text.exists():
        print("skipped: tinyshakespeare.txt is not there (HANDGRAD_DATA names its folder)")
        return
    rows = []
    for seed in os.environ.get("SEEDS", "0 1 2").split():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            start = time.perf_counter()
            command = [sys.executable, "-m", "handgrad", "train", str(text), "--out", str(out)]
            subprocess.run([*command, *SETTINGS.split(), seed], check=True)
            seconds = time.perf_counter() - start
            records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        last = records[-1]
        speeds = sorted(r["tokens_per_s"] for r in records if r.get("tokens_per_s"))
        rows.append(
            {
                "work": "tinyshakespeare chars 4x4x128 context 64 batch 12, 2000 steps",
                "seed": seed,
                "val_loss_nats": round(last["val_loss_nats"], 4),
                "target_nats": 1.90,
                "wall_s": round(seconds, 1),
                "median_tokens_per_s": round(speeds[len(speeds) // 2]),
                "peak_rss_mb": round(max(r["peak_rss_bytes"] for r in records) / 1e6),
            }
        )
        print(rows[-1])
    write("shakespeare", rows)


if __name__ == "__main__":
    main()
