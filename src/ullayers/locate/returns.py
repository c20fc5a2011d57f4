"""Objects that hide, or leave, and come back.

In a closed scene, such as an arena with a nest, objects vanish and appear inside the frame. One
that appears where another one vanished, and looks like it, is the same. If the user gives the
number of objects, and there are never more at the same time, one that appears is always one of
those that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.identity import MOST_COST
from ullayers.locate.recognition import Portrait, in_metric_of_w
from ullayers.locate.selection import (
    LINK_REACH,
    SHORT_GAP,
    Ends,
    at_border,
    chained,
    choose_objects,
    in_order,
    pairs_of,
)
from ullayers.locate.tracking import CONFIRMED, TrackedObject

Floats = NDArray[np.float64]


def find_objects(
    tracked: Sequence[TrackedObject],
    frames: int,
    size: tuple[int, int],
    wanted: int | None = None,
) -> tuple[list[TrackedObject], int]:
    """Return the tracks that are objects, and the number of objects that move.

    Args:
        tracked: As in `choose_objects`.
        frames: As in `choose_objects`.
        size: As in `choose_objects`.
        wanted: As in `choose_objects`.
    """
    found = choose_objects(tracked, frames, size)
    if is_closed(found, frames, size):
        found = in_order(_joined_where_hidden(found))
    if wanted is None:
        return found, len(found)
    if most_at_once(found, frames) <= wanted < len(found):
        found = in_order(_joined_to(wanted, found))
    if len(found) == wanted:
        return found, wanted
    return choose_objects(tracked, frames, size, wanted), len(found)


def is_closed(objects: Sequence[TrackedObject], frames: int, size: tuple[int, int]) -> bool:
    """Return whether objects mostly vanish and appear inside the frame, not at its border."""
    ends = [Ends.of(each) for each in objects]
    places = [each.start for each in ends if each.start.frame > SHORT_GAP]
    places += [each.end for each in ends if each.last < frames - 1 - SHORT_GAP]
    return 2 * sum(at_border(place, size) for place in places) < len(places)


def most_at_once(objects: Sequence[TrackedObject], frames: int) -> int:
    """Return the largest number of objects at the same time, in at least `CONFIRMED` frames."""
    changes = np.zeros(frames + 1, np.int64)
    for each in objects:
        changes[each.sightings[0].frame] += 1
        changes[each.sightings[-1].frame + 1] -= 1
    present = np.sort(np.cumsum(changes))[::-1]
    return int(present[min(CONFIRMED, frames) - 1])


def _joined_where_hidden(objects: list[TrackedObject]) -> list[TrackedObject]:
    """Join tracks that end where another one starts, if both look the same."""
    ends = [Ends.of(each) for each in objects]
    reach = np.array([LINK_REACH * each.length for each in ends])
    unlike = _unlikeness(objects)
    unlike[(_distances(ends) > reach[:, None]) | (unlike > MOST_COST)] = np.inf
    return chained(objects, pairs_of(unlike))


def _joined_to(wanted: int, objects: list[TrackedObject]) -> list[TrackedObject]:
    """Join tracks until this number is left, if possible; the nearest ends first."""
    distance = _distances([Ends.of(each) for each in objects])
    links = sorted(pairs_of(distance).items(), key=lambda link: float(distance[link]))
    return chained(objects, dict(links[: len(objects) - wanted]))


def _distances(ends: list[Ends]) -> Floats:
    """Return the distance from the end of each track to the start of each later one."""
    last = np.array([(each.end.x, each.end.y) for each in ends]).reshape(-1, 2)
    first = np.array([(each.start.x, each.start.y) for each in ends]).reshape(-1, 2)
    distance: Floats = np.linalg.norm(last[:, None] - first, axis=2)
    until = np.array([each.last for each in ends], np.int64)
    since = np.array([each.start.frame for each in ends], np.int64)
    distance[since <= until[:, None]] = np.inf
    return distance


def _unlikeness(objects: list[TrackedObject]) -> Floats:
    """Return how much objects differ in appearance; infinity if one was seen too briefly."""
    portraits = [Portrait.of(each.sightings, 1.0) for each in objects]
    known = [i for i, each in enumerate(portraits) if each.blocks]
    unlike = np.full((len(objects), len(objects)), np.inf)
    if known:
        looks = in_metric_of_w([portraits[i] for i in known])
        unlike[np.ix_(known, known)] = np.square(looks[:, None] - looks).sum(2) / 2
    return unlike
