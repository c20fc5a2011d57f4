"""Files: written whole or not at all, read safely, and JSON with checked types."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    IO,
    Annotated,
    Any,
    BinaryIO,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from ullayers.errors import RunError

BLOCK_BYTES = 2**20
T = TypeVar("T")
MAX_INTEGER = 2**63
AnyFloat = Annotated[float, "may be NaN or infinite"]


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
    """Remove unfinished files that a killed process left in a folder."""
    for path in folder.glob(".*.part*"):
        if re.fullmatch(r"\.[0-9a-f]{32}\.part(\.\w+)?", path.name):
            path.unlink(missing_ok=True)


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


def from_json(kind: type[T], content: Any) -> T:
    """Build a dataclass from a JSON object.

    Args:
        kind: The dataclass. Its fields may be int, float, str, bool, None, literals, and lists,
            tuples, dictionaries and dataclasses of these.
        content: The JSON object. Fields with a default may be missing.

    Raises:
        ValueError: A field is missing, unknown or of the wrong type, or a number is not finite and
            not an `AnyFloat`.

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
        ValueError: x: expected float, got '1'
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"expected a JSON object, got {_shown(content)}")
    known: dict[str, Field[Any]] = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"unknown entry {_shown(unknown[0])}")
    required = (name for name, field in known.items() if _is_required(field))
    missing = [name for name in required if name not in content]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: convert(name, value, hints[name]) for name, value in content.items()})


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a JSON value to the type of a hint.

    Args:
        name: Name of the value, for the error message.
        value: The JSON value.
        hint: The type.

    Raises:
        ValueError: The value has the wrong type.

    Example:
        >>> convert("size", [48, 64], tuple[int, int])
        (48, 64)
        >>> convert("size", True, int)
        Traceback (most recent call last):
        ValueError: size: expected int, got True
    """
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _convert_union(name, value, hint, choices)
    if origin is Annotated:
        return value if type(value) is float else convert(name, value, choices[0])
    if is_dataclass(hint):
        return from_json(cast(type[Any], hint), value)
    if origin is Literal and isinstance(value, str) and value in choices:
        return value
    if origin in (list, tuple) and isinstance(value, list):
        return _convert_items(name, value, hint)
    if origin is dict and isinstance(value, dict):
        return {key: convert(name, item, choices[1]) for key, item in value.items()}
    if origin is None and _is_plain(value, hint):
        return float(value) if hint is float else value
    raise ValueError(f"{name}: expected {_name(hint)}, got {_shown(value)}")


def _convert_items(name: str, value: list[Any], hint: Any) -> list[Any] | tuple[Any, ...]:
    """Return a JSON array as a list, or as a tuple of a fixed or any length."""
    choices = get_args(hint)
    if get_origin(hint) is list:
        return [convert(name, item, choices[0]) for item in value]
    if choices[-1] is ...:
        return tuple(convert(name, item, choices[0]) for item in value)
    if len(value) != len(choices):
        raise ValueError(f"{name}: expected {_name(hint)}, got {_shown(value)}")
    pairs = zip(value, choices, strict=True)
    return tuple(convert(name, item, choice) for item, choice in pairs)


def _convert_union(name: str, value: Any, hint: Any, choices: tuple[Any, ...]) -> Any:
    if value is None and NoneType in choices:
        return None
    others = [choice for choice in choices if choice is not NoneType]
    if len(others) == 1:
        return convert(name, value, others[0])
    for choice in others:
        try:
            return convert(name, value, choice)
        except ValueError:
            continue
    raise ValueError(f"{name}: expected {_name(hint)}, got {_shown(value)}")


def _is_plain(value: Any, hint: Any) -> bool:
    """Return whether this is a str, bool, None or finite number of the type of the hint."""
    if hint is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    if hint is int:
        return type(value) is int and abs(value) < MAX_INTEGER
    return type(value) is (NoneType if hint is None else hint)


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(str(choice) for choice in get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _shown(value: Any) -> str:
    """Return a short text for a value of any length."""
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."


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
