"""Files: written whole or not at all, read safely, and JSON with checked types."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import (
    IO,
    Any,
    BinaryIO,
    TypeVar,
)

from ullayers.errors import RunError

BLOCK_BYTES = 2**20
T = TypeVar("T")
MAX_INTEGER = 2**63
MAX_FLOAT = 1e300
UNFINISHED = ".missing-"  # start of the name of a temporary folder in a run


def partial_path(path: Path, suffix: str = "") -> Path:
    """Return a new hidden name beside `path` for its unfinished content."""
    return path.with_name(f".{uuid.uuid4().hex}.part{suffix}")


@contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing that replaces `path` when the block ends without an error.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(f"{folder}/a.txt") as file:
        ...         _ = file.write("whole")
        ...     Path(folder, "a.txt").read_text()
        'whole'
    """
    path = Path(path)
    partial = partial_path(path)
    text: dict[str, Any] = {}
    if "b" not in mode:
        # File names in texts may not be valid Unicode.
        text = {"encoding": "utf-8", "errors": "replace", "newline": ""}
    try:
        with open(partial, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_path(path: Path) -> Iterator[Path]:
    """Yield a new path, whose file replaces `path` when the block ends without an error.

    For packages that open files themselves. The new path has the same suffix, which some of them
    check.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing_path(Path(folder, "a.txt")) as partial:
        ...         _ = partial.write_text("whole")
        ...     Path(folder, "a.txt").read_text()
        'whole'
    """
    partial = partial_path(path, path.suffix)
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove unfinished files, and folders for them, that a killed process left in a folder."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\.[0-9a-f]{32}\.part(\.\w+)?", path.name):
            path.unlink(missing_ok=True)
        elif re.fullmatch(rf"{re.escape(UNFINISHED)}\w{{8}}", path.name) and not path.is_symlink():
            shutil.rmtree(path)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write `content` as indented JSON, atomically."""
    with replacing(path) as file:
        json.dump(content, file, indent=2)
        file.write("\n")


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


def from_json(kind: type[T], content: Any, *, finite: bool = True) -> T:
    """Build a dataclass from a JSON object.

    Args:
        kind: The dataclass. Its fields may be int, float, str, bool, None, literals, and lists,
            tuples, dictionaries and dataclasses of these.
        content: The JSON object. Fields with a default may be missing.
        finite: Whether all numbers must be finite.

    Raises:
        ValueError: A field is missing, unknown or of the wrong type, or a number is too large.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Point:
        ...     x: float
        ...     name: str | None = None
        >>> from_json(Point, {"x": 1})
        Point(x=1.0, name=None)
        >>> from_json(Point, {"x": "1"})
        Traceback (most recent call last):
        ValueError: x: expected float, got str
    """
    import msgspec  # only where a file is read, because it would delay `ul --help`

    _check_numbers(content, finite)
    try:
        found = msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ValueError):  # of the dataclass
            raise error.__cause__ from None
        problem, _, place = str(error).replace("`", "").partition(" - at $")
        problem = re.sub(r"^Object missing required field (\w+)", r"\1 is missing", problem)
        problem = problem.replace("Expected", "expected").replace("Invalid", "invalid")
        raise ValueError(f"{place.lstrip('.')}: {problem}" if place else problem) from None
    _check_known(found, content)
    return found


def _check_numbers(content: Any, finite: bool) -> None:
    """Refuse numbers that do not fit into 64 bits, or are not finite."""
    waiting = [content]  # a stack, however deeply it is nested
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, int) and abs(value) >= MAX_INTEGER:
            raise ValueError("expected smaller whole numbers")
        elif finite and isinstance(value, float) and not abs(value) < MAX_FLOAT:
            raise ValueError(f"expected finite numbers, got {value}")


def _check_known(found: Any, content: Any) -> None:
    """Refuse entries that a dataclass does not have: a misspelled one would be ignored."""
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(content, list):
        pairs = zip(found, content, strict=True)
    elif not isinstance(content, Mapping):
        return
    elif is_dataclass(found):
        names = {field.name for field in fields(found)}
        if unknown := sorted(set(content) - names):
            raise ValueError(f"unknown entry {unknown[0][:40]!r}")
        pairs = ((getattr(found, name), value) for name, value in content.items())
    else:
        pairs = ((found[name], value) for name, value in content.items())
    for part, value in pairs:
        _check_known(part, value)


MAX_JSON_BYTES = 2**26


def read_json(path: Path) -> Any:
    """Read a JSON file that may be damaged or hostile.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not regular, not JSON, larger than 64 MB, or nested too deeply.
    """
    return parse_json(read_regular(path, MAX_JSON_BYTES).decode())


def parse_json(text: str) -> Any:
    """Parse JSON that may be damaged or hostile.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or has a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise ValueError("expected JSON that is nested less deeply") from error
    except ValueError as error:  # of int, which limits the number of digits
        raise ValueError("expected JSON with shorter numbers") from error


def check_inside(folder: str | os.PathLike[str], *paths: str | os.PathLike[str]) -> None:
    """Refuse paths that lead out of a folder through a symbolic link.

    Args:
        folder: A folder, which may itself be reached through a link.
        paths: Files or folders in it that will be written to or deleted; they need not exist.

    Raises:
        RunError: A path resolves to a location outside the folder.
    """
    real = Path(os.path.realpath(folder))
    for path in paths:
        if not Path(os.path.realpath(path)).is_relative_to(real):
            raise RunError(f"{path}: is a link that leads out of {folder}; remove the link")
