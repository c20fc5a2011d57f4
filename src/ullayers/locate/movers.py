"""Objects that move, preferred to changes of the scene that stay where they are.

Something that was moved once, such as a bag beside the arena, differs from the scene at the same
place for as long as the median of the recording shows it elsewhere. It may be larger than the
animal, but it never moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import find_objects, label

from ullayers.locate.judge import track_objective
from ullayers.locate.objects import Labelled, ObjectPath
from ullayers.locate.segment import CLEAR_GAIN, MISSING_COST, part_places

LASTING = 0.75  # share of the time that a thing is seen, in which its lasting pixels belong to it
MIN_SEEN = 8  # frames: whether something stays for a shorter time cannot be said
# Gain of a part that may be the object. Without a network's attention, the gain is halved.
MIN_GAIN = 0.25

Mask = NDArray[np.bool_]


def lasting_pixels(labelled: list[Labelled]) -> Mask:
    """Return the (time, height, width) pixels that belong to a thing from its beginning to its end.

    A thing is what is connected in space and time.
    """
    masks = np.stack([each.labels > 0 for each in labelled])
    things, _ = label(masks)
    stays = np.zeros_like(masks)
    for number, place in enumerate(find_objects(things), 1):
        seen = place[0].stop - place[0].start
        if seen < MIN_SEEN:
            continue
        thing = things[place] == number
        core = thing.sum(axis=0) >= LASTING * seen
        # An object that comes and then rests is elsewhere at the beginning.
        if all(2 * np.sum(thing[end] & core) >= np.sum(thing[end]) for end in (0, -1)):
            stays[place] |= thing & core
    return stays


def lasting_parts(labelled: list[Labelled], stays: Mask) -> list[list[bool]]:
    """Return for each part of each frame whether at least half of its pixels are lasting.

    Args:
        labelled: Parts of consecutive frames.
        stays: From `lasting_pixels`.

    Example:
        >>> from ullayers.locate.objects import label_parts
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
        area = np.bincount(each.labels.ravel())
        kept = np.bincount(each.labels[pixels], minlength=len(area))
        found.append([bool(2 * kept[part.label] >= area[part.label]) for part in each.parts])
    return found


@dataclass(frozen=True)
class _Hypothesis:
    """A path through the parts of a window, and what it costs."""

    cost: float
    path: ObjectPath
    chosen: list[int | None]


@dataclass
class MoverChoice:
    """Decides, window by window, whether the object may be a part that stays where it is.

    Paths with and without such parts are compared by J. An object that was seen to move and then
    rests keeps its place.

    Args:
        moved: Whether the object has moved so far.
        last: Where it was last, (height, width) bool; None before it was found.
        stayed: Lasting pixels of the last window, (height, width) bool; None if they were not
            needed.
    """

    moved: bool = False
    last: Mask | None = None
    stayed: Mask | None = None

    def follow(self, path: ObjectPath, labelled: list[Labelled]) -> list[int | None]:
        """Return the number of the chosen part of each frame, None where there is none.

        Args:
            path: The path so far; it is continued.
            labelled: The parts of the next window.
        """
        if not any(_is_ambiguous(path, each) for each in labelled):
            chosen = path.follow([each.parts for each in labelled])
            self._remember(labelled, chosen)
            self.stayed = None
            return chosen
        stays = lasting_pixels(labelled)
        # What has stayed may be taken away at the beginning of a window.
        lasting = lasting_parts(labelled, stays if self.stayed is None else stays | self.stayed)
        self.stayed = np.asarray(stays.any(axis=0))
        every = _hypothesis(path, labelled, [[True] * len(each) for each in lasting])
        movers = _hypothesis(
            path, labelled, [self._may_move(*each) for each in zip(labelled, lasting, strict=True)]
        )
        first, second = (movers, every) if self.moved else (every, movers)
        best = second if second.cost < first.cost - CLEAR_GAIN else first
        path.states = best.path.states
        if best is movers or not self.moved:  # else the object is lost, and something else is shown
            self._remember(labelled, best.chosen, lasting)
        return best.chosen

    def _may_move(self, each: Labelled, lasting: list[bool]) -> list[bool]:
        """Return which parts do not stay, or are where the object was when it last moved."""
        rests = self.last if self.moved else None
        touched = set() if rests is None else set(np.unique(each.labels[rests]).tolist())
        return [
            not stays or part.label in touched
            for part, stays in zip(each.parts, lasting, strict=True)
        ]

    def _remember(
        self,
        labelled: list[Labelled],
        chosen: list[int | None],
        lasting: list[list[bool]] | None = None,
    ) -> None:
        """Remember where the object is at the end of a window, and whether it has moved."""
        found = [(t, number) for t, number in enumerate(chosen) if number is not None]
        if not found:
            return
        first, self.last = (
            np.equal(labelled[t].labels, labelled[t].parts[number].label)
            for t, number in (found[0], found[-1])
        )
        if lasting is None:
            self.moved |= bool(2 * np.sum(first & self.last) < np.sum(self.last))
        else:
            self.moved |= 2 * sum(lasting[t][number] for t, number in found) < len(found)


def _is_ambiguous(path: ObjectPath, each: Labelled) -> bool:
    """Whether more than one part of a frame may be the object."""
    return sum(path.gain(part) >= MIN_GAIN for part in each.parts) > 1


def _hypothesis(
    path: ObjectPath, labelled: list[Labelled], allowed: list[list[bool]]
) -> _Hypothesis:
    """Follow the object through some of the parts."""
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
