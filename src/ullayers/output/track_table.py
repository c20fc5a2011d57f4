"""Tracks of one or more objects, as tracks.csv of a run has them."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.checkpoint import RunError
from ullayers.learn.regular_files import read_regular

MAX_TABLE_BYTES = 2**30
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
        text = read_regular(path, MAX_TABLE_BYTES).decode()
    except FileNotFoundError:
        raise RunError(f"{path}: is missing; write it with ul learn or ul apply") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    try:
        return _parse(text)
    except (KeyError, ValueError, csv.Error) as error:
        raise RunError(f"{path}: is damaged ({error}); write it again with --force") from error


def _parse(text: str) -> list[Track]:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    present = rows.fieldnames or ()
    missing = {"sequence", "frame", *REQUIRED} - set(present)
    if missing:
        raise ValueError(f"no column {sorted(missing)[0]}")
    columns = [name for name in NAMES if name in present]
    found: dict[tuple[str, int], list[list[str]]] = defaultdict(list)
    for row in rows:
        if None in row or None in row.values():
            raise ValueError(f"expected {len(present)} cells in each row")
        key = row["sequence"], int(row.get("object", 1))
        found[key].append([row["frame"], *(row[name] for name in columns)])
    return [_track(key, columns, found[key]) for key in sorted(found)]


def _track(key: tuple[str, int], columns: list[str], rows: list[list[str]]) -> Track:
    try:
        table = np.array(rows).astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"a row of {key[0]} has a cell that is not a number") from None
    frame = table[:, 0].astype(np.int64)
    if (np.diff(frame) <= 0).any():
        raise ValueError(f"the frames of object {key[1]} in {key[0]} are not in order")
    unknown = np.full(len(frame), np.nan)
    values = {name: unknown for name in NAMES} | dict(zip(columns, table.T[1:], strict=True))
    return Track(key[0], key[1], frame, **values)
