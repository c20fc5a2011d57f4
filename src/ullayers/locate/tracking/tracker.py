"""Tracking several objects from frame to frame, with their sightings kept on disk."""

from __future__ import annotations

import math
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.locate.tracking.blobs import (
    WHOLE,
    Blobs,
    axes_of,
    part_pixels,
    separation,
    with_axes_of,
)

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
PAIRS = ("common", "together", "streak", "farthest", "hidden")
MOSTLY = 0.5  # of the time
LONG = 3  # times the least number of frames
MEMORY = 0.1  # rate at which the usual area and shape of an object are updated
VELOCITY_RATE = 0.35
DAMPING = 0.85  # per frame, of the velocity of an object that is not seen
OCCLUDED_COST = 0.5  # lengths: cost of sharing a blob that is too small for both
GATE = 1.5  # lengths: largest distance of an object from its predicted position
CENTRE_SHARE = 0.25  # weight of the distance to the centroid of a blob, added to that to its edge
SHARED = 1.5  # times the usual area: a larger blob has room for a second object
FRAGMENT = 0.6  # of the usual area: a smaller blob may be a part of an object
CONFIRMED = 8  # frames in which an object must be seen alone before it may share a blob
PART = 0.6  # of the usual area of an object: a smaller one that is never separate is part of it
YOUNG = 0.1  # of the frames in which the best known object in a blob was seen alone
HIDDEN = 0.1  # of its usual area: an object with fewer pixels is hidden by others
ROOM = 0.75  # of the sum of their areas: in a smaller blob, one of the objects may have left


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


class Pairs:
    """Distance of each pair of tracks since both exist.

    Attributes:
        tracks: (tracks,) numbers of the tracks.
        common: (tracks, tracks) frames in which both were seen.
        together: Frames in which they shared a blob.
        streak: Frames in which they shared a blob without interruption, up to now.
        farthest: Largest distance between them, in pixels.
        hidden: 0 for pairs that have not met since the last decision; otherwise 1 plus the share,
            from 0 to 1, by which one hid the other.
    """

    def __init__(self) -> None:
        self.tracks = np.zeros(0, np.int64)
        self._shared = np.zeros((0, 0), bool)
        self.common, self.together, self.streak, self.farthest, self.hidden = (
            np.zeros((0, 0)) for _ in PAIRS
        )

    def add(self, tracks: NDArray[np.int64], seen: Sequence[Sighting | None]) -> None:
        """Add a frame.

        Args:
            tracks: (tracks,) numbers of all tracks, ascending.
            seen: Their sightings; None for tracks that are not seen.
        """
        self.keep(tracks)
        places = np.array([(np.nan, np.nan) if s is None else (s.x, s.y) for s in seen])
        places = places.reshape(-1, 2)
        apart = np.array([1.0 if s is None else s.apart for s in seen])
        shared = np.zeros((len(tracks), len(tracks)), bool)
        for row, sighting in enumerate(seen):
            if sighting is not None and sighting.company:
                shared[row] = np.isin(tracks, sighting.company)
        self._shared = shared
        away = np.linalg.norm(places[:, None] - places, axis=2)
        self.common += np.isfinite(away)
        self.together += shared
        self.streak = np.where(shared, self.streak + 1, 0)
        self.farthest = np.fmax(self.farthest, away)
        clear = np.minimum(apart[:, None], apart)
        self.hidden = np.maximum(self.hidden, np.where(shared, 2 - clear, 0))

    def parts(
        self, seen: Sequence[Sighting | None], least: int, whole: float
    ) -> list[tuple[int, int]]:
        """Return pairs of tracks that are parts of one object.

        Either they have always been as close as now, in one blob, or they have long shared a blob
        that is not larger than an object.

        Args:
            seen: As in `add`, of the same frame.
            least: Least number of frames in which both were seen.
            whole: Largest area of an object.
        """
        mostly = (self.common >= least) & (self.together > MOSTLY * self.common)
        long = self.streak >= LONG * least
        found = []
        for i, j in np.argwhere(np.triu(self._shared & (mostly | long))).tolist():
            first, second = seen[i], seen[j]
            if first is None or second is None:
                continue
            extent = np.maximum(first.box, second.box)[2:] - np.minimum(first.box, second.box)[:2]
            is_near = mostly[i, j] and self.farthest[i, j] < np.linalg.norm(extent)
            is_alone = len(first.company) == 1
            is_small = long[i, j] and is_alone and first.area + second.area <= whole
            if is_near or is_small:
                found.append((int(self.tracks[i]), int(self.tracks[j])))
        return found

    def keep(self, tracks: NDArray[np.int64]) -> None:
        """Keep only these tracks, some of which may be new."""
        if np.array_equal(tracks, self.tracks):
            return
        before = np.isin(tracks, self.tracks)
        old = np.searchsorted(self.tracks, tracks[before])
        for name in PAIRS:
            grown = np.zeros((len(tracks), len(tracks)))
            grown[np.ix_(before, before)] = getattr(self, name)[np.ix_(old, old)]
            setattr(self, name, grown)
        self.tracks = tracks

    def partners(self, track: int) -> list[int]:
        """Return the tracks that a track has met since the last decision."""
        row = np.searchsorted(self.tracks, track)
        met: list[int] = self.tracks[self.hidden[row] > 0].tolist()
        return met

    def nearest(self, first: int, second: int) -> float:
        """Return how clearly two tracks were separated since the last decision, from 0 to 1."""
        i, j = np.searchsorted(self.tracks, [first, second])
        return float(np.clip(2 - self.hidden[i, j], 0, 1))

    def part(self, first: int, second: int) -> None:
        """Forget that two tracks have met."""
        i, j = np.searchsorted(self.tracks, [first, second])
        self.hidden[i, j] = self.hidden[j, i] = 0


