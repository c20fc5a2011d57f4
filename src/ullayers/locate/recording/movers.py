"""Moving objects, as opposed to changes of the scene that stay in place.

Something that was moved once, such as a bag beside the arena, differs from the scene in one place
for as long as the median of the recording shows it elsewhere. It may be larger than the animal, but
it never moves. The same is true for a lamp, and for an image that a codec leaves where an animal
has been.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import find_objects, label

from ullayers.locate.moving.segment import CLEAR_GAIN, MISSING_COST, part_places
from ullayers.locate.paths import Labelled, ObjectPath, Positions, track_objective
from ullayers.video import memory

LASTING = 0.75  # a lasting pixel belongs to a thing for at least this share of its lifetime
MIN_SEEN = 8  # smallest number of frames of a stay that can be judged
MOVING_J = -1.25  # J of a path: below for slow motion, above for jitter in one place
SAME_MASS = 1e-3  # relative change of the mass of a part between frames; noise changes it by more
REMAINS = 0.2  # smallest mass of an image left behind, as a share of the mass of the object
LEAVING = 0.1  # largest distance at which a path starts near another, as a share of the longer side
RESTING = 0.25  # pixels are at rest if they belong to something for this share of a window
LEAST_DRIFT = 0.1  # smallest distance a slow object covers, as a share of the root of its area
# Smallest gain of a part that may be the object. Gains are half as large without a network.
MIN_GAIN = 0.25
Mask = NDArray[np.bool_]


def lasting_pixels(labelled: list[Labelled]) -> Mask:
    """Return the (time, height, width) pixels that belong to a thing for its whole lifetime.

    A thing is a component connected in space and time.
    """
    masks = _masks(labelled)
    stays: Mask = memory.zeros(masks.shape, bool)
    anywhere = np.asarray(masks.any(axis=0))
    left, top, width, height = cv2.boundingRect(anywhere.view(np.uint8))
    if not width:
        return stays
    box = slice(None), slice(top, top + height), slice(left, left + width)
    things = memory.empty(masks[box].shape, np.int32)
    label(masks[box], output=things)
    for number, place in enumerate(find_objects(things), 1):
        seen = place[0].stop - place[0].start
        if seen < MIN_SEEN:
            continue
        thing = things[place] == number
        core = thing.sum(axis=0) >= LASTING * seen
        # An object that arrives and then rests is elsewhere at the beginning.
        if all(2 * np.sum(thing[end] & core) >= np.sum(thing[end]) for end in (0, -1)):
            stays[box][place] |= thing & core
    return stays


def _masks(labelled: list[Labelled]) -> Mask:
    """Return the (time, height, width) pixels of all parts."""
    masks: Mask = memory.empty((len(labelled), *labelled[0].labels.shape), bool)
    for each, mask in zip(labelled, masks, strict=True):
        np.greater(each.labels, 0, out=mask)
    return masks


def _is_motion(places: Positions, area: float) -> bool:
    """Return whether (time, 2) positions of a thing with this area show motion."""
    apart = np.linalg.norm(np.ptp(places, axis=0))
    return bool(apart > LEAST_DRIFT * np.sqrt(area) and track_objective(places) < MOVING_J)


def _motionless(places: Positions, masks: list[Mask], lasting: list[bool]) -> Mask:
    """Return which positions of a path are on something that appears, stays and vanishes.

    Args:
        places: (found, 2) positions of the path in pixels.
        masks: Mask of the part at each position.
        lasting: Whether each part is lasting; a slowly moving object may be, too.
    """
    stays = np.zeros(len(masks), bool)
    jumps = [i for i in range(1, len(masks)) if not (masks[i - 1] & masks[i]).any()]
    for start, stop in pairwise([0, *jumps, len(masks)]):
        area = float(np.median([np.count_nonzero(mask) for mask in masks[start:stop]]))
        if not _is_motion(places[start:stop], area):
            stays[start:stop] = stop - start >= MIN_SEEN or lasting[start:stop]
    return stays


def resting_pixels(labelled: list[Labelled]) -> Mask:
    """Return the (time, height, width) pixels that belong to something for a long time.

    A codec may leave such an image of an animal where it was before it walked on.
    """
    masks = _masks(labelled)
    long = max(MIN_SEEN, int(RESTING * len(masks)))
    before = np.zeros(masks.shape[1:], np.int32)
    lengths = memory.empty(masks.shape, np.int32)
    for t, mask in enumerate(masks):  # frames since each pixel became part of something
        before += 1
        before *= mask
        lengths[t] = before
    for t in range(len(masks) - 2, -1, -1):  # the same length for the whole stretch
        np.copyto(lengths[t], lengths[t + 1], where=masks[t] & masks[t + 1])
    found: Mask = np.greater_equal(lengths, long, out=memory.empty(masks.shape, bool))
    return found


def lasting_parts(labelled: list[Labelled], stays: Mask) -> list[list[bool]]:
    """Return for each part of each frame whether at least half of its pixels are lasting.

    Args:
        labelled: Parts of consecutive frames.
        stays: From `lasting_pixels`.

    Example:
        >>> from ullayers.locate.paths import label_parts
        >>> frames = np.zeros((30, 12, 40), np.float32)
        >>> frames[:20, 1:3, 1:9] = 1  # stays
        >>> for t in range(30):
        ...     frames[t, 8:10, t : t + 4] = 1  # moves
        >>> labelled = [label_parts(frame, 0.5) for frame in frames]
        >>> lasting_parts(labelled, lasting_pixels(labelled))[7]
        [True, False]
    """
    found = []
    for each, pixels in zip(labelled, stays, strict=True):
        inside = each.labels > 0
        area = np.bincount(each.labels[inside])
        kept = np.bincount(each.labels[inside & pixels], minlength=len(area))
        found.append([bool(2 * kept[part.label] >= area[part.label]) for part in each.parts])
    return found


@dataclass(frozen=True)
class _Hypothesis:
    """A path through the parts of a window, and its cost."""

    cost: float
    path: ObjectPath
    chosen: list[int | None]


class Followed(NamedTuple):
    """The path of the object through a window.

    Attributes:
        chosen: Number of the part in each frame, or None.
        moved: (time,) whether the part moves, or is where the object came to rest.
    """

    chosen: list[int | None]
    moved: Mask


@dataclass
class MoverChoice:
    """Decide, window by window, whether the object may be a part that stays in place.

    Paths with and without such parts are compared by J. An object that was seen to move and then
    rests keeps its position.

    Args:
        moved: Whether the object has moved so far.
        last: (height, width) bool mask of its last position; None before it was found.
        stayed: (height, width) bool mask of lasting pixels of the last window.
    """

    moved: bool = False
    last: Mask | None = None
    stayed: Mask | None = None

    def follow(self, path: ObjectPath, labelled: list[Labelled]) -> Followed:
        """Return the object in the next window.

        Args:
            path: The path so far; it is continued.
            labelled: The parts of the window.
        """
        stays = lasting_pixels(labelled)
        # Something that has stayed may be removed at the beginning of a window.
        lasting = lasting_parts(labelled, stays if self.stayed is None else stays | self.stayed)
        self.stayed = np.asarray(stays.any(axis=0))
        best = _hypothesis(path, labelled, [[True] * len(each) for each in lasting])
        if any(_is_ambiguous(path, each) for each in labelled):
            may_move = [self._may_move(*each) for each in zip(labelled, lasting, strict=True)]
            tried = [best, _hypothesis(path, labelled, may_move)]
            tried = tried[::-1] if self.moved else tried
            resting = lasting_parts(labelled, resting_pixels(labelled))
            best = tried[1] if tried[1].cost < tried[0].cost - CLEAR_GAIN else tried[0]
            away = _hypothesis(path, labelled, [[not r for r in each] for each in resting])
            if away.cost < best.cost - CLEAR_GAIN and _leaves(labelled, best.chosen, away.chosen):
                best = away
        path.states = best.path.states
        moved = self._remember(labelled, best.chosen, lasting)
        return Followed(best.chosen, moved & ~_repeated(labelled, best.chosen))

    def _may_move(self, each: Labelled, lasting: list[bool]) -> list[bool]:
        """Return which parts do not stay, or are where the object came to rest."""
        rests = self.last if self.moved else None
        touched = set() if rests is None else set(np.unique(each.labels[rests]).tolist())
        return [
            not stays or part.label in touched
            for part, stays in zip(each.parts, lasting, strict=True)
        ]

    def _remember(
        self, labelled: list[Labelled], chosen: list[int | None], lasting: list[list[bool]]
    ) -> Mask:
        """Return in which frames the chosen part has moved, and remember where the object is.

        A part that stays belongs to the object if the object was seen to move before or after, in
        the same place.
        """
        found = [(t, number) for t, number in enumerate(chosen) if number is not None]
        moved = np.zeros(len(chosen), bool)
        if not found:
            return moved
        masks: list[Mask] = [
            np.equal(labelled[t].labels, labelled[t].parts[number].label) for t, number in found
        ]
        places = part_places(labelled, chosen)[[t for t, _ in found]]
        stays = _motionless(places, masks, [lasting[t][number] for t, number in found])
        last = self.last if self.moved else None
        self.moved |= bool(2 * stays.sum() < len(found))
        for order in (1, -1):
            for (t, _), mask, is_still in list(zip(found, masks, stays, strict=True))[::order]:
                moved[t] |= not is_still or (last is not None and bool((mask & last).any()))
                if moved[t]:
                    last = mask
            if order == 1:
                self.last = self.last if last is None else last
            last = None
        return moved


def _leaves(labelled: list[Labelled], chosen: list[int | None], away: list[int | None]) -> bool:
    """Return whether a path begins near another one and may show the same object."""
    apart = np.linalg.norm(part_places(labelled, chosen) - part_places(labelled, away), axis=1)
    both = apart[np.isfinite(apart)]
    return bool(len(both) and both[0] < LEAVING * max(labelled[0].labels.shape))


def _repeated(labelled: list[Labelled], chosen: list[int | None]) -> Mask:
    """Return in which frames the part is an image left behind by a codec.

    Under strong compression, images of an animal may stay where it was. They are constant from
    frame to frame, without any noise, and there are several of them.
    """
    masses = np.full((len(chosen), 2), np.nan)
    for t, number in enumerate(chosen):
        if number is not None:
            others = [part.mass for part in labelled[t].parts]
            masses[t] = others.pop(number), max(others, default=0.0)
    own, other = masses.T
    same = np.zeros(len(own), bool)
    same[1:] = np.abs(np.diff(own)) <= SAME_MASS * own[1:]
    runs, count = label(same)
    lengths = np.bincount(runs, minlength=count + 1)
    return same & (lengths[runs] >= MIN_SEEN) & (other >= REMAINS * own)


def _is_ambiguous(path: ObjectPath, each: Labelled) -> bool:
    """Return whether more than one part of a frame may be the object."""
    return sum(path.gain(part) >= MIN_GAIN for part in each.parts) > 1


def _hypothesis(
    path: ObjectPath, labelled: list[Labelled], allowed: list[list[bool]]
) -> _Hypothesis:
    """Follow the object through the allowed parts."""
    own = replace(path, states=list(path.states))
    kept = [[i for i, is_kept in enumerate(each) if is_kept] for each in allowed]
    parts = [[each.parts[i] for i in numbers] for each, numbers in zip(labelled, kept, strict=True)]
    followed = own.follow(parts)
    chosen = [
        None if number is None else numbers[number]
        for number, numbers in zip(followed, kept, strict=True)
    ]
    clear = [
        number is not None and own.gain(each.parts[number]) >= MIN_GAIN
        for number, each in zip(chosen, labelled, strict=True)
    ]
    objective = track_objective(part_places(labelled, chosen))
    return _Hypothesis(objective + MISSING_COST * (1 - float(np.mean(clear))), own, chosen)
