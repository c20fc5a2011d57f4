"""Crossings: when objects share a blob, after which their identities may be exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ullayers.locate.tracking import TrackedObject


@dataclass(frozen=True)
class Crossing:
    """Two objects that cannot be told apart for a while.

    Attributes:
        first: Number of the first frame, among those that were read.
        last: Number of the last frame.
        objects: Their numbers, from 1.
        confidence: That each object has the same number before and after, from 0 to 1.
        apart: How clearly they stand apart when they are nearest, from 0 to 1.
        nearest: Number of that frame.
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
        pause: Frames; objects that part for a shorter time are in the same crossing.
    """
    owner = {sighting.number: k for k, each in enumerate(objects, 1) for sighting in each.sightings}
    together: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for k, each in enumerate(objects, 1):
        for sighting in each.sightings:
            for number in sighting.company:
                other = owner.get(number)
                if other is not None and other > k:
                    frames = together.setdefault((k, other), [])
                    frames.append((sighting.frame, sighting.apart))
    found: list[Crossing] = []
    for pair, frames in together.items():
        times = np.array([frame for frame, _ in frames])
        apart = np.array([clear for _, clear in frames])
        for rows in np.split(np.arange(len(times)), np.flatnonzero(np.diff(times) > pause) + 1):
            first, last = int(times[rows[0]]), int(times[rows[-1]])
            nearest = rows[apart[rows].argmin()]
            least = float(apart[nearest])
            confidence = 0.5 + 0.5 * least
            found.append(Crossing(first, last, pair, confidence, least, int(times[nearest])))
    return sorted(found, key=lambda each: (each.nearest, each.objects))
