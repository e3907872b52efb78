"""The header of a GGUF file: fields and tensors. Every count and length is compared with the file before it is used.

A file is: "GGUF", version, number of tensors and of fields; the fields, each a name, a type and a value; the tensors'
names, axes (fastest first), types and offsets; padding; the data. Numbers are little endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from handgrad.core.errors import FileError
from handgrad.models.stored import short, start_of

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = dict(enumerate("BbHhIif?", start=0)) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MOST_FIELDS, MOST_TENSORS, MOST_AXES = 1 << 16, 1 << 18, 4
MOST_ITEMS = 1 << 22  # of a list; the largest vocabularies have a quarter of a million tokens
MOST_HEADER = 1 << 28  # bytes

# Type of tensor -> its name, numbers in a block, bytes of a block.
KINDS = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True)
class Info:
    """One tensor: shape with the fastest axis last, type, first byte in the file, bytes."""

    shape: tuple[int, ...]
    kind: str
    start: int
    n_bytes: int


@dataclass
class Header:
    """Fields by name, as Python values; tensors by name."""

    fields: dict[str, Any]
    tensors: dict[str, Info]


@dataclass
class Reader:
    """The bytes of the header, taken from the front; FileError where they end too early."""

    path: Path
    data: memoryview
    size: int
    at: int = field(default=0)

    def take(self, n: int, what: str) -> memoryview:
        if n > len(self.data) - self.at:
            most = "the file" if self.size == len(self.data) else f"{MOST_HEADER:,} bytes, too many for a header"
            raise self.damaged(f"{what} takes {n:,} bytes at {self.at:,}, beyond the end of {most}")
        self.at += n
        return self.data[self.at - n : self.at]

    def scalar(self, letter: str, what: str) -> Any:
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter), what))[0]

    def text(self, what: str) -> str:
        raw = self.take(self.scalar("Q", what), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not text") from None

    def value(self, what: str) -> Any:
        kind = self.scalar("I", what)
        if kind != ARRAY:
            return self.single(kind, what)
        kind, n = self.scalar("I", what), self.scalar("Q", what)
        if n > MOST_ITEMS:
            raise self.damaged(f"{what} is a list of {n:,}; {MOST_ITEMS:,} are the most that is read")
        if kind in SCALARS:
            letter = SCALARS[kind]
            return np.frombuffer(self.take(n * struct.calcsize("<" + letter), what), "<" + letter).tolist()
        if 8 * n > len(self.data) - self.at:
            raise self.damaged(f"{what} is a list of {n:,}, more than the file has room for")
        return [self.single(kind, what) for _ in range(n)]

    def single(self, kind: int, what: str) -> Any:
        if kind == STRING:
            return self.text(what)
        if kind not in SCALARS:
            raise self.damaged(f"{what} has the unknown type {kind}")
        value = self.scalar(SCALARS[kind], what)
        # The shortest number that is stored as this float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(value))) if SCALARS[kind] == "f" else value

    def damaged(self, why: str) -> FileError:
        return FileError(f"{self.path} is damaged, cut short or no GGUF file ({self.size:,} bytes): {why}")


def read_header(path: Path) -> Header:
    """Fields and tensors of a GGUF file, which has to be exactly as long as its header says. Raises FileError."""
    start, size = start_of(path, 4), path.stat().st_size
    if start != MAGIC:
        raise Reader(path, memoryview(b""), size).damaged(f"it begins with {start!r}, not with GGUF")
    with open(path, "rb") as file:
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
    reader = Reader(path, memoryview(mapped)[:MOST_HEADER], size)
    reader.take(4, "the first word")
    version = reader.scalar("I", "the version")
    if version not in VERSIONS:
        raise FileError(f"{path} is GGUF of version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are read")
    n_tensors, n_fields = reader.scalar("Q", "the number of tensors"), reader.scalar("Q", "the number of fields")
    if n_tensors > MOST_TENSORS or n_fields > MOST_FIELDS:
        raise reader.damaged(f"it claims {n_tensors:,} tensors and {n_fields:,} fields")
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        name = reader.text("the name of a field")
        if name in fields:
            raise reader.damaged(f"the field {short(name)} is there twice")
        fields[name] = reader.value(f"the field {short(name)}")
    return Header(fields, tensors(reader, n_tensors, fields.get("general.alignment", 32)))


def tensors(reader: Reader, n: int, alignment: Any) -> dict[str, Info]:
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise reader.damaged(f"general.alignment is {short(alignment)}, and must be a power of two")
    found: dict[str, Info] = {}
    for _ in range(n):
        name = reader.text("the name of a tensor")
        n_axes = reader.scalar("I", f"the tensor {short(name)}")
        if not 1 <= n_axes <= MOST_AXES:
            raise reader.damaged(f"the tensor {short(name)} has {n_axes} axes")
        shape = tuple(reader.scalar("Q", f"the tensor {short(name)}") for _ in range(n_axes))[::-1]
        number, offset = reader.scalar("I", "the type of a tensor"), reader.scalar("Q", "the offset of a tensor")
        if number not in KINDS:
            raise FileError(
                f"{reader.path}: the tensor {short(name)} has the type {number}, which is not read; known: "
                + ", ".join(kind for kind, _, _ in KINDS.values())
            )
        kind, block, n_bytes = KINDS[number]
        if shape[-1] % block:
            raise reader.damaged(f"{short(name)} has rows of {shape[-1]}, and {kind} comes in blocks of {block}")
        if name in found or offset % alignment:
            raise reader.damaged(f"the tensor {short(name)} is there twice, or at {offset}, no multiple of {alignment}")
        found[name] = Info(shape, kind, offset, prod(shape) // block * n_bytes)
    first = -(-reader.at // alignment) * alignment
    return placed(reader, found, first, alignment)


def placed(reader: Reader, found: dict[str, Info], first: int, alignment: int) -> dict[str, Info]:
    """The tensors with their places in the file, which may neither overlap nor leave bytes over."""
    end, before, gap = 0, "the header", ""
    for name, info in sorted(found.items(), key=lambda item: (item[1].start, item[1].n_bytes)):
        if info.start < end:
            raise reader.damaged(f"{short(name)} begins within {short(before)}")
        if not gap and info.start != (next_start := -(-end // alignment) * alignment):
            gap = f"{info.start - next_start:,} bytes between {short(before)} and {short(name)} belong to no tensor"
        end, before = info.start + info.n_bytes, name
    least, most = first + end, first + -(-end // alignment) * alignment
    if not least <= reader.size <= most and found:
        raise FileError(
            f"{reader.path} is cut short or damaged: its header says {least:,} bytes, found {reader.size:,}"
        )
    if gap:
        raise reader.damaged(gap)
    return {name: Info(i.shape, i.kind, first + i.start, i.n_bytes) for name, i in found.items()}
