"""Evidence of motion before a still camera: the difference from the scene without its objects.

The scene is learned from frames that are spread over the whole recording: the median of every pixel
(objects that move leave no trace in it) and its noise (a lamp that flickers, or leaves in the wind,
are noise). Changes of the light are removed first, as a gain of the whole frame or, under mains
light that flickers during the exposure, as a gain of every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels

BANDS = 0.9  # rows have their own gain if that reduces the difference to this share
NOISE_FLOOR = 1.0  # grey levels: compression hides smaller noise
DARK = 16.0  # grey levels: added before dividing, as gains of dark pixels are uncertain
BAND_SMOOTHING = 0.01  # of the height: bands are smoother than this
ENERGY_BLUR = 1.0  # pixels
# The median of the absolute value of a normal deviate is 0.67 standard deviations.
MEDIAN_DEVIATION = 0.67
NOISE_BLUR = 2.0  # pixels
ROW_BYTES = 2**26  # memory for the median over time of a band of rows

# Objects that rest for more than half of the time are in the median and must be removed from it.
RESTING_EVIDENCE = 6.0  # times the noise
RESTING_PIXELS = 9  # smaller differences are not checked
RESTING_EDGES = 1.5  # edges of the backdrop must be this much stronger than those of the frame
RESTING_FRAMES = 3  # frames that must show the same scene behind the object
RESTING_SAME = 2.0  # times the noise: smaller differences are the same


@dataclass(frozen=True)
class StillScene:
    """What a still camera sees if nothing moves.

    Attributes:
        backdrop: (height, width, 3) median of every pixel.
        noise: (height, width) standard deviation of the difference from it, in grey levels.
        bands: Whether every row has a gain of its own.
    """

    backdrop: Floats
    noise: Floats
    bands: bool

    def resized(self, height: int, width: int) -> StillScene:
        """Return the scene for smaller frames, whose noise is smaller as well."""
        if self.noise.shape == (height, width):
            return self
        backdrop, noise = _resize(self.backdrop, height, width), _resize(self.noise, height, width)
        averaged = min(1.0, float(np.sqrt(noise.size / self.noise.size)))
        return StillScene(backdrop, np.maximum(noise * averaged, NOISE_FLOOR), self.bands)

    @cached_property
    def _lightness(self) -> Floats:
        return np.asarray(cv2.transform(self.backdrop, GREY) + DARK, np.float32)

    def gain(self, frame: Pixels) -> Floats:
        """Return the gain of the light: one number, or one for every row."""
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        if not self.bands:
            ratio = (grey[::2, ::2] + np.float32(DARK)) / self._lightness[::2, ::2]
            return np.full((1, 1, 1), np.median(ratio), np.float32)
        ratio = (grey[:, ::2] + np.float32(DARK)) / self._lightness[:, ::2]
        rows = np.median(ratio, axis=1).astype(np.float32)
        sigma = max(0.5, BAND_SMOOTHING * len(rows))
        smooth = np.asarray(cv2.GaussianBlur(rows, (1, 0), 0, sigmaY=sigma), np.float32)
        return smooth.reshape(-1, 1, 1)

    def levelled(self, frame: Pixels) -> Pixels:
        """Remove light changes from a frame."""
        return (frame / self.gain(frame)).round().clip(0, 255).astype(np.uint8)

    def difference(self, frame: Pixels, gain: Floats | None = None) -> Floats:
        """Return the difference of a frame from the scene in grey levels, without light changes.

        Args:
            frame: (height, width, 3) uint8.
            gain: From `gain`, if it is known.
        """
        values = frame / (self.gain(frame) if gain is None else gain)
        values -= self.backdrop
        squares = np.asarray(cv2.transform(np.square(values, out=values), MEAN), np.float32)
        return np.sqrt(squares)

    def evidence(self, frame: Pixels, gain: Floats | None = None) -> Floats:
        """Return the (height, width) difference of a frame in units of the noise.

        Args:
            frame: (height, width, 3) uint8.
            gain: From `gain`, if it is known.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> frames = rng.normal(100, 4, (50, 24, 32, 3)).astype(np.uint8)
            >>> scene = still_scene(frames)
            >>> frames[7, 10:14, 10:14] = 180
            >>> found = scene.evidence(frames[7])
            >>> bool(found[10:14, 10:14].min() > 5), bool(np.median(found) < 2)
            (True, True)
        """
        squares = np.square(self.difference(frame, gain) / self.noise)
        blurred = np.asarray(cv2.GaussianBlur(squares, (0, 0), ENERGY_BLUR), np.float32)
        return np.sqrt(blurred)


MEAN = np.full((1, 3), 1 / 3, np.float32)
GREY = np.array([[0.299, 0.587, 0.114]], np.float32)


def still_scene(sample: Frames) -> StillScene:
    """Learn the scene from frames that are spread over a recording.

    Args:
        sample: (time, height, width, 3) uint8; some tens of frames are enough.
    """
    flat = np.ones(sample.shape[1:3], np.float32)
    scene = StillScene(_median_over_time(sample), flat, bands=False)
    scene = StillScene(scene.backdrop, flat, bands=_has_bands(sample, scene))
    levelled = np.stack([scene.levelled(frame) for frame in sample])
    scene = StillScene(_median_over_time(levelled), flat, scene.bands)
    differences = np.stack([scene.difference(frame) for frame in sample])
    noise = cv2.GaussianBlur(_median_over_time(differences), (0, 0), NOISE_BLUR) / MEDIAN_DEVIATION
    scene = StillScene(scene.backdrop, np.maximum(noise, NOISE_FLOOR), scene.bands)
    return _without_resting(scene, levelled)


def _median_over_time(frames: NDArray[np.uint8] | Floats) -> Floats:
    """Return the median of every pixel, computed in bands of rows to bound memory."""
    middle = np.empty(frames.shape[1:], np.float32)
    rows = max(1, ROW_BYTES // (8 * frames[:, 0].size))
    for top in range(0, len(middle), rows):
        middle[top : top + rows] = np.median(frames[:, top : top + rows], axis=0)
    return middle


def _has_bands(sample: Frames, scene: StillScene) -> bool:
    """Whether a gain for every row explains the frames clearly better than one for all."""
    banded = StillScene(scene.backdrop, scene.noise, bands=True)
    plain = np.mean([np.median(scene.difference(frame)) for frame in sample[::4]])
    return bool(np.mean([np.median(banded.difference(f)) for f in sample[::4]]) < BANDS * plain)


def _without_resting(scene: StillScene, levelled: Frames) -> StillScene:
    """Remove objects that rest for more than half of the time.

    Where such an object has left, frames differ from the backdrop, but the outline of the
    difference has edges in the backdrop and none in the frame. There, the frame shows the scene.
    """
    backdrop = scene.backdrop.copy()
    for frame in levelled:
        seen = StillScene(backdrop, scene.noise, bands=False)
        mask = (seen.evidence(frame) > RESTING_EVIDENCE).astype(np.uint8)
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
        images = edges(frame.astype(np.float32)), edges(backdrop)
        for number in range(1, count):
            if stats[number, cv2.CC_STAT_AREA] < RESTING_PIXELS:
                continue
            part = (labels == number).astype(np.uint8)
            inside = cv2.dilate(part, SQUARE) > 0
            outline = inside & (cv2.erode(part, SQUARE, borderValue=0) == 0)
            in_frame, in_backdrop = (float(np.mean(edge[outline])) for edge in images)
            if in_backdrop > RESTING_EDGES * in_frame:
                alike = _frames_alike(levelled, frame, inside, scene.noise)
                if alike.sum() >= RESTING_FRAMES:
                    backdrop[inside] = np.median(levelled[alike][:, inside], axis=0)
    return StillScene(backdrop, scene.noise, scene.bands)


SQUARE = np.ones((3, 3), np.uint8)


def _frames_alike(
    levelled: Frames, frame: Pixels, inside: NDArray[np.bool_], noise: Floats
) -> NDArray[np.bool_]:
    """Return which frames show the same as `frame` in a region."""
    difference = levelled[:, inside].astype(np.float32) - frame[inside]
    length = np.sqrt(np.square(difference).mean(-1)) / noise[inside]
    alike: NDArray[np.bool_] = np.median(length, axis=1) < RESTING_SAME
    return alike


def edges(image: Floats) -> Floats:
    """Return the length of the gradient of the grey image."""
    grey = cv2.GaussianBlur(cv2.transform(image, GREY), (0, 0), 1.0)
    across, down = cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    return np.asarray(cv2.magnitude(across, down), np.float32)


def _resize(values: Floats, height: int, width: int) -> Floats:
    return np.asarray(cv2.resize(values, (width, height), interpolation=cv2.INTER_AREA), np.float32)
