"""Keeping the memory that a step frees, for the next step.

A training step makes and frees the same arrays again and again. glibc gives large ones back to the system at once and
the next step pays for fresh pages, which costs more than the arithmetic on them. Raising two of its thresholds keeps
them. Elsewhere nothing is changed.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_BYTES = 32 << 20  # the largest that glibc takes
TRIM_BYTES = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory for this process; False where it cannot be asked."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
