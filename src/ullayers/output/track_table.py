"""Tracks of one or more objects, as tracks.csv of a run has them."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
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
    except FileNotFoundError:
        raise RunError(f"{path}: is missing; write it with ul learn or ul apply") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    try:
        with io.TextIOWrapper(file, "utf-8", newline="") as lines:
            return _parse(lines)
    except (KeyError, OSError, ValueError, csv.Error) as error:
        raise RunError(f"{path}: is damaged ({error}); write it again with --force") from error


def _parse(lines: Iterable[str]) -> list[Track]:
    rows = csv.DictReader(lines, strict=True)
    present = rows.fieldnames or ()
    missing = {"sequence", "frame", *REQUIRED} - set(present)
    if missing:
        raise ValueError(f"no column {sorted(missing)[0]}")
    columns = [name for name in NAMES if name in present]
    found: dict[Key, list[Floats]] = defaultdict(list)
    while some := list(islice(rows, ROWS_AT_ONCE)):
        for key, table in _tables(some, columns).items():
            found[key].append(table)
    return [_track(key, columns, np.concatenate(found.pop(key))) for key in sorted(found)]


def _tables(rows: list[dict[str, str]], columns: list[str]) -> dict[Key, Floats]:
    """Return frames and columns of each object as numbers, which take less memory than text."""
    found: dict[Key, list[list[str]]] = defaultdict(list)
    for row in rows:
        if None in row or None in row.values():
            raise ValueError("expected as many cells in each row as in the header")
        key = row["sequence"], int(row.get("object", 1))
        found[key].append([row["frame"], *(row[name] for name in columns)])
    try:
        return {key: np.array(cells).astype(np.float64) for key, cells in found.items()}
    except (TypeError, ValueError):
        raise ValueError("a row has a cell that is not a number") from None


def _track(key: Key, columns: list[str], table: Floats) -> Track:
    frame = table[:, 0].astype(np.int64)
    if (np.diff(frame) <= 0).any():
        raise ValueError(f"the frames of object {key[1]} in {key[0]} are not in order")
    unknown = np.full(len(frame), np.nan)
    values = {name: unknown for name in NAMES} | dict(zip(columns, table.T[1:], strict=True))
    return Track(key[0], key[1], frame, **values)
