"""Objects that move, preferred to changes of the scene that stay where they are.

Something that was moved once, such as a bag beside the arena, differs from the scene at the same
place for as long as the median of the recording shows it elsewhere. It may be larger than the
animal, but it never moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.judge import track_objective
from ullayers.locate.objects import Labelled, ObjectPath
from ullayers.locate.segment import CLEAR_GAIN, MISSING_COST, part_places

LASTING = 0.9  # share of the frames of a window in which a lasting part is at the same place
MIN_GAIN = 0.5  # of a part that is clear enough to be the object

Mask = NDArray[np.bool_]


def lasting_pixels(labelled: list[Labelled]) -> Mask:
    """Return the (height, width) pixels that belong to some part in nearly all frames."""
    always: Mask = np.mean([each.labels > 0 for each in labelled], axis=0) >= LASTING
    return always


def lasting_parts(labelled: list[Labelled], always: Mask) -> list[list[bool]]:
    """Return for each part of each frame whether at least half of its pixels are lasting.

    Args:
        labelled: Parts of consecutive frames.
        always: From `lasting_pixels`.

    Example:
        >>> from ullayers.locate.objects import label_parts
        >>> frames = np.zeros((20, 12, 40), np.float32)
        >>> frames[:, 1:3, 1:9] = 1  # stays
        >>> for t in range(20):
        ...     frames[t, 8:10, t : t + 4] = 1  # moves
        >>> labelled = [label_parts(frame, 0.5) for frame in frames]
        >>> lasting_parts(labelled, lasting_pixels(labelled))[7]
        [True, False]
    """
    found = []
    for each in labelled:
        area = np.bincount(each.labels.ravel())
        kept = np.bincount(each.labels[always], minlength=len(area))
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
        lasting: Lasting pixels of the last window; None before the first one.
    """

    moved: bool = False
    last: Mask | None = None
    lasting: Mask | None = None

    def follow(self, path: ObjectPath, labelled: list[Labelled]) -> list[int | None]:
        """Return the number of the chosen part of each frame, None where there is none.

        Args:
            path: The path so far; it is continued.
            labelled: The parts of the next window.
        """
        always = lasting_pixels(labelled)
        # What has lasted is taken away in the middle of a window.
        lasting = lasting_parts(labelled, always if self.lasting is None else always | self.lasting)
        self.lasting = always
        every = _hypothesis(path, labelled, [[True] * len(each) for each in lasting])
        movers = _hypothesis(
            path, labelled, [self._may_move(*each) for each in zip(labelled, lasting, strict=True)]
        )
        first, second = (movers, every) if self.moved else (every, movers)
        best = second if second.cost < first.cost - CLEAR_GAIN else first
        path.states = best.path.states
        if best is movers or not self.moved:  # else the object is lost, and something else is shown
            self._remember(labelled, lasting, best.chosen)
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
        self, labelled: list[Labelled], lasting: list[list[bool]], chosen: list[int | None]
    ) -> None:
        found = [(t, number) for t, number in enumerate(chosen) if number is not None]
        if not found:
            return
        self.moved |= 2 * sum(lasting[t][number] for t, number in found) < len(found)
        t, number = found[-1]
        self.last = np.equal(labelled[t].labels, labelled[t].parts[number].label)


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
