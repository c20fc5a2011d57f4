"""Crossings: objects share a blob, or are hidden, after which identities may be swapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.selection import SHORT_GAP
from ullayers.locate.sightings import ALONE
from ullayers.locate.tracking import TrackedObject

ENDLESS = 2**31  # frame in which an object appears that does not come back


@dataclass(frozen=True)
class Crossing:
    """Two objects that cannot be distinguished for a while.

    Attributes:
        first: Number of the first frame among those read.
        last: Number of the last frame.
        objects: Their numbers, from 1.
        confidence: Confidence that each object has the same number before and after, from 0 to 1.
        apart: How clearly they are separated when they are nearest, from 0 to 1.
        nearest: Number of the frame in which they are nearest.
    """

    first: int
    last: int
    objects: tuple[int, int]
    confidence: float
    apart: float
    nearest: int


def find_crossings(objects: Sequence[TrackedObject], pause: int) -> list[Crossing]:
    """List all crossings of the objects.

    Args:
        objects: From `choose_objects`; they are numbered in this order, from 1.
        pause: Frames; objects that separate for a shorter time are in the same crossing.
    """
    owner = {
        int(number): k
        for k, each in enumerate(objects, 1)
        for number in np.unique(each.sightings.column("number"))
    }
    found: list[Crossing] = []
    for k, each in enumerate(objects, 1):
        for other, (times, apart) in _together(each, k, owner).items():
            for rows in np.split(np.arange(len(times)), np.flatnonzero(np.diff(times) > pause) + 1):
                first, last = int(times[rows[0]]), int(times[rows[-1]])
                nearest = rows[apart[rows].argmin()]
                least = float(apart[nearest])
                confidence = 0.5 + 0.5 * least
                pair = k, other
                found.append(Crossing(first, last, pair, confidence, least, int(times[nearest])))
    found += _hidden_together(objects)
    return sorted(found, key=lambda each: (each.nearest, each.objects))


def _together(
    one: TrackedObject, number: int, owner: dict[int, int]
) -> dict[int, tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """Return frames in which an object shares a blob with later ones, and the separation.

    Args:
        one: The object.
        number: Its number.
        owner: Numbers of objects by numbers of tracks.
    """
    company = one.sightings.column("company")
    shared = one.sightings.where(company != ALONE)
    company, times, apart = map(shared.column, ("company", "frame", "apart"))
    groups = [one.sightings.log.companies[i] for i in np.unique(company)]
    others = {owner.get(track, 0) for group in groups for track in group}
    found = {}
    for other in sorted(other for other in others if other > number):
        tracks = {track for track, k in owner.items() if k == other}
        with_it = [i for i in np.unique(company) if tracks & set(one.sightings.log.companies[i])]
        rows = np.isin(company, with_it)
        found[other] = times[rows], apart[rows]
    return found


def _hidden_together(objects: Sequence[TrackedObject]) -> list[Crossing]:
    """List when one of several hidden objects appears: it may be any of them."""
    gaps = [_gaps(each) for each in objects]
    found = []
    for k, other in combinations(range(len(objects)), 2):
        for (start, end), (begin, stop) in product(gaps[k], gaps[other]):
            first, last = max(start, begin), min(end, stop)
            if first < last < ENDLESS:
                found.append(Crossing(first, last, (k + 1, other + 1), 0.5, 0.0, last - 1))
    return found


def _gaps(one: TrackedObject) -> list[tuple[int, int]]:
    """Return the last frame before, and the first after, each time when an object was hidden."""
    frames = one.sightings.column("frame")
    breaks = np.diff(one.sightings.column("number")) != 0
    hidden = np.flatnonzero(breaks & (np.diff(frames) > SHORT_GAP))
    gaps = [(int(frames[i]), int(frames[i + 1])) for i in hidden]
    return [*gaps, (int(frames[-1]), ENDLESS)]
