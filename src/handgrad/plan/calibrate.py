"""How fast this machine multiplies and moves memory: measured once, in seconds, and kept in the user's cache folder.

A plan's time is Σ FLOPs/rate + Σ bytes/bandwidth + operators · overhead, each rate that of the measured shape or size
nearest to the one that is asked for. Measured again where the processor, the number of threads or torch is another, or
the file is damaged.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from math import isfinite, log
from pathlib import Path
from typing import Any

import torch

from handgrad.core.errors import FileError
from handgrad.data.files import read_json, replacing
from handgrad.plan.trace import Product, Trace

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
LAYOUTS = ("nn", "nt", "tn")  # forward, error, gradient of a linear layer
SHAPES = (  # batch, m, n, k
    (1, 16, 512, 512),
    (1, 512, 128, 128),
    (1, 768, 512, 128),
    (1, 1024, 512, 512),
    (1, 2048, 768, 768),
    (1, 1024, 3072, 768),
    (1, 512, 8192, 512),
    (48, 64, 64, 32),
    (24, 128, 64, 512),
    (24, 128, 512, 64),
)
SIZES = (1 << 14, 1 << 20, 1 << 23, 1 << 26)  # bytes of a result; the last is larger than what is kept when freed
COSTLY = ("exp", "sigmoid", "tanh", "erf", "log", "softmax", "rsqrt", "pow", "square")
LARGER_THAN_CACHES = 1 << 28  # bytes: what is read was not read just before
LEAST_S = 0.03  # of one measurement
_FILE, _MAX_BYTES = "calibration.json", 1 << 20


@dataclass(frozen=True)
class Calibration:
    """Rates of one machine.

    machine     what they were measured on, see `machine`
    products    "dtype/layout/batch/m/n/k" -> FLOPs a second
    streams     bytes of the result -> bytes a second, read and written, of a sum
    functions   the same of an exponential
    call_s      seconds of an operator on almost nothing
    """

    machine: Mapping[str, Any]
    products: Mapping[str, float]
    streams: Mapping[str, float]
    functions: Mapping[str, float]
    call_s: float

    def step_s(self, trace: Trace) -> float:
        """Seconds of what was traced."""
        total = self.call_s * (sum(trace.products.values()) + sum(trace.moved.values()))
        for product, n in trace.products.items():
            total += n * product.flops / self.products[nearest_product(product, self.products)]
        for moved, n in trace.moved.items():
            rates = self.functions if any(word in moved.name for word in COSTLY) else self.streams
            total += n * moved.bytes / rates[nearest_size(moved.fresh or moved.bytes // 2, rates)]
        return total


def nearest_product(product: Product, known: Mapping[str, float]) -> str:
    """The measured shape of the same type, and of the same layout where possible, that is least far in factors.

    >>> known = {"float32/nn/1/512/128/128": 1.0, "float32/nn/1/2048/768/768": 2.0}
    >>> nearest_product(Product(torch.float32, "nn", 1, 1024, 768, 768), known)
    'float32/nn/1/2048/768/768'
    """
    dtype = str(product.dtype).removeprefix("torch.")

    def far(key: str) -> tuple[bool, float]:
        of, layout, *sizes = key.split("/")
        factors = zip(product[2:], map(int, sizes), strict=True)
        return of != dtype, sum(log(max(a, 1) / b) ** 2 for a, b in factors) + 0.5 * (layout != product.layout)

    return min(known, key=far)


def nearest_size(nbytes: int, known: Mapping[str, float]) -> str:
    return min(known, key=lambda size: abs(log(max(nbytes, 1) / int(size))))


def machine() -> dict[str, Any]:
    """What a rate depends on."""
    name = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), name)
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "shapes": len(SHAPES),
    }


def calibration(again: bool = False) -> Calibration:
    """The rates of this machine: from the cache folder if they are there, else measured now and put there."""
    path = folder() / _FILE
    if not again and (kept := read(path)) is not None and kept.machine == machine():
        return kept
    found = measure()
    with suppress(OSError):  # nothing to keep them in: they are measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(asdict(found)).encode())
    return found


def folder() -> Path:
    """Where a user's programs keep what they can make again."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()) / "handgrad"


def read(path: Path) -> Calibration | None:
    """What a file says; None where it is missing, damaged, or not what `measure` gives."""
    try:
        table = read_json(path, _MAX_BYTES)
        found = Calibration(**table)
        rates = [found.call_s, *(r for t in (found.products, found.streams, found.functions) for r in t.values())]
        if all(type(r) in (int, float) and isfinite(r) and r > 0 for r in rates) and set(found.products) == names():
            same = set(found.streams) == set(found.functions) == {str(size) for size in SIZES}
            return found if same and isinstance(found.machine, dict) else None
    except (FileError, TypeError, AttributeError):
        pass
    return None


def names() -> set[str]:
    return {f"{dtype}/{layout}/" + "/".join(map(str, s)) for dtype in DTYPES for layout in LAYOUTS for s in SHAPES}


@torch.no_grad()
def measure() -> Calibration:
    """Measure this machine now; it should not be busy with anything else."""
    products = {}
    for dtype, type_ in DTYPES.items():
        for batch, m, n, k in SHAPES:
            for layout in LAYOUTS:
                a, b = factor(layout[0], batch, m, k, type_), factor(layout[1], batch, k, n, type_)
                s = seconds(lambda a=a, b=b: a @ b)
                products[f"{dtype}/{layout}/{batch}/{m}/{n}/{k}"] = 2 * batch * m * n * k / s
    streams, functions = {}, {}
    for size in SIZES:
        given = cycle([torch.rand(size // 4) for _ in range(max(1, LARGER_THAN_CACHES // size))])
        streams[str(size)] = 3 * size / seconds(lambda given=given: next(given) + next(given))
        functions[str(size)] = 2 * size / seconds(lambda given=given: next(given).exp())
    few = torch.rand(16)
    return Calibration(machine(), products, streams, functions, seconds(lambda: few + few))


def factor(layout: str, batch: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.rand(*((batch,) if batch > 1 else ()), *((rows, columns) if layout == "n" else (columns, rows)))
    return x.to(dtype) if layout == "n" else x.to(dtype).mT


def seconds(work: Callable[[], Any]) -> float:
    """Of one call: the fastest of as many as `LEAST_S` allows, at least five, so that others' work is not measured."""
    work()
    found: list[float] = []
    end = time.perf_counter() + LEAST_S
    while len(found) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)
