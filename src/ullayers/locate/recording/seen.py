"""Objects that a network sees in single frames, followed window by window.

It is the same for a still camera, a moving one and a short clip, because the network knows neither
the scene nor the motion.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.moving.segment import Segments, other_masses, part_places
from ullayers.locate.paths import Anchors, Labelled, ObjectPath, label_parts, track_objective
from ullayers.locate.recording.windows import StillRecording, clarity_of
from ullayers.locate.tracking.blobs import find_blobs, find_pieces, typical_area
from ullayers.locate.tracking.tracker import Tracker
from ullayers.tracks.masks import EDGE
from ullayers.video import memory
from ullayers.video.parallel import in_parallel

EVEN = 1.0  # odds above which a pixel belongs to an object
SAME = 0.8  # of the objects that are seen or shown
SPECK = 0.1  # of the mass of the largest part of a frame: smaller ones are not compared
SQUARE = np.ones((3, 3), np.uint8)


@dataclass
class SeenRecording:
    """Finds what a network sees, window by window.

    Attributes:
        tracker: Follows all objects, if requested; see `follow_all`.
        size: (height, width) of the frames; None before the first window.
        path: The path of the main object so far; None before it was seen.
        typical: Area of a typical object in pixels; None before one was seen.

    Example:
        >>> odds = np.full((9, 24, 32), 0.01, np.float32)
        >>> for t in range(9):
        ...     odds[t, 8:12, 2 * t : 2 * t + 4] = 20
        >>> found = SeenRecording().segment(np.zeros((9, 48, 64, 3), np.uint8), odds)
        >>> (found.positions[4] * (64, 48)).round().tolist(), float(found.confidence[4].round(2))
        ([20.0, 20.0], 0.96)
    """

    tracker: Tracker | None = field(default=None, init=False)
    size: tuple[int, int] | None = field(default=None, init=False)
    path: ObjectPath | None = field(default=None, init=False)
    typical: float | None = field(default=None, init=False)

    def follow_all(self, patience: int) -> None:
        """From now on, also follow all other objects.

        Args:
            patience: Frames after which an unseen object is given up.
        """
        self.tracker = Tracker(patience)

    def segment(
        self,
        frames: Frames,
        attention: Floats,
        anchors: Anchors | None = None,
        chosen: list[int | None] | None = None,
    ) -> Segments:
        """Find the objects in the next window of frames; see `segment_motion`.

        Args:
            frames: As in `segment_motion`.
            attention: (time, rows, columns) odds of an object.
            anchors: As in `segment_motion`.
            chosen: Number of the object's part in each frame; None to find it.
        """
        self.size = frames.shape[1], frames.shape[2]
        labelled = [label_parts(odds, EVEN) for odds in attention]
        if anchors is not None:
            labelled = anchors.choose(labelled, attention)
        if chosen is None:
            chosen = self._follow(labelled)
        inside = [
            None if number is None else each.labels == each.parts[number].label
            for each, number in zip(labelled, chosen, strict=True)
        ]
        soft = memory.zeros(frames.shape[:3], np.uint8)
        in_parallel(_draw, soft, attention, inside)
        peaks = [
            0.0 if own is None else float(odds[own].max(initial=0.0))
            for own, odds in zip(inside, attention, strict=True)
        ]
        places = part_places(labelled, chosen)
        scale = np.array(attention.shape[:0:-1])
        return Segments(
            soft,
            places / scale,
            clarity_of(np.array(peaks, np.float32), EVEN),
            other_masses(labelled, chosen),
            track_objective(places),
            self._owners(frames, attention),
        )

    def _follow(self, labelled: list[Labelled]) -> list[int | None]:
        """Return the part of the main object in each frame."""
        largest = [each.parts[0].mass for each in labelled if each.parts]
        if self.path is None and largest:
            longer = float(max(labelled[0].labels.shape))
            self.path = ObjectPath(longer, float(np.median(largest)))
        if self.path is None:
            return [None] * len(labelled)
        return self.path.follow([each.parts for each in labelled])

    def _owners(self, frames: Frames, attention: Floats) -> NDArray[np.uint16] | None:
        """Return the track number of each pixel; None if objects are not followed."""
        if self.tracker is None:
            return None
        masks = in_parallel(_mask, frames, attention)
        if self.typical is None:
            areas = np.concatenate([find_pieces(mask).areas for mask in masks])
            self.typical = typical_area(areas) if len(areas) else None
        typical = self.typical or 0.0
        owners = memory.zeros(frames.shape[:3], np.uint16)
        blobs = in_parallel(
            lambda frame, mask, odds: find_blobs(frame, mask, odds, EVEN, typical),
            frames,
            masks,
            attention,
        )
        for each, owner in zip(blobs, owners, strict=True):
            self.tracker.step(each, owner)
        return owners


def shows_the_same(recording: StillRecording, frames: Frames, odds: Floats) -> bool:
    """Return whether the evidence of a still camera shows the objects that a network sees.

    If it does, its outlines are more precise.

    Args:
        recording: The recording with a still camera.
        frames: (time, height, width, 3) uint8 frames spread over it.
        odds: (time, rows, columns) odds of an object.
    """
    least = recording.looker.least
    size = odds.shape[:0:-1]
    same = total = 0
    for shown, seen in zip(recording.prepare(frames).labelled, map(_parts, odds), strict=True):
        clear = np.where(shown.masses >= least, np.arange(len(shown.masses)), 0)[shown.labels]
        clear = cv2.resize(clear.astype(np.float32), size, interpolation=cv2.INTER_NEAREST)
        both = np.unique(np.stack([clear, seen])[:, (clear > 0) & (seen > 0)], axis=1)
        alone = [np.unique(each, return_counts=True)[1] for each in both]
        same += 2 * min(int(np.count_nonzero(counts == 1)) for counts in alone)
        total += sum(len(np.unique(each[each > 0])) for each in (clear, seen))
    return total > 0 and same >= SAME * total


def _parts(odds: Floats) -> NDArray[np.int32]:
    """Return the (rows, columns) number of the object of each pixel; 0 for none."""
    found = label_parts(odds, EVEN)
    kept = found.masses >= SPECK * found.masses.max(initial=0.0)
    numbers: NDArray[np.int32] = np.where(kept[found.labels], found.labels, 0)
    return numbers


def _draw(soft: NDArray[np.uint8], odds: Floats, inside: NDArray[np.bool_] | None) -> None:
    """Draw the soft mask of a part at the size of the frame."""
    if inside is not None:
        near = cv2.dilate(inside.view(np.uint8), SQUARE)
        soft[:] = _enlarged(odds * near, soft.shape)


def _mask(frame: Pixels, odds: Floats) -> NDArray[np.bool_]:
    """Return the pixels of a frame that belong to objects."""
    return np.asarray(_enlarged(odds, frame.shape[:2]) >= EDGE)


def _enlarged(odds: Floats, size: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return chances at the size of a frame, as bytes; even odds become `EDGE`."""
    large = cv2.resize(odds / (1 + odds), (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
    return np.asarray((256 * large).clip(0, 255), np.uint8)