@dataclass
class TrackedObject:
    """An object that is being tracked."""

    number: int
    place: Floats
    spread: Floats
    area: float
    sightings: Sightings
    velocity: Floats = field(default_factory=lambda: np.zeros(2))
    seen: int = 0
    unseen: int = 0
    alone: int = 0
    cramped: int = 0

    @property
    def length(self) -> float:
        """Longer axis in pixels; that of a uniform ellipse is four standard deviations."""
        return 4 * math.sqrt(axes_of(self.spread)[0])

    @property
    def expected(self) -> Floats:
        """Predicted position in the next frame."""
        return self.place + self.velocity * DAMPING**self.unseen


@dataclass
class Tracker:
    """Tracks objects from frame to frame.

    Args:
        patience: Frames after which an unseen object is given up.
        keeps: Whether to keep all sightings.
        largest_part: Share of the usual area of an object: something of at most this size that was
            never separate from it is part of it.

    Attributes:
        active: Objects that are being tracked.
        ended: Objects that were given up.
        log: Sightings of all objects.
        latest: Sightings in the latest frame, by track number.
        pairs: Distances between pairs of tracks.
        joined: Numbers of tracks joined in the latest frame: whole, part.
    """

    patience: int
    keeps: bool = True
    largest_part: float = PART
    active: list[TrackedObject] = field(default_factory=list)
    ended: list[TrackedObject] = field(default_factory=list)
    log: SightingLog = field(default_factory=SightingLog)
    latest: dict[int, Sighting] = field(default_factory=dict)
    pairs: Pairs = field(default_factory=Pairs)
    joined: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    frame: int = 0

    def step(self, blobs: Blobs, owner: NDArray[np.uint16]) -> None:
        """Track all objects into the next frame.

        Args:
            blobs: The blobs of the frame.
            owner: (height, width) zeros; filled with the number of the object of each pixel.
        """
        self.latest = {}
        members = self._assign(blobs)
        alone = [objects[0].number if len(objects) == 1 else 0 for objects in members]
        blobs.paint(np.array(alone, np.uint16), owner)
        for blob, objects in enumerate(members):
            if len(objects) == 1:
                self._see_alone(objects[0], blobs, blob)
            elif objects:
                self._part(objects, blobs, blob, owner)
        self._join_parts()
        seen = {each.number for objects in members for each in objects}
        for each in self.active:
            if each.number not in seen:
                each.unseen += 1
        lost = [each for each in self.active if max(each.unseen, each.cramped) > self.patience]
        self.ended += lost
        self.active = [each for each in self.active if each not in lost]
        self.frame += 1

    def _join_parts(self) -> None:
        """Join tracks of parts of one object."""
        active = {each.number: each for each in sorted(self.active, key=lambda each: each.number)}
        seen = [self.latest.get(number) for number in active]
        self.pairs.add(np.array(list(active), np.int64), seen)
        self.joined = []
        for pair in self.pairs.parts(seen, self.patience, WHOLE * self._usual_area()):
            if any(number not in active for number in pair):
                continue
            whole, part = sorted((active[number] for number in pair), key=lambda each: -each.area)
            if part.area > self.largest_part * whole.area:  # two objects that move together
                continue
            whole.sightings = whole.sightings.filled(part.sightings)
            self.joined.append((whole.number, part.number))
            del active[part.number]
        self.active = list(active.values())

    def _usual_area(self) -> float:
        """Return the median area of the objects, weighted by their frames alone."""
        order = sorted(self.active, key=lambda each: each.area)
        alone = np.cumsum([each.alone for each in order])
        return order[int(np.searchsorted(alone, alone[-1] / 2))].area if order else 0.0

    def finish(self) -> list[TrackedObject]:
        """Return all objects."""
        return sorted(self.ended + self.active, key=lambda each: each.number)

    def _assign(self, blobs: Blobs) -> list[list[TrackedObject]]:
        """Return the objects of each blob; new objects start at blobs without any."""
        members: list[list[TrackedObject]] = [[] for _ in blobs.areas]
        if self.active and len(blobs.areas):
            for row, blob in self._match(blobs):
                members[blob].append(self.active[row])
            members = [self._settled(objects) for objects in members]
        fragments = self._fragments(blobs, members)
        for blob, objects in enumerate(members):
            if not objects and blob not in fragments:
                objects.append(self._start(blobs, blob))
        return members

    def _match(self, blobs: Blobs) -> list[tuple[int, int]]:
        """Assign objects to blobs; a blob may be shared if it is large, or near several objects."""
        expected = np.stack([each.expected for each in self.active])
        lengths = np.array([each.length for each in self.active])
        areas = np.array([each.area for each in self.active])
        offset = expected[:, None] - blobs.places
        precision = np.linalg.inv(blobs.spreads)
        scaled = np.sqrt(np.einsum("ijk,jkl,ijl->ij", offset, precision, offset))
        centre = np.linalg.norm(offset, axis=2)
        outside = centre * np.maximum(1 - 2 / np.maximum(scaled, 1e-9), 0)
        unseen = np.array([each.unseen for each in self.active])
        reach = GATE * lengths * np.sqrt(1 + unseen / 4)
        cost = outside + CENTRE_SHARE * np.minimum(centre, lengths[:, None])
        cost = np.where(outside > reach[:, None], np.inf, cost)
        copies, blob_of = [], []
        typical = float(np.median(areas))
        for blob, area in enumerate(blobs.areas):
            near = int((outside[:, blob] < reach).sum())
            room = 1 + max(0, round((area - typical) / typical)) if area > SHARED * typical else 1
            for copy in range(min(near, room + 2)):
                price = 0.0 if copy < room else OCCLUDED_COST * (1 + copy - room)
                copies.append(cost[:, blob] + price * lengths + 1e-3 * copy)
                blob_of.append(blob)
        missing = np.where(np.eye(len(self.active), dtype=bool), reach[:, None], np.inf)
        table = np.column_stack([*copies, missing]) if copies else missing
        rows, columns = linear_sum_assignment(np.where(np.isfinite(table), table, 1e9))
        return [
            (int(row), blob_of[column])
            for row, column in zip(rows, columns, strict=True)
            if column < len(blob_of) and np.isfinite(table[row, column])
        ]

    def _settled(self, objects: list[TrackedObject]) -> list[TrackedObject]:
        """Drop objects that were hardly seen before they joined a blob: they were parts of it."""
        if len(objects) < 2:
            return objects
        known = [each for each in objects if each.alone >= CONFIRMED]
        kept = known or [max(objects, key=lambda each: each.alone)]
        dropped = [each for each in objects if each not in kept]
        self.active = [each for each in self.active if each not in dropped]
        return kept

    def _fragments(self, blobs: Blobs, members: list[list[TrackedObject]]) -> set[int]:
        """Return blobs that belong to no object but lie within one, such as a leg."""
        found = set()
        taken = [(blob, each) for blob, objects in enumerate(members) for each in objects]
        for blob, objects in enumerate(members):
            if objects or not taken:
                continue
            for _, each in taken:
                offset = blobs.places[blob] - each.expected
                scaled = offset @ np.linalg.solve(each.spread, offset)
                if blobs.areas[blob] < FRAGMENT * each.area and scaled < 9:
                    found.add(blob)
                    break
        return found

    def _start(self, blobs: Blobs, blob: int) -> TrackedObject:
        self.count += 1
        new = TrackedObject(
            self.count,
            blobs.places[blob],
            blobs.spreads[blob],
            float(blobs.areas[blob]),
            Sightings(self.log),
        )
        self.active.append(new)
        return new

    def _see_alone(self, one: TrackedObject, blobs: Blobs, blob: int) -> None:
        place, spread, area = blobs.places[blob], blobs.spreads[blob], float(blobs.areas[blob])
        _move(one, place, 1.0)
        one.alone += 1
        one.cramped = 0
        # A much larger blob may show two objects, unless it is no larger than most.
        if area < max(SHARED * one.area, WHOLE * blobs.typical) or one.seen <= 1 / MEMORY:
            one.spread = (1 - MEMORY) * one.spread + MEMORY * spread
            one.spread = with_axes_of(one.spread, spread)
            one.area += MEMORY * (area - one.area)
        self._note(
            one,
            Sighting(
                one.number,
                self.frame,
                float(place[0]),
                float(place[1]),
                spread,
                area,
                float(blobs.clarity[blob]),
                blobs.colours[blob],
                (),
                blobs.boxes[blob],
                1.0,
                blobs.cores[blob],
            ),
        )

    def _note(self, one: TrackedObject, sighting: Sighting) -> None:
        self.latest[one.number] = sighting
        if self.keeps:
            one.sightings.append(sighting)

    def _part(
        self, objects: list[TrackedObject], blobs: Blobs, blob: int, owner: NDArray[np.uint16]
    ) -> None:
        """Divide the pixels of a blob between the objects that share it."""
        pixels = blobs.pixels(blob)
        places, spreads, chosen, gains = part_pixels(
            pixels,
            np.stack([each.expected for each in objects]),
            np.stack([each.spread for each in objects]),
            np.array([each.area for each in objects]),
        )
        numbers = np.array([each.number for each in objects], np.uint16)
        columns, rows = np.floor(pixels).astype(int).T
        owner[rows, columns] = numbers[chosen]
        company = tuple(int(number) for number in numbers)
        apart = separation(places, spreads)
        shares = np.bincount(chosen, minlength=len(objects))
        _note_room(objects, float(blobs.areas[blob]), shares)
        for i, each in enumerate(objects):
            _move(each, places[i], float(gains[i]))
            each.spread = spreads[i]
            own = pixels[chosen == i]
            hidden = len(own) < HIDDEN * each.area
            self._note(
                each,
                Sighting(
                    each.number,
                    self.frame,
                    float(each.place[0]),
                    float(each.place[1]),
                    spreads[i],
                    float(len(own)),
                    0.0 if hidden else float(blobs.clarity[blob]),
                    np.full(COLOURS, np.nan),
                    tuple(n for n in company if n != each.number),
                    _box_of(own, each),
                    float(apart[i]),
                    spreads[i],
                ),
            )


