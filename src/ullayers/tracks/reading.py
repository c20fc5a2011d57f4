"""Reading rows of plain CSV as numbers, ten times as fast as NumPy.

Plain rows have no quotes, and their numbers are decimals without an exponent, or nan. Result tables
are written in this way, unless a name needs quotes.
"""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import RunError
from ullayers.files import open_regular, read_regular, replacing
from ullayers.kernels.numba.compiling import compile_loop
from ullayers.tracks.table import ROWS_AT_ONCE

NAME = -2  # place of the column with the name of the sequence
SKIPPED = -1  # place of a column that is not read
NOT_PLAIN = -1  # instead of a place in the rows
MAX_DIGITS = 15  # numbers with this many digits, and their power of ten, are exact in float64
COMMA, LINE_FEED, RETURN, QUOTE, POINT, MINUS, ZERO = b',\n\r".-0'
NAN = 110, 97, 110
POWERS = np.array([10.0**n for n in range(MAX_DIGITS + 1)])
Floats = NDArray[np.float64]
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
Key = tuple[str, int]  # sequence, object
MAX_TABLE_BYTES = 2**28
CROSSINGS = "crossings.csv"
CROSSING_NAMES = ("sequence", "first_frame", "last_frame", "start", "end", "objects", "confidence")


def plain_rows(block: bytes, places: NDArray[np.int64]) -> tuple[Floats, list[tuple[int, str]]]:
    r"""Return the numbers of complete rows.

    Args:
        block: Rows, each with a line break at its end.
        places: For each column its place in the result, `NAME` or `SKIPPED`.

    Returns:
        Numbers (rows, places), equal to those that `float` reads, and names: the first row of each,
        and the name.

    Raises:
        ValueError: The rows are not plain.

    Example:
        >>> rows, names = plain_rows(b"a,7,0.28\nb,8,nan\n", np.array([NAME, 0, 1]))
        >>> rows.tolist(), names
        ([[7.0, 0.28], [8.0, nan]], [(0, 'a'), (1, 'b')])
    """
    data = np.frombuffer(block, np.uint8)
    count = int(np.count_nonzero(data == LINE_FEED))
    values = np.empty((count, int(places.max()) + 1))
    names = np.empty((count, 3), np.int64)
    changes = _compiled()(data, places, values, names, POWERS)
    if changes < 0:
        raise ValueError("the rows are not plain")
    return values, [
        (row, block[start:end].decode()) for row, start, end in names[:changes].tolist()
    ]


@cache
def _compiled() -> Any:
    """Compile the loop on first use, because importing numba is slow."""
    parts = (_end_of_text, _add_name, _is_same, _number, _decimal, _after_separator)
    return compile_loop(_scan, *parts)


def _scan(data: Any, places: Any, values: Any, names: Any, powers: Any) -> int:
    """Fill `values` and `names`; return the number of names, or -1 if a row is not plain."""
    at = 0
    changes = 0
    last = len(places) - 1
    for row in range(len(values)):
        for cell in range(last + 1):
            place = places[cell]
            if place < 0:
                start = at
                at = _end_of_text(data, start)
                if place == NAME and at >= 0:
                    changes = _add_name(data, row, start, at, names, changes)
            else:
                values[row, place], at = _number(data, at, powers)
            at = _after_separator(data, at, cell == last)
            if at < 0:
                return -1
    return changes if at == len(data) else -1


def _end_of_text(data: Any, at: int) -> int:
    """Return the end of a cell of text."""
    while at < len(data) and data[at] != COMMA and data[at] != LINE_FEED:
        if data[at] == QUOTE or data[at] == RETURN:
            return NOT_PLAIN
        at += 1
    return at


def _add_name(data: Any, row: int, start: int, end: int, names: Any, changes: int) -> int:
    """Add a name unless it is that of the row before; return the number of names."""
    if changes and _is_same(data, start, end, names[changes - 1, 1], names[changes - 1, 2]):
        return changes
    names[changes, 0] = row
    names[changes, 1] = start
    names[changes, 2] = end
    return changes + 1


def _is_same(data: Any, start: int, end: int, other_start: int, other_end: int) -> bool:
    """Return whether two texts are the same."""
    if end - start != other_end - other_start:
        return False
    for byte in range(end - start):
        if data[start + byte] != data[other_start + byte]:
            return False
    return True


def _number(data: Any, at: int, powers: Any) -> tuple[float, int]:
    """Return a number or nan, and its end."""
    if at + 2 < len(data) and data[at] == NAN[0]:
        is_nan = data[at + 1] == NAN[1] and data[at + 2] == NAN[2]
        return np.nan, at + 3 if is_nan else NOT_PLAIN
    if at < len(data) and data[at] == MINUS:
        size, at = _decimal(data, at + 1, powers)
        return -size, at
    return _decimal(data, at, powers)


