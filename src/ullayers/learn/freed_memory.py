"""Returning freed memory to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

from ullayers.video import recycled

EVERY = 16  # parts of a video between two returns
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGE = 2**23  # bytes: larger blocks, such as windows of frames, are returned once they are free
# Smaller blocks are kept until the next return. Returning them after each frame costs time, because
# the system clears every page that it gives out.
KEPT = 2**30  # bytes

T = TypeVar("T")


def returning_memory(parts: Iterator[T]) -> Iterator[T]:
    """Yield parts of a video, and return memory to the system from time to time.

    glibc keeps freed memory, the more the larger the freed blocks were. Because parts differ in
    size, the kept memory would grow over an hour of video.

    >>> list(returning_memory(iter([1, 2])))
    [1, 2]
    """
    library = _glibc()
    if library is not None:
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)
    try:
        for number, part in enumerate(parts, 1):
            yield part
            if number % EVERY == 0 and library is not None:
                library.malloc_trim(0)
    finally:
        recycled.release()


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return glibc, or None if it is not available."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None
