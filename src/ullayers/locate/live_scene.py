"""The scene of a still camera, learned while frames arrive."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Pixels
from ullayers.locate.learned_scene import BANDS, NOISE_BLUR
from ullayers.locate.resting import RESTING_FRAMES, RESTING_PIXELS
from ullayers.locate.scene_median import MEDIAN_DEVIATION
from ullayers.locate.segment import FITTING, still_threshold
from ullayers.locate.still import (
    ENERGY_BLUR,
    MEAN,
    MIN_STILL_EVIDENCE,
    NOISE_FLOOR,
    StillScene,
    edges,
)

RATE = 0.02  # rate at which the scene follows the frames
OUTLIER = 3.0  # times the noise: a larger difference counts as this much
FADING = 0.5  # grey levels per frame at which something that stays becomes part of the scene,
HOLD = 64.0  # and this many times slower, if it is an object
MARGIN = np.ones((5, 5), np.uint8)  # pixels around an object that do not change the scene
OUTLINE = np.ones((3, 3), np.uint8)
RESTING_EDGES = 1.5  # edges of the scene are this many times stronger where an object has left
BORDER = 6  # pixels around something within which its edges are computed
CHECK_INTERVAL = 8  # frames between two updates of the threshold
THRESHOLD_RATE = 0.1
VACATED_INTERVAL = 4  # frames between two checks for objects that have left, if all are known
CHANGED = 0.5  # share of the frame: if more stands out, the scene has changed

Mask = NDArray[np.bool_]


class ComparedFrame(NamedTuple):
    """A frame compared with the scene.

    Attributes:
        scene: The scene before this frame.
        gain: Gain of the light.
        offset: (height, width, 3) difference from the scene, without light changes.
        difference: (height, width) length of the offset.
        evidence: (height, width) the same in units of the noise.
    """

    scene: StillScene
    gain: Floats
    offset: Floats
    difference: Floats
    evidence: Floats


class LiveScene:
    """The scene of a still camera without moving objects, from the frames so far.

    Something that stays becomes part of the scene, an object only after a long time. When it then
    leaves, the scene behind it is learned within a few frames.

    Attributes:
        count: Number of frames since the scene changed.
        backdrop: (height, width, 3) the scene.
        level: (height, width) usual difference of a frame from the scene.
        vacated: (height, width) number of frames for which an object seems to have left.
        bands: Whether each row has its own gain.
        threshold: Evidence above which a pixel belongs to something.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scene, nothing = LiveScene(), np.zeros((24, 32), bool)
        >>> for frame in rng.normal(100, 4, (20, 24, 32, 3)).astype(np.uint8):
        ...     look = scene.look(frame)
        ...     scene.update(look, nothing, nothing)
        >>> frame[10:14, 10:14] = 180
        >>> bool((scene.look(frame).evidence > scene.threshold)[10:14, 10:14].all())
        True
    """

    def __init__(self) -> None:
        self.count = 0
        self.backdrop = np.zeros((0, 0, 3), np.float32)
        self.level = np.zeros((0, 0), np.float32)
        self.vacated = np.zeros((0, 0), np.uint8)
        self.bands = False
        self.threshold = MIN_STILL_EVIDENCE

    def look(self, frame: Pixels) -> ComparedFrame:
        """Compare a frame (height, width, 3) with the scene so far."""
        if self.count == 0 or frame.shape != self.backdrop.shape:
            self._start(frame)
        noise = cv2.GaussianBlur(self.level, (0, 0), NOISE_BLUR) / MEDIAN_DEVIATION
        scene = StillScene(self.backdrop, np.maximum(noise, NOISE_FLOOR), self.bands)
        gain = scene.gain(frame)
        offset = np.asarray(frame / gain - self.backdrop, np.float32)
        difference = np.sqrt(np.asarray(cv2.transform(offset * offset, MEAN), np.float32))
        if self.count == 1:  # the noise is not known yet
            self.level[:] = np.median(difference)
            noise = np.maximum(self.level / MEDIAN_DEVIATION, NOISE_FLOOR)
            scene = StillScene(self.backdrop, noise, self.bands)
        squares = cv2.GaussianBlur(np.square(difference / scene.noise), (0, 0), ENERGY_BLUR)
        look = ComparedFrame(
            scene, gain, offset, difference, np.sqrt(np.asarray(squares, np.float32))
        )
        if self.count % CHECK_INTERVAL == 1:
            self._adjust(frame, look)
        return look

    def fits(self, frame: Pixels) -> bool:
        """Return whether a frame shows the scene so far, regardless of moving objects."""
        if self.count == 0 or frame.shape != self.backdrop.shape:
            return False
        noise = np.maximum(self.level / MEDIAN_DEVIATION, NOISE_FLOOR)
        scene = StillScene(self.backdrop, noise, self.bands)
        return bool(np.median(scene.evidence(frame)[::2, ::2]) < FITTING)

    def _start(self, frame: Pixels) -> None:
        self.count = 0
        self.backdrop = frame.astype(np.float32)
        self.level = np.zeros(frame.shape[:2], np.float32)
        self.vacated = np.zeros(frame.shape[:2], np.uint8)

    def _adjust(self, frame: Pixels, look: ComparedFrame) -> None:
        """Adjust the threshold to the evidence, and the gain to the kind of light."""
        wanted = still_threshold(look.evidence[::2, ::2])
        rate = max(CHECK_INTERVAL / (CHECK_INTERVAL + self.count), THRESHOLD_RATE)
        self.threshold += rate * (wanted - self.threshold)
        plain, banded = (
            np.median(StillScene(self.backdrop, self.level, bands).difference(frame)[::2, ::2])
            for bands in (False, True)
        )
        self.bands = bool(banded < BANDS * plain)

    def update(self, look: ComparedFrame, things: Mask, held: Mask) -> None:
        """Update the scene with a frame.

        Args:
            look: The frame, from `look`.
            things: (height, width) pixels that stand out.
            held: Those of them that belong to objects.
        """
        if things.mean() > CHANGED:
            self.count = 0
            return
        self.count += 1
        rate = max(1 / (self.count + 1), RATE)
        near = cv2.dilate(things.astype(np.uint8), MARGIN) > 0
        kept = cv2.dilate(held.astype(np.uint8), MARGIN) > 0
        most = rate * OUTLIER * look.scene.noise
        most = np.where(near, np.float32(FADING), most)
        most = np.where(kept, np.float32(FADING / HOLD), most)[..., None]
        self.backdrop = self.backdrop + np.clip(rate * look.offset, -most, most)
        change = np.minimum(look.difference, OUTLIER * look.scene.noise) - self.level
        self.level = self.level + np.where(near, 0, rate * change).astype(np.float32)
        if self.count % VACATED_INTERVAL == 0 or (things & ~held).any():
            self._forget_vacated(look, things)

    def _forget_vacated(self, look: ComparedFrame, things: Mask) -> None:
        """Replace the scene where an outline has edges in the scene but not in the frame."""
        if not things.any():
            self.vacated[:] = 0
            return
        frame = look.scene.backdrop + look.offset
        images = edges(look.scene.backdrop), edges(frame)
        # An object that moves by less than its length vacates a place next to itself. One of the
        # two is brighter than the scene, the other one darker.
        brighter = look.offset.sum(2) > 0
        left = _vacated(things & brighter, *images) | _vacated(things & ~brighter, *images)
        self.vacated = np.where(left, self.vacated + 1, 0).astype(np.uint8)
        behind = self.vacated >= RESTING_FRAMES
        if behind.any():
            self.backdrop = np.where(behind[..., None], frame, self.backdrop)
            self.vacated[behind] = 0


def is_in_front(look: ComparedFrame, thing: Mask) -> bool:
    """Return whether something is in front of the scene: its outline is an edge of the frame only.

    This is not the case for the place of an object that has left, for the part of an object that
    has moved by less than its length, or for a change of light.

    Args:
        look: The frame, compared with the scene.
        thing: (height, width) its pixels.
    """
    left, top, width, height = cv2.boundingRect(thing.view(np.uint8))
    around = tuple(
        slice(max(0, start - BORDER), start + extent + BORDER)
        for start, extent in ((top, height), (left, width))
    )
    mask = thing[around].astype(np.uint8)
    backdrop = look.scene.backdrop[around]
    outline = (cv2.dilate(mask, OUTLINE) > 0) & (cv2.erode(mask, OUTLINE, borderValue=0) == 0)
    scene, frame = (
        float(edges(image)[outline].sum()) for image in (backdrop, backdrop + look.offset[around])
    )
    return frame > RESTING_EDGES * scene


def _vacated(things: Mask, in_scene: Floats, in_frame: Floats) -> Mask:
    """Return the regions, and the pixels around them, whose outline is an edge of the scene.

    Args:
        things: (height, width) mask of regions that stand out.
        in_scene: (height, width) strength of the edges of the scene.
        in_frame: Strength of the edges of the frame.
    """
    mask = things.astype(np.uint8)
    count, labels = cv2.connectedComponents(mask, connectivity=8)
    inside = cv2.dilate(labels.astype(np.float32), OUTLINE).astype(np.int32)
    outline = (inside > 0) & (cv2.erode(mask, OUTLINE, borderValue=0) == 0)
    number = inside[outline]
    scene, frame = (np.bincount(number, image[outline], count) for image in (in_scene, in_frame))
    large = np.bincount(labels.ravel(), minlength=count) >= RESTING_PIXELS
    left: Mask = (large & (scene > RESTING_EDGES * frame))[inside]
    return left & (inside > 0)
