"""Sightings of objects, in a temporary file, as hours of video would not fit into memory."""

from __future__ import annotations

import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

COLOURS = 6  # numbers per appearance
ALONE = 0  # company number of an object that does not share its blob
ROWS_AT_ONCE = 2**12  # rows in memory while they are written or read

Floats = NDArray[np.float64]

RECORD = np.dtype(
    [
        ("number", np.int32),
        ("frame", np.int32),
        ("x", np.float64),
        ("y", np.float64),
        ("spread", np.float64, (2, 2)),
        ("area", np.float64),
        ("clarity", np.float64),
        ("colours", np.float64, (COLOURS,)),
        ("company", np.int32),
        ("box", np.float64, (4,)),
        ("apart", np.float64),
        ("core", np.float64, (2, 2)),
    ]
)


class Sighting(NamedTuple):
    """An object in one frame.

    Attributes:
        number: Number of the track.
        frame: Number of the frame among those that were read.
        x: Position in pixels.
        y: Position in pixels.
        spread: (2, 2) covariance of its pixels.
        area: Pixels.
        clarity: Confidence that it is an object, from 0 to 1.
        colours: Appearance; NaN if it shares its blob.
        company: Numbers of the tracks that share its blob.
        box: (4,) left, top, right, bottom in pixels.
        apart: How clearly it is separated from the others in its blob, from 0 to 1.
        core: (2, 2) covariance of the pixels of its core, as in `Blobs`.
    """

    number: int
    frame: int
    x: float
    y: float
    spread: Floats
    area: float
    clarity: float
    colours: Floats
    company: tuple[int, ...]
    box: Floats
    apart: float
    core: Floats


class SightingLog:
    """All sightings of a recording, in the order in which they were added.

    Attributes:
        companies: Groups of tracks that share a blob, indexed by the number stored in the file; the
            first group is that of an object that is alone.
        count: Number of sightings.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()
        weakref.finalize(self, self._file.close)
        self._waiting = np.empty(ROWS_AT_ONCE, RECORD)
        self._written = 0
        self._known: dict[tuple[int, ...], int] = {(): ALONE}
        self.companies: list[tuple[int, ...]] = [()]
        self.count = 0

    def add(self, sighting: Sighting) -> int:
        """Add a sighting and return its row."""
        company = self._known.setdefault(sighting.company, len(self.companies))
        if company == len(self.companies):
            self.companies.append(sighting.company)
        if self.count - self._written == len(self._waiting):
            self._write()
        self._waiting[self.count - self._written] = sighting._replace(company=company)  # type: ignore[arg-type]
        self.count += 1
        return self.count - 1

    def _write(self) -> None:
        self._file.seek(self._written * RECORD.itemsize)
        self._file.write(self._waiting[: self.count - self._written].tobytes())
        self._written = self.count

    def read(self, rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Yield the records of these rows, which must ascend, in blocks."""
        if self._written < self.count:
            self._write()
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            first, last = int(some[0]), int(some[-1])
            self._file.seek(first * RECORD.itemsize)
            content = self._file.read((last + 1 - first) * RECORD.itemsize)
            yield np.frombuffer(content, RECORD)[some - first]


class Sightings(Sequence[Sighting]):
    """The sightings of one object, in order of time.

    Args:
        log: Log that contains them.
        rows: Their rows in the log, ascending.
    """

    def __init__(self, log: SightingLog, rows: array[int] | None = None) -> None:
        self.log = log
        self.rows = array("q") if rows is None else rows

    def append(self, sighting: Sighting) -> None:
        """Add the next one."""
        self.rows.append(self.log.add(sighting))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Sighting: ...
    @overload
    def __getitem__(self, place: slice) -> Sightings: ...
    def __getitem__(self, place: int | slice) -> Sighting | Sightings:
        if isinstance(place, slice):
            return Sightings(self.log, self.rows[place])
        [found] = Sightings(self.log, array("q", [self.rows[place]]))
        return found

    def __iter__(self) -> Iterator[Sighting]:
        for records in self.log.read(np.array(self.rows, np.int64)):
            for values in records.tolist():
                found = Sighting._make(values)
                yield found._replace(company=self.log.companies[values[8]])

    def __add__(self, other: Sightings) -> Sightings:
        """Return these sightings followed by later ones of the same log."""
        return Sightings(self.log, self.rows + other.rows)

    @classmethod
    def merged(cls, parts: Sequence[Sightings]) -> Sightings:
        """Return the sightings of all parts, in order of time; all must be of the same log."""
        rows = np.sort(np.concatenate([np.array(part.rows, np.int64) for part in parts]))
        return cls(parts[0].log, array("q", rows.tobytes()))

    def filled(self, other: Sightings) -> Sightings:
        """Return these sightings, with those of another object in the frames between."""
        missing = ~np.isin(other.column("frame"), self.column("frame"))
        return Sightings.merged([self, other.where(missing)])

    def where(self, chosen: NDArray[np.bool_]) -> Sightings:
        """Return the selected sightings."""
        return Sightings(self.log, array("q", np.array(self.rows, np.int64)[chosen].tobytes()))

    def column(self, name: str) -> NDArray[Any]:
        """Return one attribute of all sightings; for `company`, its number in the log."""
        kind = RECORD[name]
        values = np.empty((len(self), *kind.shape), kind.base)
        start = 0
        for records in self.log.read(np.array(self.rows, np.int64)):
            values[start : start + len(records)] = records[name]
            start += len(records)
        return values
