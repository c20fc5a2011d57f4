"""A lock file that keeps two processes from writing into one folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import LOCK_FILE, check_writable

ATTEMPTS = 10  # another process may remove its lock, and an empty folder, while we lock


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes out of a folder; the system releases the lock if the process dies.

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
    """Refuse a file that is not one of our locks, which are empty."""
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
    # The file is removed while the lock is held: a process that has opened it sees that it is gone
    # and tries again. Windows cannot remove open files; there, filelock removes it after the
    # release.
    if sys.platform != "win32":
        with suppress(OSError):
            path.unlink()
    lock.release()
