"""Identities across several videos, from the appearance of objects.

An object is recognised as one of an earlier video only if its appearance fits that object, relative
to how much appearances vary within a video, and clearly fits no other object as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.locate.identity import APPEARANCE, MOST_COST, appearances, metric_of
from ullayers.locate.selection import IMPOSSIBLE
from ullayers.locate.sightings import ALONE, Sightings

FRAMES_PER_BLOCK = 25  # a portrait is the mean over blocks of this many frames
MIN_BLOCKS = 4  # with fewer, no object can be recognised
SURE = 0.95  # least confidence to call an object recognised or new
LARGEST_NUMBER = 255  # of an object; masks have one byte per pixel
LARGEST_GAIN = 6.9  # a confidence of 0.999: appearances are not known more precisely

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Portrait:
    """Appearance of an object in a video.

    Attributes:
        mean: Mean appearance; empty if the object was seen too briefly.
        scatter: Sum of squares of blocks of frames around the mean, row by row.
        blocks: Number of these blocks.
    """

    mean: list[float] = field(default_factory=list)
    scatter: list[float] = field(default_factory=list)
    blocks: int = 0

    @classmethod
    def of(cls, sightings: Sightings, scale: float) -> Portrait:
        """Measure the frames in which an object is alone.

        Args:
            sightings: Sightings of the object.
            scale: Pixels of the video per pixel of these sightings, along a side.
        """
        alone = sightings.where(sightings.column("company") == ALONE)
        blocks = len(alone) // FRAMES_PER_BLOCK
        if blocks < MIN_BLOCKS:
            return cls()
        looks = appearances(alone)[: blocks * FRAMES_PER_BLOCK] + np.log(scale) * SIZES
        means = looks.reshape(blocks, FRAMES_PER_BLOCK, APPEARANCE).mean(1)
        apart = means - means.mean(0)
        return cls(means.mean(0).tolist(), (apart.T @ apart).ravel().tolist(), blocks)

    def __post_init__(self) -> None:
        expected = (APPEARANCE, APPEARANCE**2) if self.mean else (0, 0)
        if (len(self.mean), len(self.scatter)) != expected:
            raise ValueError(f"expected {APPEARANCE} numbers, got {len(self.mean)}")


# Change of each number of an appearance with the logarithm of the scale: colours, area, axes.
SIZES = np.array([0.0] * 6 + [2.0, 1.0, 1.0])


@dataclass(frozen=True)
class Recognised:
    """An object that was seen in an earlier video.

    Attributes:
        object: Its number, in both videos.
        video: Name of the earlier video in which it was first seen.
        confidence: From 0 to 1.
    """

    object: int
    video: str
    confidence: float


@dataclass
class KnownObjects:
    """Objects that can be recognised, from all videos so far.

    Attributes:
        portraits: Portraits by object number.
        videos: Video in which each object was first seen.
    """

    portraits: dict[int, Portrait] = field(default_factory=dict)
    videos: dict[int, str] = field(default_factory=dict)

    def meet(self, portraits: Sequence[Portrait], video: str) -> tuple[list[int], list[Recognised]]:
        """Number the objects of the next video.

        Recognised objects keep their number from earlier videos. Clearly new objects get a number
        that no other object has. Unclear objects get a number that no other object of this video
        has.

        Args:
            portraits: Portraits of the objects in the video.
            video: Its name.

        Returns:
            The number of each object, and the recognised objects.
        """
        if not self.portraits and len(portraits) > 1:
            numbers = list(range(1, len(portraits) + 1))
            self._add(dict(zip(numbers, portraits, strict=True)), video)
            return numbers, []
        known = list(self.portraits)
        chosen, confidence = self._compare(portraits, known)
        recognised: dict[int, int] = {}
        fresh: dict[int, int] = {}
        for row, column in enumerate(chosen):
            if confidence[row] < SURE:
                continue
            if column < len(known):
                recognised[row] = known[column]
            elif len(portraits) > 1:  # a single object is not numbered
                new = max([*known, *fresh.values()]) + 1
                if new <= LARGEST_NUMBER:
                    fresh[row] = new
        self._add({number: portraits[row] for row, number in fresh.items()}, video)
        numbers = _filled(recognised | fresh, len(portraits))
        return numbers, [
            Recognised(number, self.videos[number], round(confidence[row], 3))
            for row, number in recognised.items()
        ]

    def _add(self, portraits: dict[int, Portrait], video: str) -> None:
        known = {number: each for number, each in portraits.items() if each.blocks}
        self.portraits |= known
        self.videos |= dict.fromkeys(known, video)

    def _compare(
        self, portraits: Sequence[Portrait], known: list[int]
    ) -> tuple[list[int], list[float]]:
        """Assign objects to known objects, or to none, at the lowest cost.

        Returns: The column of each object, and the probability that it is right; 0 if the object
        was seen too briefly.
        """
        members = [self.portraits[number] for number in known]
        seen = [row for row, each in enumerate(portraits) if each.blocks]
        columns, confidence = [len(known)] * len(portraits), [0.0] * len(portraits)
        if not seen or not members:
            return columns, confidence
        looks = in_metric_of_w([*members, *(portraits[row] for row in seen)])
        offset = looks[len(members) :, None] - looks[: len(members)]
        new = np.full((len(seen), len(seen)), MOST_COST)
        cost = np.column_stack([np.square(offset).sum(2) / 2, new])
        best, chosen = _assigned(cost)
        for row, (number, column) in enumerate(zip(seen, chosen, strict=True)):
            other = cost.copy()
            other[row, column if column < len(known) else slice(len(known), None)] = IMPOSSIBLE
            gain = min(_assigned(other)[0] - best, LARGEST_GAIN)
            columns[number], confidence[number] = column, float(1 / (1 + np.exp(-gain)))
        return columns, confidence


def in_metric_of_w(portraits: Sequence[Portrait]) -> Floats:
    """Return (portraits, numbers) mean appearances, in a metric that makes W the identity."""
    means = np.array([each.mean for each in portraits])
    count = sum(each.blocks - 1 for each in portraits)
    scatter = sum(np.array(each.scatter) for each in portraits)
    within = np.reshape(scatter, (APPEARANCE, APPEARANCE)) / count
    # With few blocks, only the diagonal of W is known.
    unknown = APPEARANCE / (APPEARANCE + count)
    within = (1 - unknown) * within + unknown * np.diag(np.diag(within))
    looks: Floats = means @ metric_of(within, np.zeros(APPEARANCE)).T
    return looks


def _assigned(cost: Floats) -> tuple[float, list[int]]:
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum()), columns.tolist()


def _filled(numbers: dict[int, int], count: int) -> list[int]:
    """Return the number of each object; objects without one get the smallest free numbers.

    >>> _filled({1: 1, 2: 5}, 4)
    [2, 1, 5, 3]
    """
    free = iter(sorted(set(range(1, count + len(numbers) + 1)) - set(numbers.values())))
    return [numbers[row] if row in numbers else next(free) for row in range(count)]
