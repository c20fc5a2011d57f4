"""Tracks of one or more objects, as tracks.csv of a run has them."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.checkpoint import RunError
from ullayers.learn.regular_files import open_regular
from ullayers.learn.results import ROWS_AT_ONCE

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
KEY_STEP = 2**20  # more than any number of an object
MAX_FRAMES = 10**8  # a damaged table must not fill the memory; at 25 frames a second, 46 days

Floats = NDArray[np.float64]
Key = tuple[str, int]  # sequence, object


@dataclass(frozen=True)
class Track:
    """One object in consecutive frames of a sequence, one number per frame; NaN if unknown.

    Attributes:
        sequence: Name of the source.
        object: Number of the object, from 1.
        frame: Number of each frame in its source, ascending.
        time: Seconds.
        x: Horizontal position of the centroid in 0..1 of the frame.
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

    A table of a single object has no column `object`; its object is number 1. Tables of older
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
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path}: is missing; {_how_to_write(path)}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    try:
        with io.TextIOWrapper(file, "utf-8", newline="") as lines:
            return _parse(lines)
    except (KeyError, OSError, ValueError, csv.Error) as error:
        raise RunError(f"{path}: is damaged ({error}); write it again with --force") from error


def _how_to_write(path: Path) -> str:
    """Say how to get a table that is missing."""
    begun = path.with_name("config.json").exists() or path.with_suffix(".partial.csv").exists()
    return "continue with --resume" if begun else "write it with ul learn or ul apply"


def _parse(lines: Iterator[str]) -> list[Track]:
    present = next(csv.reader(lines, strict=True), [])
    missing = {"sequence", "frame", *REQUIRED} - set(present)
    if missing:
        raise ValueError(f"no column {sorted(missing)[0]}")
    columns = [name for name in NAMES if name in present]
    found: dict[Key, list[Floats]] = defaultdict(list)
    while some := list(islice(lines, ROWS_AT_ONCE)):
        for key, table in _tables(some, lines, present, columns).items():
            found[key].append(table)
    return [_track(key, columns, np.concatenate(found.pop(key))) for key in sorted(found)]


def _tables(
    some: list[str], rest: Iterator[str], present: list[str], columns: list[str]
) -> dict[Key, Floats]:
    """Return frames and columns of each object as numbers.

    Args:
        some: Lines of the table.
        rest: The lines that follow, which a name with a line break may reach into.
        present: Names of all columns.
        columns: Names of the columns to return after the frame.
    """
    place = present.index("sequence")
    if any('"' in line for line in some):
        rows = [row for row in csv.reader(_whole_rows(some, rest), strict=True) if row]
        names = [row[place] for row in rows if len(row) > place]
        lines = [",".join([*row[:place], "", *row[place + 1 :]]) for row in rows]
    else:
        lines = [line for line in some if line.strip()]
        names = [line.split(",", place + 1)[place] for line in lines if line.count(",") >= place]
    if any(line.count(",") != len(present) - 1 for line in lines):
        raise ValueError("expected as many cells in each row as in the header")
    if not lines:
        return {}
    numbered = "object" in present
    wanted = [*(["object"] if numbered else []), "frame", *columns]
    try:
        values = np.loadtxt(
            lines,
            delimiter=",",
            comments=None,
            ndmin=2,
            usecols=[present.index(name) for name in wanted],
        )
    except ValueError:
        raise ValueError("a row has a cell that is not a number") from None
    objects = values[:, 0] if numbered else np.ones(len(values))
    if not ((objects % 1 == 0) & (objects >= 1) & (objects < KEY_STEP)).all():
        raise ValueError("the number of an object is not a whole number from 1 to 1e6")
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    sequences = np.array([known[name] for name in names])
    return {
        (name, int(number)): values[(sequences == code) & (objects == number)][:, numbered:]
        for name, code in known.items()
        for number in np.unique(objects[sequences == code])
    }


def _whole_rows(some: Iterable[str], rest: Iterator[str]) -> Iterator[str]:
    """Yield lines, and those that complete the last row if a quoted name has line breaks."""
    quotes = 0
    for line in some:
        quotes += line.count('"')
        yield line
    for line in rest if quotes % 2 else ():
        quotes += line.count('"')
        yield line
        if quotes % 2 == 0:
            return


def _track(key: Key, columns: list[str], table: Floats) -> Track:
    if not ((table[:, 0] % 1 == 0) & (table[:, 0] >= 0) & (table[:, 0] < MAX_FRAMES)).all():
        raise ValueError("the number of a frame is not a whole number from 0 to 1e8")
    frame = table[:, 0].astype(np.int64)
    if (np.diff(frame) <= 0).any():
        raise ValueError(f"the frames of object {key[1]} in {key[0]} are not in order")
    unknown = np.full(len(frame), np.nan)
    values = {name: unknown for name in NAMES} | dict(zip(columns, table.T[1:], strict=True))
    return Track(key[0], key[1], frame, **values)
