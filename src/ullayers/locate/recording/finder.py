"""What is seen in single frames of a still camera.

All of it depends on the scene and on one frame only, so frames can be processed in any order, in
several threads or in another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.outline import Outlined, contrast_outline, mask_moments
from ullayers.locate.paths import NO_LABEL, Labelled, label_parts
from ullayers.locate.scene.still import (
    SAME_TEXTURE,
    StillScene,
    correlation,
    texture,
    without_common,
)
from ullayers.locate.tracking.blobs import (
    CLEAR,
    LEAST_MASS,
    Blobs,
    Pieces,
    clarity,
    clear_labels,
    core_covariance,
    find_pieces,
    join_pieces,
    peaks_of,
    typical_area,
)
from ullayers.locate.tracking.tracker import Tracker
from ullayers.tracks.masks import EDGE
from ullayers.video import memory
from ullayers.video.parallel import in_parallel

INWARDS = np.ones((5, 5), np.uint8)  # excludes pixels near the outline, which has edges itself
LEAST_TEXTURE = 100  # pixels: in fewer, edges may agree by chance
OVEREXPOSED = 245.0  # grey levels
Owners = NDArray[np.uint16]


class Notable(NamedTuple):
    """What stands out in a frame.

    Attributes:
        gain: Gain of the light.
        evidence: (rows, columns) difference from the scene, in units of the noise.
        labelled: Parts of the frame.
    """

    gain: Floats
    evidence: Floats
    labelled: Labelled


class SeenFrame(NamedTuple):
    """What is seen in a frame.

    Attributes:
        place: (2,) position of the main object in 0..1; NaN if it is not found.
        core: (3,) variances of its core.
        outlined: Its outline; None if it is not found.
        between: Whether the position lies between its pieces.
        peak: Largest evidence of its part.
        lit: Whether the part shows the scene in different light.
        pieces: Pieces of all objects, if they are followed and their usual area is unknown.
        blobs: Blobs of all objects, if it is known.
    """

    place: NDArray[np.float64]
    core: NDArray[np.float64]
    outlined: Outlined | None
    between: bool
    peak: float
    lit: bool
    pieces: Pieces | None
    blobs: Blobs | None


@dataclass(frozen=True)
class Looker:
    """Looks at single frames of a still camera.

    Args:
        scene: The scene at the size of the frames.
        view: The scene at the smaller size at which objects are found.
        threshold: Evidence above which a pixel belongs to an object, in units of the noise.
        usual: Usual value of `common_evidence`.
        least: Smallest sum of the evidence of a part that is outlined.
        follows_all: Whether all objects are followed.
    """

    scene: StillScene
    view: StillScene
    threshold: float
    usual: float
    least: float
    follows_all: bool

    def stand_out(
        self,
        frame: Pixels,
        attention: Floats | None,
        evidence: Floats,
        labels: NDArray[np.int32],
    ) -> Notable:
        """Return what stands out in a frame.

        Args:
            frame: The frame at the smaller size.
            attention: As in `label_parts`.
            evidence: Memory for the evidence.
            labels: Memory for the labels.
        """
        gain = self.view.gain(frame)
        evidence[:] = without_common(self.view.evidence(frame, gain), self.usual)
        return Notable(gain, evidence, label_parts(evidence, self.threshold, attention, labels))

    def look(
        self,
        frame: Pixels,
        small: Pixels,
        notable: Notable,
        chosen: int | None,
        typical: float | None,
    ) -> SeenFrame:
        """Outline the parts of a frame and describe the main object.

        Args:
            frame: The frame.
            small: The same at the smaller size.
            notable: What stands out in it.
            chosen: Number of the part of the main object.
            typical: Area of a typical object; None if it is unknown.
        """
        parts, evidence = notable.labelled, notable.evidence
        main = None if chosen is None else parts.parts[chosen].label
        inside = None if main is None else parts.labels == main
        main = None if main == NO_LABEL else main
        outlined, pieces = self._outline(frame, notable.gain, parts, main)
        place, core, between = _described(outlined, evidence, frame.shape[:2])
        peak = 0.0 if inside is None else float(evidence[inside].max(initial=0))
        lit = inside is not None and self._is_lit(small, inside)
        blobs = None
        if pieces is not None and typical is not None:
            blobs, pieces = join_pieces(frame, pieces, evidence, self.threshold, typical), None
        return SeenFrame(place, core, outlined, between, peak, lit, pieces, blobs)

    def _outline(
        self, frame: Pixels, gain: Floats, parts: Labelled, main: int | None
    ) -> tuple[Outlined | None, Pieces | None]:
        """Outline the parts of a frame.

        Args:
            frame: The frame.
            gain: Gain of the light in it.
            parts: Its parts.
            main: Label of the part of the main object, if there is one.

        Returns:
            The outline of the main object, and the pieces of all objects, if they are followed.
        """
        others = clear_labels(parts, self.least) if self.follows_all else []
        labels = others if main is None or main in others else [main, *others]
        found = {
            label: contrast_outline(frame, self.scene, gain, parts.labels == label)
            for label in labels
        }
        outlined = None if main is None else found[main]
        if not self.follows_all:
            return outlined, None
        everything = np.zeros(frame.shape[:2], bool)
        for label in others:
            everything[found[label].box] |= found[label].clear
        within = _around([found[label].box for label in others])
        return outlined, find_pieces(everything, within)

    def _is_lit(self, frame: Pixels, part: NDArray[np.bool_]) -> bool:
        """Return whether a part shows the scene in different light: a lamp, or a shadow."""
        left, top, width, height = cv2.boundingRect(part.view(np.uint8))
        if not width:
            return False
        box = slice(top, top + height), slice(left, left + width)
        # The outline of an object that rests most of the time may also be in the backdrop.
        inside = cv2.erode(part[box].view(np.uint8), INWARDS, borderValue=0) > 0
        inside &= frame[box].max(-1) < OVEREXPOSED
        if np.count_nonzero(inside) < LEAST_TEXTURE:
            return False
        images = (texture(image[box].astype(np.float32)) for image in (frame, self.view.backdrop))
        return correlation(*(image[inside] for image in images)) > SAME_TEXTURE


def least_mass(clear: float, threshold: float) -> float:
    """Return the smallest sum of the evidence of a part that is outlined.

    Args:
        clear: That of a clear object.
        threshold: Evidence above which a pixel belongs to an object.
    """
    return max(LEAST_MASS * clear, threshold)


def _around(boxes: list[tuple[slice, slice]]) -> tuple[slice, slice]:
    """Return the smallest box around boxes."""
    if not boxes:
        return slice(0), slice(0)
    down, across = (
        slice(min(each.start for each in sides), max(each.stop for each in sides))
        for sides in zip(*boxes, strict=True)
    )
    return down, across


def _described(
    outlined: Outlined | None, evidence: Floats, size: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Return position, core and `lies_between` of an object in a frame of this size."""
    if outlined is None:
        return np.full(2, np.nan), np.full(3, np.nan), False
    mask = outlined.soft >= EDGE
    top, left = (side.start for side in outlined.box)
    place = np.array(mask_moments(mask, left, top)[:2]) / size[::-1]
    core = core_covariance(mask, evidence, (top, left), size)
    if np.isnan(place[0]):
        return place, core, False
    column, row = (place * size[::-1]).astype(int).tolist()
    return place, core, lies_between(mask, row - top, column - left)


