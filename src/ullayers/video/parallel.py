"""Processing of single frames in two threads."""

from __future__ import annotations

from collections import deque
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
    # The calling thread is one of the two, and both take the next frame themselves: handing over
    # each frame takes as long as many of the functions do.
    waiting = deque(enumerate(zip(*arguments, strict=False)))
    found: dict[int, T] = {}

    def work() -> None:
        while waiting:
            try:
                number, own = waiting.popleft()
            except IndexError:  # the other thread has taken the last one
                return
            found[number] = function(*own)

    with ThreadPoolExecutor(THREADS - 1) as pool:
        others = [pool.submit(work) for _ in range(THREADS - 1)]
        work()
        for other in others:
            other.result()
    return [found[number] for number in range(len(found))]
