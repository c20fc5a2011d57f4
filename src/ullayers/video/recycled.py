"""Memory of large arrays, used again once they are free.

The system clears every page of new memory. This takes a large part of the time spent on a window of
frames. Between `share` and `unshare`, the memory is in files without a name, which another process
can read and write.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

LEAST = 2**20  # bytes: glibc reuses the memory of smaller arrays itself
MAX_FREE_BYTES = 2**29
WASTE = 1.25  # times the size of an array: largest size of the memory used for it

Bytes = NDArray[np.uint8]


class Place(NamedTuple):
    """Where an array is in shared memory.

    Attributes:
        number: Number of the memory.
        offset: First byte in it.
        shape: Shape of the array.
        dtype: Its type.
    """

    number: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(eq=False)
class _Memory:
    """Memory for arrays, lent to one of them at a time.

    Attributes:
        content: All of it.
        address: Address of its first byte.
        number: Its number.
        file: File descriptor, if it is shared.
        lent: The array that uses it now.
    """

    content: Bytes
    address: int
    number: int
    file: int | None = None
    lent: Callable[[], Bytes | None] = lambda: None


# Arrays may end in any thread, even during an operation of this module. Single operations of a dict
# are atomic, so that no lock is needed.
_free: dict[int, _Memory] = {}  # by number; the oldest first
_shared: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()
_numbers = count()
_sharing: set[int] = set()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array with arbitrary values, in memory of an earlier one if possible.

    Args:
        shape: Its shape.
        dtype: Its type.
    """
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if size < LEAST:
        return np.empty(shape, kind)
    memory = _take(size)
    # Views of this array refer to it, not to the memory, so its end is that of all of them.
    lent = np.frombuffer(memory.content.data, np.uint8)
    memory.lent = weakref.ref(lent)
    weakref.finalize(lent, _give_back, memory).atexit = False
    return lent[:size].view(kind).reshape(shape)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros, in memory of an earlier one if possible.

    >>> zeros((2, 3), np.uint8).tolist()
    [[0, 0, 0], [0, 0, 0]]
    """
    array = empty(shape, dtype)
    array.fill(0)
    return array


def free_bytes() -> int:
    """Return the size of the memory that waits to be used again."""
    return sum(memory.content.nbytes for memory in list(_free.values()))


def release() -> None:
    """Return the memory that waits to be used again to the system."""
    _free.clear()


def share() -> int:
    """From now on, use memory that can be shared, if the system has any; for `unshare`."""
    number = next(_numbers)
    _sharing.add(number)
    release()
    return number


def unshare(number: int) -> None:
    """Stop sharing, unless others still do."""
    _sharing.discard(number)
    release()


def shared_files() -> dict[int, int]:
    """Return the file descriptors of all shared memory, by its number."""
    return {each.number: each.file for each in _in_use() if each.file is not None}


def place_of(array: NDArray[Any]) -> Place | None:
    """Return where an array is in shared memory; None if it is not, or not contiguous."""
    if not array.flags.c_contiguous:
        return None
    address = _address(array)
    for memory in _in_use():
        offset = address - memory.address
        if 0 <= offset < memory.content.nbytes:
            return Place(memory.number, offset, array.shape, array.dtype.str)
    return None


def array_at(place: Place) -> NDArray[Any]:
    """Return the array at a place of shared memory, which must be in use."""
    lent = _shared[place.number].lent()
    assert lent is not None, "expected memory in use"
    kind = np.dtype(place.dtype)
    size = int(np.prod(place.shape, dtype=np.int64)) * kind.itemsize
    return lent[place.offset : place.offset + size].view(kind).reshape(place.shape)


def _in_use() -> list[_Memory]:
    found = [reference() for reference in _shared.valuerefs()]
    return [memory for memory in found if memory is not None]


def _take(size: int) -> _Memory:
    fitting = [each for each in list(_free.values()) if size <= each.content.nbytes <= WASTE * size]
    for memory in sorted(fitting, key=lambda each: each.content.nbytes):
        if _free.pop(memory.number, None) is not None:
            return memory
    return _allocated(size)


def _allocated(size: int) -> _Memory:
    if not _sharing:
        content = np.empty(size, np.uint8)
        return _Memory(content, _address(content), next(_numbers))
    file = os.memfd_create("ullayers")
    os.ftruncate(file, size)
    content = np.frombuffer(mmap.mmap(file, size), np.uint8)
    memory = _Memory(content, _address(content), next(_numbers), file)
    weakref.finalize(memory, os.close, file).atexit = False
    _shared[memory.number] = memory
    return memory


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _give_back(memory: _Memory) -> None:
    _free[memory.number] = memory
    while free_bytes() > MAX_FREE_BYTES:
        for oldest in list(_free)[:1]:
            _free.pop(oldest, None)