def lies_between(mask: NDArray[np.bool_], row: int, column: int) -> bool:
    """Return whether the centroid of a mask lies between its pieces, as for two close objects.

    Args:
        mask: (height, width).
        row: Row of the centroid.
        column: Column of the centroid.

    Example:
        >>> mask = np.zeros((8, 20), bool)
        >>> mask[2:6, 2:6] = mask[2:6, 10:14] = True
        >>> lies_between(mask, 4, 8)
        True
        >>> mask[2, :] = True  # one piece
        >>> lies_between(mask, 4, 8)
        False
    """
    if mask[row, column]:
        return False
    return cv2.connectedComponents(mask.view(np.uint8), connectivity=8)[0] > 2


@dataclass
class ObjectFinder:
    """Finds and follows all objects seen by a still camera.

    Args:
        threshold: Evidence above which a pixel belongs to an object.
        patience: Frames after which an unseen object is given up.
    """

    threshold: float
    patience: int
    tracker: Tracker = field(init=False)
    typical: float | None = None

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.patience)

    def follow(self, frames: Frames, looks: Sequence[SeenFrame], evidence: Floats) -> Owners:
        """Follow all objects through the next window of frames.

        Args:
            frames: (time, height, width, 3) uint8.
            looks: What was seen in each frame, with the value of `typical` at that time.
            evidence: (time, rows, columns).

        Returns:
            (time, height, width) track number of each pixel; 0 for none.
        """
        if self.typical is None:
            self.typical = self._typical_area(frames.shape[1:3], looks, evidence)
        blobs = [look.blobs for look in looks if look.blobs is not None]
        if len(blobs) < len(looks):
            blobs = in_parallel(self._blobs, frames, looks, evidence)
        owners: Owners = memory.zeros(frames.shape[:3], np.uint16)
        for each, owner in zip(blobs, owners, strict=True):
            self.tracker.step(each, owner)
        return owners

    def _blobs(self, frame: Pixels, look: SeenFrame, evidence: Floats) -> Blobs:
        assert look.pieces is not None, "expected all objects"
        return join_pieces(frame, look.pieces, evidence, self.threshold, self.typical or 0.0)

    def _typical_area(
        self, size: tuple[int, ...], looks: Sequence[SeenFrame], evidence: Floats
    ) -> float | None:
        """Return the median area of clear objects, or else of all; None without objects."""
        areas, peaks = np.zeros(0), np.zeros(0)
        for look, strength in zip(looks, evidence, strict=True):
            if look.pieces is not None:
                areas = np.append(areas, look.pieces.areas)
                peaks = np.append(peaks, peaks_of(look.pieces, strength, size))
        # Noise just above the threshold may cover a large area.
        clear = areas[clarity(peaks, self.threshold) >= CLEAR]
        if not areas.size:
            return None
        return typical_area(clear if clear.size else areas)
