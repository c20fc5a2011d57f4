"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


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
