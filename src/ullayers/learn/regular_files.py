"""Reading files of a run folder, which may be pipes, devices or hard links to other files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ullayers.video.atomic_files import replacing

BLOCK_BYTES = 2**20


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading, without waiting for the other end of a pipe.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is a pipe or a device, which may block or never end.

    Example:
        >>> open_regular(os.devnull)
        Traceback (most recent call last):
        ValueError: is not a regular file; remove it
    """
    file = open(path, "rb", opener=_open_without_waiting)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("is not a regular file; remove it")
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has no such flag


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a file of at most `limit` bytes.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger, or not a regular file.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"expected at most {limit} bytes")
    return content


def keep_beginning(path: Path, size: int) -> None:
    """Truncate a file to its first bytes by replacing it; other hard links are not changed.

    Args:
        path: The file.
        size: Number of bytes to keep.
    """
    with replacing(path, "wb") as new, open_regular(path) as old:
        while block := old.read(min(size, BLOCK_BYTES)):
            new.write(block)
            size -= len(block)
