"""A lock in a folder, so that two processes do not write into it at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import LOCK_FILE, check_writable

ATTEMPTS = 10  # another process may remove its lock, and an empty folder, while we take ours


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes out of a folder; the operating system ends the lock with the process.

    The folder is created if needed. When the block ends, the lock file and the folders that were
    created and are still empty are removed.

    Args:
        folder: Folder to lock.

    Raises:
        RunError: The folder cannot be written to, or another process holds its lock.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with locked(f"{place}/run"):
        ...         print(os.listdir(f"{place}/run"))
        ...     os.listdir(place)
        ['.lock']
        []
    """
    check_writable(folder)
    place = Path(folder).absolute()
    _check_own(place / LOCK_FILE)
    created = [path for path in (place, *place.parents) if not path.exists()]
    try:
        lock = _acquire(place)
    except Timeout as error:
        raise RunError(f"{folder}: another process is writing here; wait for it") from error
    try:
        yield
    finally:
        _release(lock, place / LOCK_FILE)
        for path in created:
            with suppress(OSError):  # no longer empty
                path.rmdir()


def _check_own(path: Path) -> None:
    """Refuse a file that is not a lock of ours, which is empty."""
    if path.is_file() and not path.is_symlink() and path.stat().st_size > 0:
        raise RunError(f"{path}: this name is used for a lock; rename the file")


def _acquire(place: Path) -> FileLock:
    lock = FileLock(place / LOCK_FILE, timeout=0)
    for attempt in range(ATTEMPTS):
        place.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
            break
        except FileNotFoundError:  # another process has just removed the empty folder
            if attempt == ATTEMPTS - 1:
                raise
        except OSError as error:
            if (place / LOCK_FILE).is_symlink():
                raise RunError(f"{place / LOCK_FILE}: is a link; remove it") from error
            raise
    return lock


def _release(lock: FileLock, path: Path) -> None:
    # Removed while it is held: a process that has opened this file sees that it has no name any
    # more and tries again. Windows removes no open file; there, filelock does it after the release.
    if sys.platform != "win32":
        with suppress(OSError):
            path.unlink()
    lock.release()
