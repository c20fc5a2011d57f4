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
    partial = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        # Names of files may be no text; what we say of them is.
        words = {"encoding": "utf-8", "errors": "replace", "newline": ""}
        text: dict[str, Any] = {} if "b" in mode else words
        with open(partial, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the unfinished files that a process which was killed has left in a folder."""
    for path in folder.glob(".*.part"):
        if re.fullmatch(r"\.[0-9a-f]{32}\.part", path.name):
            path.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write `content` as indented JSON, whole or not at all."""
    with replacing(path) as file:
        json.dump(content, file, indent=2)
        file.write("\n")
