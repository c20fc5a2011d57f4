"""Crossings: when objects share a blob, after which their identities may be exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ullayers.locate.tracking import TrackedObject


@dataclass(frozen=True)
class Crossing:
    """Some objects that cannot be told apart for a while.

    Attributes:
        first: Number of the first frame, among those that were read.
        last: Number of the last frame.
        objects: Their numbers, from 1.
        confidence: That each object has the same number before and after, from 0 to 1.
    """

    first: int
    last: int
    objects: tuple[int, ...]
    confidence: float


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
            confidence = 0.5 + 0.5 * float(apart[rows].min())
            found.append(Crossing(int(times[rows[0]]), int(times[rows[-1]]), pair, confidence))
    return sorted(_grouped(found), key=lambda each: (each.first, each.objects))


def _grouped(pairs: list[Crossing]) -> list[Crossing]:
    """Join crossings of pairs that overlap in time and have an object in common."""
    groups: list[Crossing] = []
    for pair in sorted(pairs, key=lambda each: each.first):
        joined = pair
        kept = []
        for group in groups:
            if group.last >= joined.first and set(group.objects) & set(joined.objects):
                joined = Crossing(
                    min(group.first, joined.first),
                    max(group.last, joined.last),
                    tuple(sorted({*group.objects, *joined.objects})),
                    min(group.confidence, joined.confidence),
                )
            else:
                kept.append(group)
        groups = [*kept, joined]
    return groups
