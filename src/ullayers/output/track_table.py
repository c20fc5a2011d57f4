"""Tracks of one or more objects, read from tracks.csv."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.checkpoint import RunError
from ullayers.learn.regular_files import open_regular
from ullayers.learn.results import ROWS_AT_ONCE
from ullayers.output.plain_rows import NAME, SKIPPED, plain_rows

NAMES = (
    "time",
    "x",
    "y",
    "confidence",
    "x_px",
    "y_px",
    "speed",
    "heading",
    "length",
    "width",
    "area",
)
REQUIRED = NAMES[:4]
LONG = 2**25  # bytes: for smaller tables, loading the compiled loop takes longer than it saves
BLOCK_BYTES = 2**24  # bytes of a long table that are read at once
KEY_STEP = 2**20  # larger than any object number
MAX_FRAMES = 10**8  # protects memory from damaged tables; 46 days at 25 frames per second

Floats = NDArray[np.float64]
Key = tuple[str, int]  # sequence, object


@dataclass(frozen=True)
class Track:
    """One object in consecutive frames of a sequence, one number per frame; NaN if unknown.

    Attributes:
        sequence: Name of the source.
        object: Number of the object, from 1.
        frame: Number of each frame in the source, ascending.
        time: Seconds.
        x: Horizontal position of the centroid in 0..1.
        y: Vertical position in 0..1, from the top.
        confidence: From 0 to 1; below 0.5, treat the position as unreliable.
        x_px: Horizontal position in pixels.
        y_px: Vertical position in pixels.
        speed: Pixels per second.
        heading: Degrees, clockwise from the right: 90 is down.
        length: Longer axis of the mask in pixels.
        width: Shorter axis in pixels.
        area: Pixels.
    """

    sequence: str
    object: int
    frame: NDArray[np.int64]
    time: Floats
    x: Floats
    y: Floats
    confidence: Floats
    x_px: Floats
    y_px: Floats
    speed: Floats
    heading: Floats
    length: Floats
    width: Floats
    area: Floats


def read_tracks(path: Path) -> list[Track]:
    r"""Read tracks.csv, sorted by sequence and object.

    A table of a single object has no column `object`; the object has the number 1. Tables of older
    versions lack the last columns, which are then NaN.

    Raises:
        RunError: The table is missing or damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "tracks.csv")
        ...     _ = path.write_text(
        ...         "sequence,frame,object,time,x,y,confidence,x_px,y_px\n"
        ...         "a,0,1,0.0,0.5,0.5,1.0,32,24\n"
        ...         "a,0,2,0.0,0.2,0.1,0.9,13,5\n"
        ...     )
        ...     tracks = read_tracks(path)
        >>> [(track.sequence, track.object, track.x_px.tolist()) for track in tracks]
        [('a', 1, [32.0]), ('a', 2, [13.0])]
    """
    columns, tables = open_table(path, NAMES, REQUIRED)
    return _tracks(path, columns, (item for table in tables for item in table.items()))


def read_sequences(path: Path) -> Iterator[list[Track]]:
    """Yield the tracks of one sequence after the other, in the order of the table.

    Memory does not grow with the number of sequences.

    Raises:
        RunError: The table is missing or damaged.
    """
    columns, tables = open_table(path, NAMES, REQUIRED)
    rows = (item for table in tables for item in table.items())
    for _, group in groupby(rows, lambda item: item[0][0]):
        yield _tracks(path, columns, group)


def _tracks(path: Path, columns: list[str], rows: Iterable[tuple[Key, Floats]]) -> list[Track]:
    """Return the tracks with the given rows, sorted by sequence and object."""
    found: dict[Key, list[Floats]] = defaultdict(list)
    for key, part in rows:
        found[key].append(part)
    try:
        return [_track(key, columns, np.concatenate(found.pop(key))) for key in sorted(found)]
    except ValueError as error:
        raise _damaged(path, error) from error


def open_table(
    path: Path, wanted: Sequence[str] | None, required: Sequence[str]
) -> tuple[list[str], Iterator[dict[Key, Floats]]]:
    """Open tracks.csv or codes.csv for reading in parts.

    Args:
        path: The table.
        wanted: Columns to read after the frame, if the table has them; None for all.
        required: Columns that it must have besides `sequence` and `frame`.

    Returns:
        Names of the columns, and parts: for each sequence and object in them, its rows (rows, 1 +
        columns), with the frame first. Reading them raises RunError if the table is damaged.

    Raises:
        RunError: The table is missing or damaged.
    """
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path}: is missing; {_how_to_write(path)}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    try:
        with file:
            present = next(csv.reader([file.readline().decode()], strict=True), [])
        missing = {"sequence", "frame", *required} - set(present)
        if missing:
            raise ValueError(f"no column {sorted(missing)[0]}")
    except (OSError, ValueError, csv.Error) as error:
        raise _damaged(path, error) from error
    own = {"sequence", "frame", "object"}
    columns = [name for name in present if name not in own and (not wanted or name in wanted)]
    return columns, _read(path, present, columns)


def _read(path: Path, present: list[str], columns: list[str]) -> Iterator[dict[Key, Floats]]:
    try:
        with open_regular(path) as file:
            file.readline()
            yield from _parts(file, present, columns)
    except (KeyError, OSError, ValueError, csv.Error) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(f"{path}: is damaged ({error}); write it again with --force")


def _how_to_write(path: Path) -> str:
    """Return how to write a missing table."""
    begun = path.with_name("config.json").exists() or path.with_suffix(".partial.csv").exists()
    return f"{'finish' if begun else 'write'} it with ul learn or ul apply{' --resume' * begun}"


def _parts(file: BinaryIO, present: list[str], columns: list[str]) -> Iterator[dict[Key, Floats]]:
    """Yield the rows of a table, read from after its header."""
    wanted = [*(["object"] if "object" in present else []), "frame", *columns]
    order = {"sequence": NAME} | {name: place for place, name in enumerate(wanted)}
    places = np.array([order.get(name, SKIPPED) for name in present])
    start = file.tell()
    if os.fstat(file.fileno()).st_size >= LONG:
        for place, rows in _plain_blocks(file, places):
            if rows is None:  # the rest is read as general CSV
                start = place
                break
            yield _by_object(*rows, "object" in present)
        else:
            return
    file.seek(start)
    with io.TextIOWrapper(file, "utf-8", newline="") as lines:
        while read := list(islice(lines, ROWS_AT_ONCE)):
            yield _table(read, lines, present, wanted)


def _plain_blocks(
    file: BinaryIO, places: NDArray[np.int64]
) -> Iterator[tuple[int, tuple[Floats, list[tuple[int, str]]] | None]]:
    """Yield the place of each block and its rows; None if it is not plain.

    The next block is read in the background.
    """

    def read(start: int, block: bytes) -> Any:
        try:
            whole = block if block.endswith(b"\n") else block + b"\n"
            return start, plain_rows(whole, places)
        except ValueError:
            return start, None

    with ThreadPoolExecutor(1) as pool:
        coming: Future[Any] | None = None
        while True:
            start = file.tell()
            block = file.read(BLOCK_BYTES)
            block += file.readline()
            ready = coming
            coming = pool.submit(read, start, block) if block else None
            if ready is not None:
                yield ready.result()
            if coming is None:
                return


def _table(
    lines: list[str], following: Iterator[str], header: list[str], columns: list[str]
) -> dict[Key, Floats]:
    """Return columns of each object as numbers; names may be quoted.

    Args:
        lines: Lines of the table.
        following: The lines after them, into which a name with a line break may extend.
        header: Names of all columns of the table.
        columns: Names of the columns to return, with that of the object first if there is one.
    """
    names, rows = _split_rows(lines, following, header.index("sequence"))
    if any(row.count(",") != len(header) - 1 for row in rows):
        raise ValueError("expected as many cells in each row as in the header")
    if not rows:
        return {}
    values = _parse(rows, [header.index(name) for name in columns])
    changes = [row for row, name in enumerate(names) if row == 0 or name != names[row - 1]]
    return _by_object(values, [(row, names[row]) for row in changes], "object" in header)


def _split_rows(
    lines: list[str], following: Iterator[str], place: int
) -> tuple[list[str], list[str]]:
    """Return the name of each row, and the rows without quotes.

    Args:
        lines: Lines of the table.
        following: The lines after them, into which a name with a line break may extend.
        place: Place of the name in a row. Rows that are too short have no name.
    """
    if any('"' in line for line in lines):
        cells = [row for row in csv.reader(_whole_rows(lines, following), strict=True) if row]
        names = [row[place] for row in cells if len(row) > place]
        return names, [",".join([*row[:place], "", *row[place + 1 :]]) for row in cells]
    rows = [line for line in lines if line.strip()]
    names = [row.split(",", place + 1)[place] for row in rows if row.count(",") >= place]
    return names, rows


def _parse(rows: list[str], places: list[int]) -> Floats:
    """Return the cells of some columns as numbers."""
    try:
        return np.loadtxt(rows, delimiter=",", comments=None, ndmin=2, usecols=places)
    except ValueError:
        raise ValueError("a row has a cell that is not a number") from None


def _by_object(values: Floats, names: list[tuple[int, str]], numbered: bool) -> dict[Key, Floats]:
    """Return the rows of each object, without the number of the object.

    Args:
        values: (rows, columns) of several objects.
        names: First row of each sequence, and its name.
        numbered: Whether the first column is the number of the object.
    """
    objects = values[:, 0] if numbered else np.ones(len(values))
    if not ((objects >= 1) & (objects < KEY_STEP) & (np.floor(objects) == objects)).all():
        raise ValueError("the number of an object is not a whole number from 1 to 1e6")
    found: dict[Key, list[Floats]] = defaultdict(list)
    ends = [row for row, _ in names[1:]] + [len(values)]
    for (start, name), end in zip(names, ends, strict=True):
        numbers = objects[start:end]
        small = np.uint16 if numbers.max() < 2**16 else np.int64  # uses a radix sort
        order = np.argsort(numbers.astype(small), kind="stable")
        own, rows = numbers[order], values[start:end, numbered:][order]
        starts = np.flatnonzero(np.diff(own, prepend=0))
        for number, part in zip(own[starts], np.split(rows, starts[1:]), strict=True):
            found[name, int(number)].append(part)
    return {key: rows[0] if len(rows) == 1 else np.concatenate(rows) for key, rows in found.items()}


def _whole_rows(lines: Iterable[str], following: Iterator[str]) -> Iterator[str]:
    """Yield lines, and those that complete the last row if a quoted name has line breaks."""
    quotes = 0
    for line in lines:
        quotes += line.count('"')
        yield line
    for line in following if quotes % 2 else ():
        quotes += line.count('"')
        yield line
        if quotes % 2 == 0:
            return


def frames_of(key: Key, numbers: Floats) -> NDArray[np.int64]:
    """Return the numbers of the frames of an object.

    Raises:
        ValueError: They are not integers, too large, or not in order.
    """
    if not ((numbers >= 0) & (numbers < MAX_FRAMES) & (np.floor(numbers) == numbers)).all():
        raise ValueError("the number of a frame is not a whole number from 0 to 1e8")
    frame = numbers.astype(np.int64)
    if (np.diff(frame) <= 0).any():
        raise ValueError(f"the frames of object {key[1]} in {key[0]} are not in order")
    return frame


def _track(key: Key, columns: list[str], table: Floats) -> Track:
    frame = frames_of(key, table[:, 0])
    return track_of(key, frame, dict(zip(columns, table.T[1:], strict=True)))


def track_of(key: Key, frame: NDArray[np.int64], columns: Mapping[str, NDArray[Any]]) -> Track:
    """Return the track of an object; missing columns are NaN."""
    unknown = np.broadcast_to(np.float64(np.nan), len(frame))
    values: dict[str, Any] = {name: columns.get(name, unknown) for name in NAMES}
    return Track(key[0], key[1], frame, **values)
