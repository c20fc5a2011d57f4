"""Tables of a run, with only the part in use in memory.

A short table is read as it is. A long one is copied once, to a file of columns beside it
(tracks.columns, codes.columns) that is mapped into memory and is valid until the table changes. It
also contains the lowest and highest values of blocks of frames.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error
from ullayers.files import open_regular, partial_path
from ullayers.tracks.reading import Floats, Key, Track, frames_of, open_objects, read_objects
from ullayers.tracks.table import damaged_table

LONG = 2**25  # bytes of a table that is copied, because it is read again for each page
TABLES_KEPT = 4
FORMAT = 1
MAX_HEADER = 2**26
ALIGNED = 8  # bytes
END = struct.Struct("<Q8s")  # place of the header, and what kind of file this is
MAGIC = b"ulcolumn"
EXACT = {"frame": "<i8", "time": "<f8"}  # the page gets everything else with single precision

Column = NDArray[Any]
Version = tuple[int, int, int]


def version_of(path: Path) -> Version:
    """Return a value that changes with a file; zeros if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def read_rows(path: Path, wanted: Sequence[str] = (), required: Sequence[str] = ()) -> list[Track]:
    """Return the rows of tracks.csv or codes.csv by sequence and object; none without a table.

    Args:
        path: The table.
        wanted: Columns to read besides frame and time; empty for all.
        required: Columns that it must have.

    Raises:
        Error: The table is damaged.
    """
    version = version_of(path)
    return _read(path, version, tuple(wanted), tuple(required)) if version[2] else []


@lru_cache(maxsize=TABLES_KEPT)
def _read(
    path: Path, version: Version, wanted: tuple[str, ...], required: tuple[str, ...]
) -> list[Track]:
    needed = "sequence", "frame", "time", *required
    if version[2] < LONG:
        return read_objects(path, wanted or None, needed)
    columns, parts = open_objects(path, wanted or None, needed)
    description = {"format": FORMAT, "version": list(version), "columns": columns}
    stored = _open(path.with_suffix(".columns"), description)
    if stored is not None:
        return stored
    return _copy(path, description, parts)


# Reading


def _open(path: Path, description: Mapping[str, Any]) -> list[Track] | None:
    """Map a file of columns into memory; None if it is missing or of another table."""
    try:
        with open_regular(path) as file:
            return _map(file, description)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, struct.error):
        return None


def _map(file: IO[bytes], description: Mapping[str, Any]) -> list[Track] | None:
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start, magic = END.unpack(content[-END.size :])
    if magic != MAGIC or not 0 <= len(content) - start <= MAX_HEADER:
        return None
    header = json.loads(content[start : -END.size])
    if header["description"] != description:
        return None
    return [
        Track(
            str(entry["sequence"]),
            int(entry["object"]),
            {name: _column(content, place) for name, place in entry["columns"].items()},
            {name: _column(content, place) for name, place in entry["extremes"].items()},
        )
        for entry in header["objects"]
    ]


def _column(content: mmap.mmap | bytes, place: tuple[str, int, int]) -> Column:
    kind, offset, count = place
    return np.frombuffer(content, kind, count, offset) if count else np.zeros(0, kind)


# Writing


def _copy(
    path: Path, description: Mapping[str, Any], parts: Iterator[dict[Key, Floats]]
) -> list[Track]:
    """Write a file of columns beside a table, or where it is deleted at the end, and map it."""
    partial = partial_path(path)
    folder = path.parent if os.access(path.parent, os.W_OK) else None
    try:
        with (
            open(partial, "w+b", 0) if folder else tempfile.TemporaryFile(buffering=0) as file,
            tempfile.TemporaryFile(buffering=0, dir=folder) as spool,
        ):
            _write(file, description, _by_object(description["columns"], parts, spool))
            found = _map(file, description)
            assert found is not None
            written = os.dup(file.fileno())
    except ValueError as error:
        partial.unlink(missing_ok=True)
        raise error if isinstance(error, Error) else damaged_table(path, error) from error
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise Error(f"{path}: cannot be copied to {partial.parent}: {error}") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # The file is renamed in the background, once it is on the disk, which takes long.
    threading.Thread(target=_keep, args=(written, partial, path.with_suffix(".columns"))).start()
    return found


def _keep(file: int, partial: Path, path: Path) -> None:
    try:
        with suppress(OSError):
            os.fsync(file)
            os.replace(partial, path)
    finally:
        os.close(file)
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _put(file: IO[bytes], column: Column) -> tuple[str, int, int]:
    """Write a column; returns its type, place and length."""
    place = file.tell()
    data = np.ascontiguousarray(column).view(np.uint8)
    while len(data):
        data = data[file.write(data.data) :]
    file.seek(-place - column.nbytes & ALIGNED - 1, os.SEEK_CUR)
    return column.dtype.str, place, len(column)


def _by_object(
    names: Sequence[str], parts: Iterator[dict[Key, Floats]], spool: IO[bytes]
) -> Iterator[Track]:
    """Yield the rows object by object; those of other objects are kept on disk."""
    pieces: dict[Key, list[list[tuple[str, int, int]]]] = defaultdict(list)
    every = ["frame", *names]
    kinds = [EXACT.get(name, "<f4") for name in every]
    for part in parts:
        for key, rows in part.items():
            frames_of(key, rows[:, 0])
            columns = zip(kinds, rows.T, strict=True)
            pieces[key].append([_put(spool, values.astype(kind)) for kind, values in columns])
    content = mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) if pieces else b""
    for key in sorted(pieces):
        joined = {
            name: np.concatenate([_column(content, piece) for piece in column])
            for name, column in zip(every, zip(*pieces[key], strict=True), strict=True)
        }
        frames_of(key, joined["frame"])
        yield Track(*key, joined)


def _write(file: IO[bytes], description: Mapping[str, Any], objects: Iterator[Track]) -> None:
    entries = []
    for rows in objects:
        groups = {"columns": rows.columns, "extremes": rows.extremes}
        entry: dict[str, Any] = {"sequence": rows.sequence, "object": rows.object}
        for group, columns in groups.items():
            entry[group] = {}
            for name, column in columns.items():
                entry[group][name] = _put(file, column)
        entries.append(entry)
    start = file.tell()
    file.write(json.dumps({"description": description, "objects": entries}).encode())
    file.write(END.pack(start, MAGIC))
