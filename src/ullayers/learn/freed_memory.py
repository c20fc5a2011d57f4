"""Memory that is free again, returned to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

EVERY = 16  # parts of a video between two returns

T = TypeVar("T")


def returning_memory(parts: Iterator[T]) -> Iterator[T]:
    """Yield parts of a video, and return memory to the system from time to time.

    glibc keeps freed memory. As parts differ in size, what it keeps grows over an hour of video.

    >>> list(returning_memory(iter([1, 2])))
    [1, 2]
    """
    for number, part in enumerate(parts, 1):
        yield part
        if number % EVERY == 0:
            _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """Return glibc's `malloc_trim`; a function that does nothing where there is none."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return getattr(library, "malloc_trim", lambda _: None)