def _decimal(data: Any, at: int, powers: Any) -> tuple[float, int]:
    """Return a decimal number without a sign, and its end."""
    digits = 0
    decimals = -1  # before the point
    number = 0
    while at < len(data):
        byte = int(data[at])
        if ZERO <= byte < ZERO + 10:
            number = 10 * number + byte - ZERO
            digits += 1
            decimals += decimals >= 0
        elif byte == POINT and decimals < 0:
            decimals = 0
        else:
            break
        at += 1
    if not 0 < digits <= MAX_DIGITS:
        return np.nan, NOT_PLAIN
    return number / powers[max(decimals, 0)], at


def _after_separator(data: Any, at: int, is_last: bool) -> int:
    """Return the start of the next cell.

    Args:
        data: The rows.
        at: End of a cell, or `NOT_PLAIN`.
        is_last: Whether the cell is the last of its row.
    """
    if at < 0:
        return NOT_PLAIN
    if is_last and at < len(data) and data[at] == RETURN:
        at += 1
    if at < len(data) and data[at] == (LINE_FEED if is_last else COMMA):
        return at + 1
    return NOT_PLAIN


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


@dataclass(frozen=True)
class Crossing:
    """Frames in which objects touch or hide each other.

    Attributes:
        sequence: Name of the source.
        first_frame: Number of the first frame.
        last_frame: Number of the last frame.
        start: Time of the first frame in seconds.
        end: Time of the last frame.
        objects: Numbers of the objects.
        confidence: Confidence from 0 to 1 that each object has the same number before and after.
    """

    sequence: str
    first_frame: int
    last_frame: int
    start: float
    end: float
    objects: tuple[int, ...]
    confidence: float


def read_crossings(path: Path) -> list[Crossing]:
    r"""Read crossings.csv; a missing file has no crossings.

    Raises:
        RunError: The table is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "crossings.csv")
        ...     _ = path.write_text(
        ...         "sequence,first_frame,last_frame,start,end,objects,confidence\n"
        ...         "a,10,20,0.4,0.8,1 3,0.95\n"
        ...     )
        ...     [crossing] = read_crossings(path)
        >>> crossing.objects, crossing.confidence
        ((1, 3), 0.95)
    """
    try:
        text = read_regular(path, MAX_TABLE_BYTES).decode()
        rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        missing = set(CROSSING_NAMES) - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"no column {sorted(missing)[0]}")
        return [_crossing(row) for row in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise RunError(f"{path}: is damaged ({error}); write it again with --force") from error


def _crossing(row: dict[str, str]) -> Crossing:
    confidence = float(row["confidence"])
    if not 0 <= confidence <= 1:
        raise ValueError(f"expected a confidence from 0 to 1, got {confidence}")
    return Crossing(
        sequence=row["sequence"],
        first_frame=int(row["first_frame"]),
        last_frame=int(row["last_frame"]),
        start=float(row["start"]),
        end=float(row["end"]),
        objects=tuple(int(number) for number in row["objects"].split()),
        confidence=confidence,
    )


def crossing_rows(crossings: Sequence[Crossing]) -> str:
    r"""Return crossings as rows of crossings.csv.

    >>> crossing_rows([Crossing("a", 10, 20, 0.4, 0.8, (1, 3), 0.95)])
    'a,10,20,0.400000,0.800000,1 3,0.950\n'
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for each in crossings:
        times = f"{each.start:.6f}", f"{each.end:.6f}"
        objects = " ".join(map(str, each.objects))
        frames = each.first_frame, each.last_frame
        rows.writerow([each.sequence, *frames, *times, objects, f"{each.confidence:.3f}"])
    return text.getvalue()


def renumbered(rows: str, numbers: Sequence[int]) -> str:
    r"""Return rows of crossings.csv with renumbered objects.

    Args:
        rows: From `crossing_rows`.
        numbers: New numbers of the objects 1, 2, ...

    >>> renumbered("a,10,20,0.400000,0.800000,1 3,0.950\n", [4, 5, 2])
    'a,10,20,0.400000,0.800000,2 4,0.950\n'
    """
    lines = [",".join(CROSSING_NAMES) + "\n", *rows.splitlines(keepends=True)]
    crossings = [_crossing(row) for row in csv.DictReader(lines, strict=True)]
    found = [
        replace(each, objects=tuple(sorted(numbers[number - 1] for number in each.objects)))
        for each in crossings
    ]
    return crossing_rows(sorted(found, key=lambda each: (each.first_frame, each.objects)))


def write_crossings(path: Path, rows: Sequence[str]) -> None:
    """Write crossings.csv atomically.

    Args:
        path: The file.
        rows: Lines of the table, one text for each sequence.
    """
    with replacing(path) as file:
        file.write(",".join(CROSSING_NAMES) + "\n" + "".join(rows))
