"""Memory of large arrays: used again once it is free, shared with a second process, returned.

The system clears every page of new memory, which takes a large part of the time spent on a window
of frames. Arrays from `empty` therefore use the memory of earlier ones. Between `share` and
`unshare`, this memory is in a file without a name, which a second process can read and write; the
system frees it when both processes have ended, however they end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

LEAST = 2**20  # bytes: glibc reuses the memory of smaller arrays itself
MAX_FREE_BYTES = 2**29
WASTE = 1.25  # times the size of an array: largest size of the memory used for it
EVERY = 16  # parts of a video between two returns of memory to the system
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGE = 2**23  # bytes: larger blocks, such as windows of frames, are returned once they are free
# Smaller blocks are kept until the next return. Returning them after each frame costs time, because
# the system clears every page that it gives out.
KEPT = 2**30  # bytes

Bytes = NDArray[np.uint8]
T = TypeVar("T")


class Place(NamedTuple):
    """Where an array is in shared memory: its first byte in the file, its shape and its type."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(eq=False)
class _Block:
    """Memory that is lent to one array at a time, in a file from `offset` on if it is shared."""

    content: Bytes
    file: int | None = None
    offset: int = 0


# Arrays may end in any thread, even during an operation of this module. Single operations of a dict
# are atomic, so that no lock is needed.
_free: dict[int, _Block] = {}  # by id; the oldest first
_shared: weakref.WeakValueDictionary[int, _Block] = weakref.WeakValueDictionary()  # by address
_files: list[int] = []  # new memory is in the last one
_growing = threading.Lock()


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
    block = _take(size)
    # Views of this array refer to it, not to the block, so its end is that of all of them.
    lent = np.frombuffer(block.content.data, np.uint8)
    weakref.finalize(lent, _give_back, block).atexit = False
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
    return sum(block.content.nbytes for block in list(_free.values()))


def release() -> None:
    """Return the memory that waits to be used again to the system."""
    _free.clear()


def share() -> int:
    """From now on, use memory in a new file without a name; return its descriptor."""
    file = os.memfd_create("ullayers")
    _files.append(file)
    release()
    return file


def unshare(file: int) -> None:
    """Stop to use memory in a file, and close it; arrays in it remain."""
    _files.remove(file)
    release()
    os.close(file)


def place_of(array: NDArray[Any], file: int) -> Place | None:
    """Return where an array is in a file of `share`; None if it is not, or not contiguous."""
    address = _address(array)
    for reference in _shared.valuerefs() if array.flags.c_contiguous else []:
        block = reference()
        if block is not None and block.file == file:
            offset = address - _address(block.content)
            if 0 <= offset < block.content.nbytes:
                return Place(block.offset + offset, array.shape, array.dtype.str)
    return None


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
        release()


def _take(size: int) -> _Block:
    fitting = [each for each in list(_free.values()) if size <= each.content.nbytes <= WASTE * size]
    for block in sorted(fitting, key=lambda each: each.content.nbytes):
        if _free.pop(id(block), None) is not None:
            return block
    if not _files:
        return _Block(np.empty(size, np.uint8))
    file = _files[-1]
    with _growing:
        offset = os.fstat(file).st_size
        whole = -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        os.ftruncate(file, offset + whole)  # offsets are not used again, but the memory is freed
    part = mmap.mmap(file, size, offset=offset)
    block = _Block(np.frombuffer(part, np.uint8), file, offset)
    weakref.finalize(block, part.madvise, mmap.MADV_REMOVE).atexit = False
    _shared[_address(block.content)] = block
    return block


def _give_back(block: _Block) -> None:
    _free[id(block)] = block
    while free_bytes() > MAX_FREE_BYTES:
        for oldest in list(_free)[:1]:
            _free.pop(oldest, None)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return glibc, or None if it is not available."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None
