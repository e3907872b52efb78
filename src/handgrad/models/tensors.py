"""Safetensors files, tensor by tensor: read through the library's checks, written without a second copy in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from handgrad.core.errors import FileError
from handgrad.models.stored import FLOATS, Stored, start_of

KIND_OF = {dtype: kind for kind, dtype in FLOATS.items()}


def tensors_of(path: Path) -> dict[str, Stored]:
    """Name -> tensor of one file; the header alone is read here. Raises FileError."""
    start_of(path, 8)
    try:
        file = safe_open(path, framework="pt")
        names = list(file.keys())
        parts = {name: file.get_slice(name) for name in names}
        return {
            name: Stored(tuple(part.get_shape()), str(part.get_dtype()), reader(path, file, name))
            for name, part in parts.items()
        }
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise damaged(path, error) from None


def reader(path: Path, file: safe_open, name: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        try:
            return file.get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise damaged(path, error) from None

    return read


def damaged(path: Path, error: Exception) -> FileError:
    if isinstance(error, FileError):
        return error
    size = f"{path.stat().st_size:,} bytes found" if path.is_file() else "it is gone"
    reason = str(error).splitlines()[0][:120]
    return FileError(f"{path} is damaged or cut short: expected a whole safetensors file, {size} ({reason})")


def write_tensors(
    file: BinaryIO,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    tensor: Callable[[str], Tensor],
    metadata: Mapping[str, str],
) -> int:
    """Write a safetensors file: `tensor(name)` is asked for one at a time. The number of bytes is returned."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": KIND_OF[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name, shape in shapes.items():
        x = tensor(name).to(dtype)
        # A row of a transposed matrix counts as contiguous, whatever its strides, and cannot be seen as bytes.
        if x.stride() != torch.empty(shape, device="meta").stride():
            x = x.clone(memory_format=torch.contiguous_format)
        assert x.shape == shape, f"{name} is {tuple(x.shape)}, announced as {shape}"
        file.write(memoryview(x.view(torch.uint8).flatten().numpy()) if x.numel() else b"")
    return 8 + len(text) + end
