"""How much memory a process holds for a sequence of blocks taken and given back: glibc's malloc, as far as large
blocks see it.

Bytes alive are not memory held. A block below `mapped_from` is cut out of the heap: best fit among the holes, else from
the end; holes side by side become one; the heap does not shrink while a training run keeps freed memory
(`train/memory.py`). torch asks for blocks aligned to 64 bytes, and glibc finds one by looking for a hole that is larger
by `SPARE`: a hole left by a block of the same size between two neighbours is too small by that much, and stays empty.
Whether a block happens to be aligned anyway depends on where the system put the heap, which differs from run to run:
this model always pays, and the same program may hold up to a quarter more or less in the next run (docs/plan.md).

Beside each block torch makes small objects that describe it and live as long: `DESCRIPTION`. They are cut from the same
heap, often out of the end of a hole between two blocks, and keep the two from becoming one hole later. Of each size
glibc keeps the last `KEPT` that were freed for the next of that size, and joins those with nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field

ALIGNMENT = 64  # torch's, on a CPU
LEAST = 32  # glibc's smallest block
SPARE = ALIGNMENT + LEAST
PAGE = 4096
DESCRIPTION = (
    112,
    192,
    320,
    32,
)  # bytes of torch's storage, of its tensor in two parts, and of the pointer to the data
KEPT = 7


@dataclass
class Heap:
    """Blocks by key. `held` is the memory of the process for them now, `peak` the most it ever was.

    >>> heap = Heap(mapped_from=1 << 20)
    >>> for key in "abc":
    ...     heap.take(key, 1000)
    >>> heap.give("b")
    >>> heap.take("d", 1000)  # b's hole is too small to find an aligned 1000 bytes in
    >>> heap.held - 4 * 1008 - 3 * sum(DESCRIPTION)  # b's description is used again
    96
    """

    mapped_from: int
    end: int = 0  # where the last block ends
    grown: int = 0  # what the heap has been grown to
    mapped: int = 0  # blocks with pages of their own
    peak: int = 0
    blocks: dict[Hashable, tuple[int | None, int]] = field(default_factory=dict)  # key -> start, size
    holes: list[tuple[int, int]] = field(default_factory=list)  # (size, start), sorted
    starts: dict[int, int] = field(default_factory=dict)  # hole's start -> size
    ends: dict[int, int] = field(default_factory=dict)  # hole's end -> size
    beside: dict[Hashable, list[int]] = field(default_factory=dict)  # key -> starts of its description's parts
    kept: dict[int, list[int]] = field(
        default_factory=dict
    )  # size of a part -> starts of freed ones, last in first out

    @property
    def held(self) -> int:
        return self.grown + self.mapped

    def take(self, key: Hashable, nbytes: int) -> None:
        if nbytes >= self.mapped_from:
            size = -(-(nbytes + ALIGNMENT) // PAGE) * PAGE
            self.mapped += size
            self.blocks[key] = (None, size)
        elif nbytes:
            size = max(LEAST, -(-(nbytes + 8) // 16) * 16)
            self.blocks[key] = (self._cut(size, SPARE), size)
            self.beside[key] = [self._small(n) for n in DESCRIPTION]
        self.peak = max(self.peak, self.held)

    def give(self, key: Hashable) -> None:
        start, size = self.blocks.pop(key, (0, 0))
        if start is None:
            self.mapped -= size
        elif size:
            self._join(start, size)
            for at, n in zip(self.beside.pop(key), DESCRIPTION, strict=True):
                self._drop(at, n)

    def _small(self, size: int) -> int:
        return kept.pop() if (kept := self.kept.get(size)) else self._cut(size, 0)

    def _drop(self, start: int, size: int) -> None:
        if len(kept := self.kept.setdefault(size, [])) < KEPT:
            kept.append(start)
        else:
            self._join(start, size)

    def _cut(self, size: int, spare: int) -> int:
        i = bisect_left(self.holes, (size + spare, -1))
        if i == len(self.holes):
            start, self.end = self.end, self.end + size
            self.grown = max(self.grown, self.end + spare)
            return start
        hole, start = self.holes[i]
        self._remove(hole, start)
        if hole > size:
            self._add(hole - size, start + size)
        return start

    def _join(self, start: int, size: int) -> None:
        if before := self.ends.get(start):
            self._remove(before, start - before)
            start, size = start - before, size + before
        if after := self.starts.get(start + size):
            self._remove(after, start + size)
            size += after
        if start + size == self.end:
            self.end = start
        else:
            self._add(size, start)

    def _add(self, size: int, start: int) -> None:
        insort(self.holes, (size, start))
        self.starts[start] = self.ends[start + size] = size

    def _remove(self, size: int, start: int) -> None:
        self.holes.pop(bisect_left(self.holes, (size, start)))
        del self.starts[start], self.ends[start + size]
