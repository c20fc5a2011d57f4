"""Selection of the tracks that are objects, and their number, by J."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.locate.paths import track_objective
from ullayers.locate.tracking.blobs import CLEAR
from ullayers.locate.tracking.tracker import ALONE, CONFIRMED, Sighting, TrackedObject

LEAST_TRAVEL = 2.0  # of its length: things that are pushed aside move less far
LARGEST_J = -2.0  # of the path of an object; noise and flicker are above
CLEAR_SHARE = 0.5  # least share of clear sightings
IMPOSSIBLE = 1e6  # cost of a pair that is not allowed
RESIDENT = 0.6  # of the frames: an object present for longer is a resident
RESIDENT_J = 0.5  # of the lowest J: required of other objects beside a resident
RESIDENT_SHARE = 0.1  # of the frames: required presence of other objects beside a resident
BORDER = 0.5  # of its size: an object closer to the border may leave
SHORT_GAP = 5  # frames: where objects come and go, one that returns later is new
SPEED_FRAMES = 25  # before a gap, over which the speed is measured
LINK_REACH = 3.0  # lengths, and as much again for each length travelled during the gap


def choose_objects(
    tracked: Sequence[TrackedObject],
    frames: int,
    size: tuple[int, int],
    wanted: int | None = None,
    seen: bool = False,
) -> list[TrackedObject]:
    """Return the tracks that are objects, numbered from 1 in order of appearance.

    A path belongs to an object if its J is low, i.e. if it is slow from frame to frame but varies
    over its duration. The joint J of several objects is the sum of the J of each given the others,
    so each track is judged by its own contribution.

    Args:
        tracked: From `Tracker.finish`.
        frames: Number of frames in the recording.
        size: (width, height) of the frames.
        wanted: Number of objects; None to find it.
        seen: Whether a network has seen them that knows what the objects look like. What it sees
            clearly is an object even if it rests.
    """
    known = [each for each in tracked if each.alone >= CONFIRMED]
    linked = _link(known, size, longest_gap=frames if _is_arena(known, frames) else SHORT_GAP)
    if wanted is not None:
        chosen = sorted(linked, key=lambda each: -len(each.sightings))[:wanted]
    elif seen:
        chosen = [each for each in linked if clear_share(each) >= CLEAR_SHARE]
    else:
        chosen = _worthy(linked, frames)
    return in_order(chosen)


def in_order(objects: Sequence[TrackedObject]) -> list[TrackedObject]:
    """Return objects in order of appearance."""
    return sorted(objects, key=lambda each: (each.sightings[0].frame, each.sightings[0].x))


def _worthy(linked: list[TrackedObject], frames: int) -> list[TrackedObject]:
    objectives = {each.number: path_objective(each) for each in linked}
    worthy = [
        each
        for each in linked
        if objectives[each.number] < LARGEST_J
        and travelled(each) > LEAST_TRAVEL * each.length
        and clear_share(each) >= CLEAR_SHARE
    ]
    if not _is_arena(worthy, frames):
        return worthy
    # An experimenter who puts an animal into its arena is not another animal.
    lowest = min((objectives[each.number] for each in worthy), default=0.0)
    return [
        each
        for each in worthy
        if len(each.sightings) >= RESIDENT_SHARE * frames
        and objectives[each.number] <= RESIDENT_J * lowest
    ]


def travelled(one: TrackedObject) -> float:
    """Return the diagonal of the bounding box of all positions of an object, in pixels."""
    return float(np.linalg.norm(np.ptp(positions(one), axis=0)))


def clear_share(one: TrackedObject) -> float:
    """Return the share of the frames in which an object is clear, of those in which it is visible.

    Branches in the wind and ripples move like objects, but are clear in a few frames only.
    """
    clarity = one.sightings.column("clarity")
    return float((clarity[clarity > 0] >= CLEAR).mean())


def path_objective(one: TrackedObject) -> float:
    """Return J of the path of an object."""
    return track_objective(positions(one))


def _is_arena(tracked: list[TrackedObject], frames: int) -> bool:
    """Return whether most tracks are present most of the time, as in an arena."""
    lengths = np.array([len(each.sightings) for each in tracked])
    return bool(2 * lengths[lengths >= RESIDENT * frames].sum() >= lengths.sum())


class Ends(NamedTuple):
    """Both ends of a track.

    Attributes:
        start: First sighting.
        end: Last sighting of the object alone.
        last: Number of its last frame.
        length: Length of the object in pixels.
        speed: Speed of the object before `end`, in pixels per frame.
    """

    start: Sighting
    end: Sighting
    last: int
    length: float
    speed: float

    @classmethod
    def of(cls, one: TrackedObject) -> Ends:
        """Return those of a track."""
        alone = np.flatnonzero(one.sightings.column("company") == ALONE)
        before = one.sightings[: int(alone[-1]) + 1]
        steps = np.array([(each.x, each.y) for each in before[-SPEED_FRAMES:]])
        lengths = np.linalg.norm(np.diff(steps, axis=0), axis=1)
        speed = float(lengths.mean()) if len(lengths) else 0.0
        last = one.sightings[-1].frame
        return cls(one.sightings[0], before[-1], last, one.length, speed)


def _link(
    tracked: list[TrackedObject], size: tuple[int, int], longest_gap: int
) -> list[TrackedObject]:
    """Join tracks that end where others start: objects do not vanish, except at the border."""
    while len(tracked) > 1:
        ends = [Ends.of(each) for each in tracked]
        cost = np.array([[_gap_cost(a, b, size, longest_gap) for b in ends] for a in ends])
        if not np.isfinite(cost).any():
            break
        tracked = chained(tracked, pairs_of(cost))
    return tracked


def pairs_of(cost: NDArray[np.float64]) -> dict[int, int]:
    """Return the column of each row at the lowest total cost, without pairs of infinite cost."""
    allowed = np.isfinite(cost)
    rows, columns = linear_sum_assignment(np.where(allowed, cost, IMPOSSIBLE))
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return {i: j for i, j in pairs if allowed[i, j]}


def chained(tracked: list[TrackedObject], pairs: dict[int, int]) -> list[TrackedObject]:
    """Join tracks.

    Args:
        tracked: The tracks.
        pairs: For each track that another one continues, the index of that one.
    """
    joined = []
    for i in sorted(set(range(len(tracked))) - set(pairs.values())):
        one = tracked[i]
        while i in pairs:
            i = pairs[i]
            one = _joined(one, tracked[i])
        joined.append(one)
    return joined


def _gap_cost(first: Ends, second: Ends, size: tuple[int, int], longest: int) -> float:
    """Return the relative distance from the end of a track to the start of another, or infinity."""
    start, end = second.start, first.end
    if start.frame - first.last > longest or second.last <= first.last:
        return np.inf
    return link_cost(end, start, first.length, first.speed, size)


class Spot(Protocol):
    """Position of an object, as in `Sighting`."""

    @property
    def frame(self) -> int:
        """Number of the frame."""

    @property
    def x(self) -> float:
        """Position in pixels."""

    @property
    def y(self) -> float:
        """Position in pixels."""

    @property
    def box(self) -> NDArray[np.float64]:
        """Left, top, right, bottom in pixels."""


def link_cost(end: Spot, start: Spot, length: float, speed: float, size: tuple[int, int]) -> float:
    """Return the relative distance from the end of a track to the start of another, or infinity.

    Args:
        end: Last sighting of the first object alone.
        start: First sighting of the second object.
        length: Length of the object in pixels.
        speed: Speed of the object in pixels per frame.
        size: (width, height) of the frames.
    """
    gap = start.frame - end.frame
    if gap <= 0 or (at_border(end, size) and at_border(start, size)):  # one leaves, one enters
        return np.inf
    reach = LINK_REACH * (length + min(speed * gap, length * LINK_REACH))
    distance = float(np.hypot(start.x - end.x, start.y - end.y))
    return distance / reach + 1e-3 * gap if distance < reach else np.inf


def at_border(sighting: Spot, size: tuple[int, int]) -> bool:
    """Return whether an object may leave or have entered here."""
    left, top, right, bottom = sighting.box
    margin = BORDER * max(right - left, bottom - top)
    return bool(min(left, top, size[0] - right, size[1] - bottom) < margin)


def _joined(first: TrackedObject, second: TrackedObject) -> TrackedObject:
    start = second.sightings[0].frame
    before = first.sightings[: bisect_left(first.sightings, start, key=attrgetter("frame"))]
    return TrackedObject(
        first.number,
        second.place,
        second.spread,
        second.area,
        before + second.sightings,
        alone=first.alone + second.alone,
    )


def positions(one: TrackedObject) -> NDArray[np.float64]:
    """Return (sightings, 2) positions x, y in pixels."""
    return np.column_stack([one.sightings.column(name) for name in ("x", "y")])
