"""Memory of large arrays that is used again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from ullayers.video import recycled

SHAPE = (8, 512, 1024)


@pytest.fixture(autouse=True)
def nothing_is_free() -> Iterator[None]:
    recycled.release()
    yield
    recycled.release()


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_only_after_the_last_view_of_an_array() -> None:
    array = recycled.empty(SHAPE, np.uint8)
    place, view = address(array), array[3, 5:9].T
    del array
    other = recycled.empty(SHAPE, np.uint8)
    assert address(other) != place
    assert recycled.free_bytes() == 0
    del view
    assert recycled.free_bytes() == np.prod(SHAPE)
    assert address(recycled.empty(SHAPE, np.uint8)) == place


def test_zeros_are_zero_in_used_memory() -> None:
    recycled.empty(SHAPE, np.uint8).fill(7)
    assert recycled.free_bytes() == np.prod(SHAPE)
    assert not recycled.zeros((8, 512, 256), np.float32).any()


def test_free_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = int(np.prod(SHAPE))
    monkeypatch.setattr(recycled, "MAX_FREE_BYTES", 2 * size)
    arrays = [recycled.empty(SHAPE, np.uint8) for _ in range(5)]
    del arrays
    assert recycled.free_bytes() == 2 * size
    recycled.release()
    assert recycled.free_bytes() == 0


def test_much_larger_memory_is_not_used() -> None:
    recycled.empty((4, *SHAPE), np.uint8)
    recycled.empty(SHAPE, np.uint8)
    assert recycled.free_bytes() == 5 * np.prod(SHAPE)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no shared memory on this system")
def test_shared_memory_can_be_written_through_its_file() -> None:
    number = recycled.share()
    try:
        array = recycled.zeros(SHAPE, np.uint16)
        place = recycled.place_of(array[2])
        assert place is not None
        assert (place.shape, place.offset) == (SHAPE[1:], 2 * array[2].nbytes)
        os.pwrite(recycled.shared_files()[place.number], b"\x05\x00", place.offset)
        assert array[2, 0, 0] == recycled.array_at(place)[0, 0] == 5
        assert np.count_nonzero(array) == 1
        assert recycled.place_of(array[:, 1]) is None  # not contiguous
        assert recycled.place_of(np.zeros(3)) is None
        del array
        assert recycled.shared_files()
    finally:
        recycled.unshare(number)
    assert not recycled.shared_files()
