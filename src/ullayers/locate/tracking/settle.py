"""Rows of several objects of a source, from the sightings of a tracker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.paths import covariance_in_world, in_world
from ullayers.locate.recording.windows import MIN_STILL_FRAMES
from ullayers.locate.tracking.identity import (
    Encounter,
    Portrait,
    find_crossings,
    find_objects,
    resolve,
)
from ullayers.locate.tracking.tracker import TrackedObject, Tracker
from ullayers.tracks.reading import Crossing, crossing_rows
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.parallel import in_parallel
from ullayers.video.region import Box

MIN_PAUSE = 2  # frames; objects that separate for a shorter time are in the same crossing
TRACK_NUMBERS = 2**16
Floats = NDArray[np.float64]


@dataclass
class Several:
    """Collects all objects of a source while its frames are processed.

    Args:
        wanted: Number of objects; None to find it.

    Attributes:
        rows: Rows of all objects, as `Answer.several`; None if there is at most one object.
        crossings: Crossings of the objects; frames are numbered as in the source.
        keys: (sightings,) frame and track of each sighting as one number, ascending; see `key`.
        numbers: (sightings,) object number of each sighting.
        camera_moves: Whether objects could not be distinguished because the camera moves.
        moving: Number of moving objects, regardless of `wanted`.
        portraits: Appearance of each object, even if there is only one.
        number: Number of a single object.
    """

    wanted: int | None
    rows: Answer | None = None
    crossings: list[Encounter] = field(default_factory=list)
    keys: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    numbers: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    camera_moves: bool = False
    moving: int = 0
    portraits: list[Portrait] = field(default_factory=list)
    number: int = 1

    @property
    def notes(self) -> list[str]:
        """Notes for the user about the number of objects, one sentence each."""
        if self.wanted is None:
            return []
        if self.camera_moves:
            return [
                "Only the main object was tracked: several need a camera that stays in one place, "
                f"and at least {MIN_STILL_FRAMES} frames."
            ]
        found = 0 if self.rows is None else len(self.portraits)
        if found < self.wanted:
            return [f"{max(found, 1)} of {self.wanted} objects found."]
        if self.moving > self.wanted:
            return [f"{self.moving} objects move; those seen longest are in the table."]
        return []

    def finish(
        self,
        tracker: Tracker,
        frames: Answer,
        size: tuple[int, int],
        scale: tuple[float, float],
        views: Floats | None = None,
        seen: bool = False,
    ) -> None:
        """Choose the objects after the last frame.

        Args:
            tracker: Tracker that has processed all frames.
            frames: Rows of the main object in all frames.
            size: (width, height) of the tracker's frames.
            scale: Source pixels per pixel of these frames, horizontally and vertically.
            views: (time, 3, 3) homographies from the tracker's scene to each frame; None if the
                camera is still.
            seen: Whether a network has seen the objects, as in `choose_objects`.
        """
        tracked = tracker.finish()
        chosen, self.moving = find_objects(tracked, len(frames.index), size, self.wanted, seen)
        pause = max(MIN_PAUSE, tracker.patience // 5)
        objects, found = resolve(chosen, find_crossings(chosen, pause))
        across = float(np.sqrt(scale[0] * scale[1]))
        self.portraits = [Portrait.of(each.sightings, across) for each in objects]
        if len(objects) < 2:
            return
        self._keep_keys(objects, frames)
        parts = [_rows(each, k, frames, size, scale) for k, each in enumerate(objects, 1)]
        order = np.lexsort(
            [np.concatenate([part[i] for part in parts]) for i in (1, 0)]  # by frame, then object
        )
        time, number, values, moments = (
            np.concatenate(each)[order] for each in zip(*parts, strict=True)
        )
        if views is not None:
            values[:, :2] = in_world(values[:, :2] * size, views[time]) / size
            for columns in (slice(3), slice(4, 7)):
                moments[:, columns] = covariance_in_world(moments[:, columns], views[time])
        self.rows = Answer(
            frames.sequence,
            frames.index[time],
            frames.seconds[time],
            TRACK,
            values,
            moments=moments,
            objects=number,
        )
        index = frames.index.tolist()
        placed = [replace(c, first=index[c.first], last=index[c.last]) for c in found]
        self.crossings = _sorted(placed)

    def renumber(self, numbers: Sequence[int]) -> None:
        """Renumber the objects.

        Args:
            numbers: New numbers of the objects 1, 2, ...
        """
        if self.rows is None:
            self.number = numbers[0] if numbers else 1
            return
        lookup = np.array([0, *numbers])
        assert self.rows.objects is not None
        objects = lookup[self.rows.objects]
        order = np.lexsort([objects, self.rows.index])
        self.rows = replace(self.rows, objects=objects).rows(order)
        self.numbers = lookup[self.numbers].astype(np.uint8)
        self.crossings = _sorted(
            [
                replace(each, objects=tuple(sorted(lookup[list(each.objects)].tolist())))
                for each in self.crossings
            ]
        )

    def _keep_keys(self, objects: list[TrackedObject], frames: Answer) -> None:
        seen = [each.sightings for each in objects]
        keys = np.concatenate(
            [key(frames.index[each.column("frame")], each.column("number")) for each in seen]
        )
        numbers = np.repeat(np.arange(1, len(seen) + 1, dtype=np.uint8), list(map(len, seen)))
        order = np.argsort(keys)
        self.keys, self.numbers = keys[order], numbers[order]

    def object_of_track(self, frame: int, tracks: int) -> NDArray[np.uint8]:
        """Return the object number of each track in a frame; 0 for none.

        Args:
            frame: Number of the frame in the source.
            tracks: Largest track number.
        """
        lookup = np.zeros(tracks + 1, np.uint8)
        first, last = np.searchsorted(self.keys, [key(frame, 0), key(frame + 1, 0)])
        known = self.keys[first:last] % TRACK_NUMBERS
        inside = known <= tracks
        lookup[known[inside]] = self.numbers[first:last][inside]
        return lookup


def _sorted(crossings: list[Encounter]) -> list[Encounter]:
    return sorted(crossings, key=lambda each: (each.first, each.objects))


def key(frame: Any, track: Any) -> Any:
    """Return a number for a track in a frame; numbers ascend with frames."""
    return frame * TRACK_NUMBERS + track


def _rows(
    one: TrackedObject, number: int, frames: Answer, size: tuple[int, int], scale: tuple[float, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    """Return frame, number, values and moments of an object from its first to its last frame.

    Where it was not seen, or hidden by another object, its position is interpolated, with a
    confidence of 0.
    """
    seen = one.sightings.column("clarity") > 0
    names = "frame", "x", "y", "clarity", "spread", "area", "core"
    frame, x, y, clarity, spread, area, core = (one.sightings.column(name)[seen] for name in names)
    time = np.arange(frame[0], min(frame[-1] + 1, len(frames.index)))
    columns = (
        x / size[0],
        y / size[1],
        clarity,
        *_scaled(spread, scale),
        area * scale[0] * scale[1],
        *_scaled(core, scale),
    )
    table = np.stack([np.interp(time, frame, column) for column in columns], 1)
    table[~np.isin(time, frame), 2] = 0.0
    return time, np.full(len(time), number), table[:, :3], table[:, 3:]


def _scaled(spread: Floats, scale: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """Return the variances xx, xy and yy of (time, 2, 2) covariances, in pixels of the source."""
    across, down = scale
    return spread[:, 0, 0] * across**2, spread[:, 0, 1] * across * down, spread[:, 1, 1] * down**2


def identities(part: Answer, several: Several) -> NDArray[np.uint8]:
    """Return (time, height, width) object number of each pixel; 0 for none.

    Args:
        part: Rows with owners.
        several: All objects of the sequence.
    """
    assert part.owners is not None
    labels = np.zeros(part.owners.shape, np.uint8)

    def fill(frame: int, owners: NDArray[np.uint16], place: NDArray[np.uint8]) -> None:
        left, top, width, height = cv2.boundingRect((owners > 0).view(np.uint8))
        if width:
            box = slice(top, top + height), slice(left, left + width)
            tracks = owners[box]
            place[box] = several.object_of_track(frame, int(tracks.max()))[tracks]

    in_parallel(fill, part.index.tolist(), part.owners, labels)
    return labels


def in_whole_frame(labels: NDArray[np.uint8], box: Box | None) -> NDArray[np.uint8]:
    """Convert label images of a part of the frame to label images of the whole frame.

    >>> in_whole_frame(np.ones((1, 2, 2), np.uint8), (0.5, 0.0, 0.5, 1.0)).tolist()
    [[[0, 0, 1, 1], [0, 0, 1, 1]]]
    """
    if box is None:
        return labels
    count, height, width = labels.shape
    size = max(height, round(height / box[3])), max(width, round(width / box[2]))
    top = min(round(box[1] * size[0]), size[0] - height)
    left = min(round(box[0] * size[1]), size[1] - width)
    whole = np.zeros((count, *size), np.uint8)
    whole[:, top : top + height, left : left + width] = labels
    return whole


def crossings_of(answer: Answer, several: Several) -> list[Crossing]:
    """Return the crossings of a sequence, with times."""
    times = dict(zip(answer.index.tolist(), answer.seconds.tolist(), strict=True))
    return [
        Crossing(
            answer.sequence, c.first, c.last, times[c.first], times[c.last], c.objects, c.confidence
        )
        for c in several.crossings
    ]


def crossing_lines(answer: Answer, several: Several) -> str:
    """Return the rows of crossings.csv of a sequence."""
    return crossing_rows(crossings_of(answer, several))
