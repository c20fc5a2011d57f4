"""Tracks of single objects and their crossings, read from a results folder."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ullayers.files import replacing
from ullayers.tracks.table import (
    CROSSING_NAMES,
    MAX_FRAMES,
    MAX_OBJECT,
    PIXELS,
    SHAPE,
    TRACK,
    damaged_table,
    open_table,
    read_frame,
)

if TYPE_CHECKING:
    from pandas import DataFrame

Floats = NDArray[np.float64]
NAMES = ("time", *TRACK, *PIXELS, *SHAPE)
REQUIRED = ("sequence", "frame", "time", *TRACK)
Key = tuple[str, int]  # sequence, object
STEP = 64  # frames per block of extremes


class _Column:
    """A column of a track as an attribute; NaN in every frame if the table does not have it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, track: Track, owner: type) -> Floats:
        unknown = np.broadcast_to(np.float64(np.nan), len(track.frame))
        return track.columns.get(self.name, unknown)


@dataclass(frozen=True)
class Track:
    """Rows of one object, or the codes of a sequence, by column.

    The columns of positions are attributes: time (seconds), x and y (in 0..1, from the top left
    corner), confidence (from 0 to 1; below 0.5, treat the position as unreliable), x_px and y_px,
    speed (pixels per second), heading (degrees, clockwise from the right: 90 is down), length and
    width (axes of the mask in pixels) and area (pixels).

    Attributes:
        sequence: Name of the source.
        object: Number of the object, from 1.
        columns: Columns by name, with `frame` in ascending order.
        stored: Known lowest and highest values, as returned by `extremes`.

    Example:
        >>> track = Track("a", 1, {"frame": np.arange(2), "x": np.array([0.1, 0.2])})
        >>> track.x.tolist(), track.speed.tolist()
        ([0.1, 0.2], [nan, nan])
    """

    sequence: str
    object: int
    columns: Mapping[str, NDArray[Any]]
    stored: Mapping[str, NDArray[Any]] | None = None

    time = _Column()
    x = _Column()
    y = _Column()
    confidence = _Column()
    x_px = _Column()
    y_px = _Column()
    speed = _Column()
    heading = _Column()
    length = _Column()
    width = _Column()
    area = _Column()

    @property
    def frame(self) -> NDArray[np.int64]:
        """Number of each frame in the source."""
        return self.columns["frame"]

    @property
    def names(self) -> list[str]:
        """Names of the columns besides frame and time."""
        return [name for name in self.columns if name not in ("frame", "time")]

    @cached_property
    def extremes(self) -> Mapping[str, NDArray[Any]]:
        """Lowest and highest value of every `STEP` frames: frame, NAME_low, NAME_high."""
        return self.stored or extremes(self.columns, self.names, STEP)

    def between(self, first: int, last: int) -> slice:
        """Return the rows of a range of frames."""
        start, end = np.searchsorted(self.frame, [first, last + 1])
        return slice(int(start), int(end))

    def only(self, names: Sequence[str]) -> Track:
        """Return the track with some of its columns; those it does not have are NaN."""
        stored = self.stored if self.columns.keys() >= set(names) else None
        return replace(self, columns={name: getattr(self, name) for name in names}, stored=stored)

    def changed(self, **columns: NDArray[Any]) -> Track:
        """Return the track with other values in some columns."""
        return Track(self.sequence, self.object, {**self.columns, **columns})


def extremes(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str], step: int
) -> dict[str, NDArray[Any]]:
    """Return the lowest and highest values of blocks of frames.

    Args:
        columns: `frame`, and either NAME or NAME_low and NAME_high for each name.
        names: Names of the columns to sum up.
        step: Frames to sum up.

    Returns:
        `frame`, which has the first of the frames, a multiple of `step`; NAME_low and NAME_high.

    Example:
        >>> found = extremes({"frame": np.arange(5), "x": np.array([3, 1, 2, 5, 4])}, ["x"], 3)
        >>> [column.tolist() for column in found.values()]
        [[0, 3], [1, 4], [3, 5]]
    """
    places = columns["frame"] // step
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    found = {"frame": places[starts] * step}
    for name in names:
        for end, function in (("low", np.fmin), ("high", np.fmax)):
            column = columns.get(f"{name}_{end}", columns.get(name))
            assert column is not None
            found[f"{name}_{end}"] = function.reduceat(column, starts) if len(starts) else column
    return found


