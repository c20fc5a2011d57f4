"""Processing of single frames in two threads."""

from __future__ import annotations

import threading

import pytest

from ullayers.video.parallel import THREADS, in_parallel


def test_results_are_in_order_and_all_threads_work() -> None:
    together = threading.Barrier(THREADS, timeout=30)

    def square(number: int) -> int:
        if number < THREADS:
            together.wait()  # breaks unless every thread has a frame
        return number**2

    assert in_parallel(square, range(200)) == [number**2 for number in range(200)]


def test_an_error_in_any_frame_is_raised() -> None:
    for bad in range(4):
        with pytest.raises(ZeroDivisionError):
            in_parallel(lambda a, b: a // b, range(4), [each != bad for each in range(4)])
