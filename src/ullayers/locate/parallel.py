"""Processing of single frames in two threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

THREADS = 2


def in_parallel(function: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """Call a function for each frame in two threads; OpenCV and NumPy release the GIL.

    >>> in_parallel(lambda a, b: a + b, [1, 2], [3, 4])
    [4, 6]
    """
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, *arguments))
