"""Memory of large arrays that is used again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ullayers.video import memory

SHAPE = (8, 512, 1024)


@pytest.fixture(autouse=True)
def nothing_is_free() -> Iterator[None]:
    memory.release()
    yield
    memory.release()


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_only_after_the_last_view_of_an_array() -> None:
    array = memory.empty(SHAPE, np.uint8)
    place, view = address(array), array[3, 5:9].T
    del array
    other = memory.empty(SHAPE, np.uint8)
    assert address(other) != place
    assert memory.free_bytes() == 0
    del view
    assert memory.free_bytes() == np.prod(SHAPE)
    assert address(memory.empty(SHAPE, np.uint8)) == place


def test_zeros_are_zero_in_used_memory() -> None:
    memory.empty(SHAPE, np.uint8).fill(7)
    assert memory.free_bytes() == np.prod(SHAPE)
    assert not memory.zeros((8, 512, 256), np.float32).any()


def test_free_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    size = int(np.prod(SHAPE))
    monkeypatch.setattr(memory, "MAX_FREE_BYTES", 2 * size)
    arrays = [memory.empty(SHAPE, np.uint8) for _ in range(5)]
    del arrays
    assert memory.free_bytes() == 2 * size
    memory.release()
    assert memory.free_bytes() == 0


def test_much_larger_memory_is_not_used() -> None:
    memory.empty((4, *SHAPE), np.uint8)
    memory.empty(SHAPE, np.uint8)
    assert memory.free_bytes() == 5 * np.prod(SHAPE)


def size_on_disk(file: int) -> int:
    return 512 * os.fstat(file).st_blocks


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no shared memory on this system")
def test_shared_memory_is_written_through_its_file_and_freed_when_it_is_released() -> None:
    file = memory.share()
    try:
        other = memory.zeros(SHAPE, np.uint8)
        array = memory.zeros(SHAPE, np.uint16)
        place = memory.place_of(array[2], file)
        assert place is not None
        assert place.shape == SHAPE[1:]
        os.pwrite(file, b"\x05\x00", place.offset)
        assert array[2, 0, 0] == 5
        assert np.count_nonzero(array) == 1
        assert not other.any()
        assert memory.place_of(array[:, 1], file) is None  # not contiguous
        assert memory.place_of(np.zeros(3), file) is None
        used = size_on_disk(file)
        assert used >= array.nbytes + other.nbytes
        del array
        assert size_on_disk(file) == used, "it waits to be used again"
        memory.release()
        assert size_on_disk(file) == used - 2 * other.nbytes
    finally:
        memory.unshare(file)
    assert not other.any(), "it remains"
    assert memory.place_of(memory.zeros(SHAPE, np.uint8), file) is None


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no shared memory on this system")
def test_two_files_of_shared_memory() -> None:
    first, second = memory.share(), memory.share()
    array = memory.empty(SHAPE, np.uint8)
    assert memory.place_of(array, first) is None
    assert memory.place_of(array, second) is not None
    memory.unshare(second)
    assert memory.place_of(memory.empty(SHAPE, np.uint8), first) is not None
    memory.unshare(first)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no shared memory on this system")
def test_threads_get_different_memory() -> None:
    file = memory.share()
    try:
        with ThreadPoolExecutor(8) as pool:
            arrays = list(pool.map(lambda _: memory.zeros((2**20,), np.uint8), range(32)))
        for number, array in enumerate(arrays):
            array.fill(number)
        assert [int(each.max()) for each in arrays] == list(range(32))
        assert [int(each.min()) for each in arrays] == list(range(32))
    finally:
        memory.unshare(file)