def _note_room(objects: list[TrackedObject], area: float, shares: NDArray[np.intp]) -> None:
    """Count for how long a blob has been too small for its objects.

    The object that has left is the least known one, or else the most hidden one.
    """
    usual = np.array([each.area for each in objects])
    if area >= ROOM * usual.sum():
        for each in objects:
            each.cramped = max(0, each.cramped - 1)
        return
    known = np.array([each.alone for each in objects])
    young = known < YOUNG * known.max()  # more likely part of another object
    objects[int(np.argmin(known if young.any() else shares / usual))].cramped += 1


def _box_of(pixels: Floats, one: TrackedObject) -> Floats:
    """Return the bounding box of pixels; for a hidden object, that of its ellipse."""
    if len(pixels):
        return np.concatenate([pixels.min(0) - 0.5, pixels.max(0) + 0.5])
    half = 2 * np.sqrt(np.diag(one.spread))
    return np.concatenate([one.place - half, one.place + half])


def _move(one: TrackedObject, place: Floats, gain: float) -> None:
    """Move an object; its velocity is updated as far as the position is known."""
    step = (place - one.place) / (1 + one.unseen)
    if one.seen:
        one.velocity = one.velocity + VELOCITY_RATE * gain * (step - one.velocity)
    one.place = place
    one.seen += 1
    one.unseen = 0