def read_tracks(path: Path) -> list[Track]:
    r"""Read tracks.csv, sorted by sequence and object.

    A table of version 0.1 has no column `object`; its object has the number 1. It lacks the last
    columns, which are then NaN.

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
    return read_objects(path, NAMES, REQUIRED)


def read_objects(path: Path, wanted: Sequence[str] | None, required: Sequence[str]) -> list[Track]:
    """Read tracks.csv or codes.csv, sorted by sequence and object; codes are those of object 1.

    Args:
        path: The table.
        wanted: Columns to read after the frame, if the table has them; None for all.
        required: Columns that it must have.

    Raises:
        RunError: The table is missing or damaged.
    """
    columns, parts = open_objects(path, wanted, required)
    return _tracks(path, columns, (item for part in parts for item in part.items()))


def read_sequences(path: Path) -> Iterator[list[Track]]:
    """Yield the tracks of one sequence after the other, in the order of the table.

    Memory does not grow with the number of sequences.

    Raises:
        RunError: The table is missing or damaged.
    """
    columns, parts = open_objects(path, NAMES, REQUIRED)
    rows = (item for part in parts for item in part.items())
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
        raise damaged_table(path, error) from error


def open_objects(
    path: Path, wanted: Sequence[str] | None, required: Sequence[str]
) -> tuple[list[str], Iterator[dict[Key, Floats]]]:
    """Open tracks.csv or codes.csv for reading in parts, object by object.

    Args:
        path: The table.
        wanted: Columns to read after the frame, if the table has them; None for all.
        required: Columns that it must have.

    Returns:
        Names of the columns, and parts: for each sequence and object in them, its rows (rows, 1 +
        columns), with the frame first. Reading them raises RunError if the table is damaged.

    Raises:
        RunError: The table is missing or damaged.
    """
    present, parts = open_table(path, wanted, required)
    columns = [name for name in present if name not in ("sequence", "frame", "object")]

    def objects() -> Iterator[dict[Key, Floats]]:
        for part in parts:
            try:
                yield _by_object(part, ["frame", *columns])
            except ValueError as error:
                raise damaged_table(path, error) from error

    return columns, objects()


def _by_object(part: DataFrame, columns: list[str]) -> dict[Key, Floats]:
    """Return the rows of each object; a table of version 0.1 has one object, number 1."""
    values = part[columns].to_numpy(np.float64)
    objects = part["object"].to_numpy() if "object" in part else np.ones(len(part))
    if not ((objects >= 1) & (objects < MAX_OBJECT) & (np.floor(objects) == objects)).all():
        raise ValueError("the number of an object is not a whole number from 1 to 1e6")
    small = np.uint16 if objects.max(initial=1) < 2**16 else np.int64  # uses a radix sort
    names = part["sequence"].cat.codes.to_numpy()
    found: dict[Key, list[Floats]] = defaultdict(list)
    starts = np.flatnonzero(np.diff(names, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(names)]):
        name = part["sequence"].iat[start]
        order = np.argsort(objects[start:end].astype(small), kind="stable")
        own, rows = objects[start:end][order], values[start:end][order]
        firsts = np.flatnonzero(np.diff(own, prepend=0))
        for number, some in zip(own[firsts], np.split(rows, firsts[1:]), strict=True):
            found[name, int(number)].append(some)
    return {key: rows[0] if len(rows) == 1 else np.concatenate(rows) for key, rows in found.items()}


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
    values = dict(zip(columns, table.T[1:], strict=True))
    return Track(*key, {"frame": frames_of(key, table[:, 0]), **values})


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
    if not path.exists():
        return []
    rows = read_frame(path, CROSSING_NAMES).to_dict("records")
    try:
        return [_crossing(row) for row in rows]
    except ValueError as error:
        raise damaged_table(path, error) from error


def _crossing(row: Mapping[Hashable, Any]) -> Crossing:
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
