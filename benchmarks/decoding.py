"""Writing one token after another: batch 1, greedy, with a cache. How near is it to what reading the weights allows?

Each work has processes of its own, and they take turns. `fraction` is the time in which the machine reads the weights
once, at the bandwidth that was measured between the works, over the median time of a token. llama.cpp reads the same
random weights from a GGUF file written here, and has to choose the same tokens in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

from benchmarks.common import spread, write
from benchmarks.gguf_file import write_gguf
from handgrad.generate.generate import generate
from handgrad.generate.sample import Sampling
from handgrad.generate.weights import in_large_pages
from handgrad.models.gpt2 import GPT2Config
from handgrad.models.llama import LlamaConfig
from handgrad.models.model import Model, build

SHAPES = {
    "gpt2": GPT2Config(vocabulary=50257, context=1024, n_layers=12, n_heads=12, d_model=768, std=0.05),
    "smol": LlamaConfig(
        vocabulary=49152,
        context=2048,
        n_layers=30,
        n_heads=9,
        n_kv_heads=3,
        d_model=576,
        d_mlp=1536,
        tied=True,
        std=0.05,
    ),
}
NAMES = {"gpt2": "greedy decoding, GPT-2 124M", "smol": "greedy decoding, SmolLM2-135M shape"}
PROMPT, WARM, TIMED = [5, 6, 7, 8], 8, 64
Found = dict[str, list]
LOCK = os.environ.get("HANDGRAD_BENCH_LOCK")  # a file that each process holds while it measures, on a shared machine


def model_of(shape: str) -> Model:
    return build(SHAPES[shape], seed=0)


def handgrad(shape: str, dtype: str, compiled: bool) -> Found:
    model = model_of(shape).shadowed(getattr(torch, dtype))
    new = generate(model, torch.tensor(PROMPT), WARM + TIMED, Sampling(greedy=True), compiled=compiled)
    return timed(lambda: int(next(new)))


def transformers(shape: str, dtype: str) -> Found:
    import transformers as t

    c = SHAPES[shape]
    shape_there = t.GPT2Config(
        vocab_size=c.vocabulary,
        n_positions=c.context,
        n_embd=c.d_model,
        n_layer=c.n_layers,
        n_head=c.n_heads,
        eos_token_id=None,
    )
    other = t.GPT2LMHeadModel(shape_there).to(getattr(torch, dtype)).eval()
    prompt, seconds = torch.tensor([PROMPT]), []
    how = {"do_sample": False, "pad_token_id": 0, "min_new_tokens": TIMED, "max_new_tokens": TIMED}
    with torch.inference_mode():
        for _ in range(3):
            start = time.perf_counter()
            tokens = other.generate(prompt, attention_mask=torch.ones_like(prompt), **how)
            seconds.append((time.perf_counter() - start) / TIMED)
    return {"seconds": seconds, "tokens": tokens[0, len(PROMPT) :].tolist()}


def llama_cpp(shape: str, dtype: str) -> Found:
    import llama_cpp
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(model_of(shape), path, dtype)
        threads = torch.get_num_threads()
        llama = llama_cpp.Llama(str(path), n_ctx=128, n_threads=threads, n_threads_batch=threads, verbose=False)
        there, n = llama.ctx, SHAPES[shape].vocabulary
        last = list(PROMPT)

        def step() -> int:
            ids = (llama_cpp.llama_token * len(last))(*last)
            assert llama_cpp.llama_decode(there, llama_cpp.llama_batch_get_one(ids, len(last))) == 0
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(there, -1), shape=(n,))
            last[:] = [int(logits.argmax())]
            return last[0]

        return timed(step)


def bandwidth() -> Found:
    """Seconds to read a gigabyte, by a sum over memory in large pages."""
    x = in_large_pages(250_000_000, torch.float32, torch.device("cpu")).fill_(1.0)
    x.sum()
    seconds = []
    for _ in range(15):
        start = time.perf_counter()
        x.sum()
        seconds.append((time.perf_counter() - start) * 1e9 / x.nbytes)
    return {"seconds": seconds, "tokens": []}


def timed(step: Callable[[], int]) -> Found:
    seconds, tokens = [], []
    for _ in range(WARM + TIMED):
        start = time.perf_counter()
        tokens.append(step())
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[WARM:], "tokens": tokens, "first": [sum(seconds[:WARM])]}


WORKS: dict[str, Callable[[], Found]] = {"read bandwidth": bandwidth}
PEERS = {"gpt2": ("transformers", transformers), "smol": ("llama.cpp", llama_cpp)}
NEEDS = {"transformers": ("transformers",), "llama.cpp": ("llama_cpp", "gguf")}
for _shape in SHAPES:
    for _dtype in ("float32", "bfloat16"):
        for _way in ("eager", "compiled"):
            WORKS[f"{_shape} handgrad {_way} {_dtype}"] = lambda s=_shape, d=_dtype, w=_way: handgrad(
                s, d, w == "compiled"
            )
        _who, _work = PEERS[_shape]
        WORKS[f"{_shape} {_who} {_dtype}"] = lambda s=_shape, d=_dtype, w=_work: w(s, d)


def missing(name: str) -> str:
    """What a work needs and this machine lacks."""
    return next(
        (m for who, modules in NEEDS.items() if f" {who} " in name for m in modules if find_spec(m) is None), ""
    )


def measured(name: str) -> Found:
    command = [*(("flock", LOCK) if LOCK else ()), sys.executable, "-m", "benchmarks.decoding", "--one", name]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{name}: {found.stderr[-2000:]}")
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=WORKS)
    parser.add_argument("--shape", choices=SHAPES)
    options = parser.parse_args()
    if options.one:
        return print(json.dumps(WORKS[options.one]()))
    names = [name for name in WORKS if not options.shape or name.split()[0] in ("read", options.shape)]
    for name in names:
        if lacking := missing(name):
            print(f"{name}: skipped, {lacking} is not installed")
    names = [name for name in names if not missing(name)]
    found: dict[str, list[Found]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            found[name].append(measured(name))
            print(f"  {name}: {1e3 * median(found[name][-1]['seconds']):.2f} ms", flush=True)
    write("decoding", rows_of(found))


def rows_of(found: dict[str, list[Found]]) -> list[dict[str, object]]:
    per_gigabyte = median(s for run in found["read bandwidth"] for s in run["seconds"])
    rows: list[dict[str, object]] = []
    for name, runs in found.items():
        seconds = [s for run in runs for s in run["seconds"]]
        if name == "read bandwidth":
            rows.append({"work": "reading 1 GB", "who": "torch sum, large pages", **spread(seconds)})
            continue
        shape, who, dtype = name.split()[0], " ".join(name.split()[1:-1]), name.split()[-1]
        n_bytes = build_count(shape) * (2 if dtype == "bfloat16" else 4)
        row = {"work": NAMES[shape], "who": f"{who} {dtype}", **spread(seconds)}
        row["tokens_per_s"] = round(1 / median(seconds), 2)
        row["fraction"] = round(n_bytes / 1e9 * per_gigabyte / median(seconds), 3)
        row["first_tokens_s"] = round(min(run["first"][0] for run in runs), 2) if "first" in runs[0] else ""
        rows.append(row)
        print(
            f"{row['work']:36} {row['who']:28} {row['tokens_per_s']:8.1f} tokens/s  {row['fraction']:.2f} of bandwidth"
        )
    check_same(found)
    return rows


def check_same(found: dict[str, list[Found]]) -> None:
    """In float32 everybody who has these weights has to choose the same tokens: then the same model was timed."""
    for shape in SHAPES:
        chosen = {
            name: run["tokens"]
            for name, runs in found.items()
            for run in runs
            if name.startswith(shape) and name.endswith("float32") and "transformers" not in name
        }
        if len({tuple(tokens) for tokens in chosen.values()}) > 1:
            raise SystemExit(f"{shape}: not the same tokens: { {name: t[:12] for name, t in chosen.items()} }")
        if chosen:
            tokens = next(iter(chosen.values()))
            print(f"{shape}: {len(chosen)} works chose the same {len(tokens)} tokens, {len(set(tokens))} different")


def build_count(shape: str) -> int:
    """Parameters that are read for a token: all, each once, but of learned positions only one row."""
    c = SHAPES[shape]
    layer = c.layers()
    from handgrad.core.params import Layout

    count = Layout(layer.slots(), dict(c.ties())).count
    return count - (c.context - 1) * c.d_model if isinstance(c, GPT2Config) else count


if __name__ == "__main__":
    main()
