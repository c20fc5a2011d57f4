"""Videos at URLs: object stores and web servers, read through fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ullayers.errors import MissingPackageError
from ullayers.video.frames import VideoError, natural_key


def is_url(path: str) -> bool:
    """Return whether a path is a URL, not a local file with a similar name.

    >>> is_url("s3://bucket/a.mp4"), is_url("a.mp4")
    (True, False)
    """
    return "://" in path and not os.path.exists(path)


def absolute_path(path: str) -> str:
    """Return an absolute path; a URL is returned unchanged."""
    return path if is_url(path) else os.path.abspath(path)


def without_password(path: str) -> str:
    """Remove the user name and password from a URL, for messages."""
    return re.sub(r"://.*@", "://", path)


def is_pattern(url: str) -> bool:
    """Return whether a URL is a pattern; `?` starts the query of a web address.

    >>> is_pattern("s3://bucket/**/*.mp4"), is_pattern("https://example.org/a.mp4?key=1")
    (True, False)
    """
    wildcards = "*[" if url.startswith(("http:", "https:")) else "*[?"
    return any(character in url for character in wildcards)


def match_urls(pattern: str) -> list[str]:
    """Return the URLs that a pattern matches, in natural order.

    Raises:
        VideoError: The store cannot be listed.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/day/a10.mp4": b"", "/day/a2.mp4": b""})
        >>> match_urls("memory://day/*.mp4")
        ['memory://day/a2.mp4', 'memory://day/a10.mp4']
    """
    with _one_line_errors(pattern):
        system, path = _load_fsspec().core.url_to_fs(pattern)
        names = system.glob(path)
        # A leading slash would be taken for an empty host.
        found = [re.sub(":///+", "://", system.unstrip_protocol(name)) for name in names]
    return sorted(found, key=natural_key)


class RemoteFile:
    """A file at a URL that PyAV can read; errors of any store become VideoError.

    Args:
        url: URL of the file.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/a.bin", b"abcdef")
        >>> file = RemoteFile("memory://a.bin")
        >>> file.seek(2), file.read(3), file.tell()
        (2, b'cde', 5)
        >>> file.close()
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with _one_line_errors(url):
            system, path = _load_fsspec().core.url_to_fs(url)
            self.file: Any = system.open(path, "rb")
            self.can_seek = bool(self.file.seekable())

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes."""
        with _one_line_errors(self.url):
            content: bytes = self.file.read(size)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position and return it."""
        with _one_line_errors(self.url):
            position: int = self.file.seek(offset, whence)
        return position

    def tell(self) -> int:
        """Return the position."""
        position: int = self.file.tell()
        return position

    def seekable(self) -> bool:
        """Return whether the store can read from any position."""
        return self.can_seek

    def close(self) -> None:
        """Close the connection."""
        self.file.close()


def _load_fsspec() -> ModuleType:
    """Import fsspec on first use."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "reading URLs needs the package fsspec: pip install 'ullayers[remote]'"
        ) from error
    module: ModuleType = fsspec
    return module


@contextmanager
def _one_line_errors(url: str) -> Iterator[None]:
    """Convert errors of a store, of any class, to ours."""
    shown = without_password(url)
    try:
        yield
    except (VideoError, MissingPackageError):
        raise
    except FileNotFoundError as error:
        # fsspec raises the same error for servers that cannot be reached.
        cause = error.__cause__
        if cause is not None and getattr(cause, "status", None) != 404:
            raise _unreadable(shown, cause) from error
        raise VideoError(f"{shown}: does not exist; check the spelling") from error
    except ImportError as error:
        raise _missing_package(shown, error) from error
    except Exception as error:  # each store has its own exceptions
        raise _unreadable(shown, error) from error


def _missing_package(shown: str, error: ImportError) -> MissingPackageError:
    """Return an error that names the package to install."""
    module = getattr(error.__cause__ or error, "name", None)
    if not module:
        return MissingPackageError(f"{shown}: a package is missing: {error}")
    package = module.split(".")[0]
    return MissingPackageError(f"{shown}: needs the package {package}: pip install {package}")


def _unreadable(shown: str, error: BaseException) -> VideoError:
    reason = without_password(" ".join(str(error).split())) or type(error).__name__
    return VideoError(
        f"{shown}: cannot be read ({reason}); check the address, the network and your access"
    )
