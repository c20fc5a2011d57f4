"""The scene of a still camera, and evidence against it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np

from ullayers.locate.flow import Floats, Pixels

NOISE_FLOOR = 1.0  # smallest noise in grey levels; compression hides smaller noise
DARK = 16.0  # grey levels added before dividing, because gains of dark pixels are uncertain
BAND_SMOOTHING = 0.01  # standard deviation of the filter of row gains, as a share of the height
ENERGY_BLUR = 1.0  # standard deviation of the filter of the evidence, in pixels
DETAIL = 1.0  # size of the finest details of a texture in pixels; the coarsest are four times this
COMMON_SHARE = 0.25  # this quantile of the evidence of a frame is not affected by objects
NOISE_SHARE = 0.4  # smallest value of this quantile if there is any noise
RAISED = 1.5  # a frame whose quantile is this many times the usual one differs everywhere
MIN_STILL_EVIDENCE = 3.0  # smallest evidence of an object, in units of the noise
SAME_TEXTURE = 0.6  # smallest correlation of the edges of two images of the same texture


def quantiles(values: Floats, share: float) -> Floats:
    """Return a quantile along the last axis, interpolated linearly.

    >>> quantiles(np.array([[4, 1, 3, 2], [8, 8, 8, 9]], np.float32), 0.5).tolist()
    [2.5, 8.0]
    """
    count = values.shape[-1]
    place = share * (count - 1)
    first = int(place)
    ordered = np.partition(values, first, axis=-1)
    low: Floats = ordered[..., first]
    if first + 1 == count:
        return low
    high = ordered[..., first + 1 :].min(axis=-1)
    between: Floats = low + (high - low) * (place - first)
    return between


def medians(values: Floats) -> Floats:
    """Return the medians along the last axis, of values without NaN.

    >>> medians(np.array([[1, 4, 2], [8, 6, 7]], np.float32)).tolist()
    [2.0, 7.0]
    """
    count = values.shape[-1]
    ordered = np.partition(values, count // 2, axis=-1)
    high: Floats = ordered[..., count // 2]
    if count % 2:
        return high
    low = ordered[..., : count // 2].max(axis=-1)
    middle: Floats = np.asarray((low + high) / 2, values.dtype)
    return middle


@dataclass(frozen=True)
class StillScene:
    """The scene of a still camera, without moving objects.

    Attributes:
        backdrop: (height, width, 3) median of each pixel.
        noise: (height, width) standard deviation of the difference from it, in grey levels.
        bands: Whether each row has its own gain.
    """

    backdrop: Floats
    noise: Floats
    bands: bool

    def resized(self, height: int, width: int) -> StillScene:
        """Return the scene at a smaller size, at which the noise is smaller too."""
        if self.noise.shape == (height, width):
            return self
        backdrop, noise = _resize(self.backdrop, height, width), _resize(self.noise, height, width)
        averaged = min(1.0, float(np.sqrt(noise.size / self.noise.size)))
        return StillScene(backdrop, np.maximum(noise * averaged, NOISE_FLOOR), self.bands)

    @cached_property
    def _lightness(self) -> Floats:
        return np.asarray(cv2.transform(self.backdrop, GREY) + DARK, np.float32)

    def gain(self, frame: Pixels) -> Floats:
        """Return the gain of the light: one number, or one for each row."""
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        if not self.bands:
            ratio = (grey[::2, ::2] + np.float32(DARK)) / self._lightness[::2, ::2]
            return np.full((1, 1, 1), medians(ratio.ravel()), np.float32)
        ratio = (grey[:, ::2] + np.float32(DARK)) / self._lightness[:, ::2]
        rows = medians(ratio)
        sigma = max(0.5, BAND_SMOOTHING * len(rows))
        smooth = np.asarray(cv2.GaussianBlur(rows, (1, 0), 0, sigmaY=sigma), np.float32)
        return smooth.reshape(-1, 1, 1)

    def levelled(self, frame: Pixels) -> Pixels:
        """Remove changes of light from a frame."""
        return divided(frame, self.gain(frame)).round().clip(0, 255).astype(np.uint8)

    def difference(self, frame: Pixels, gain: Floats | None = None) -> Floats:
        """Return the difference of a frame from the scene in grey levels, without changes of light.

        Args:
            frame: (height, width, 3) uint8.
            gain: From `gain`, if it is known.
        """
        values = divided(frame, self.gain(frame) if gain is None else gain)
        values -= self.backdrop
        return self._length(values)

    def distance(self, levelled: Floats) -> Floats:
        """Return the difference of a levelled frame from the scene, in grey levels.

        Args:
            levelled: (height, width, 3), divided by `gain`.
        """
        return self._length(np.asarray(cv2.subtract(levelled, self.backdrop), np.float32))

    def distance_of_colour(self, colour: Floats) -> Floats:
        """Return the difference of a single colour (3,) from the scene, in grey levels."""
        values = cv2.subtract(self.backdrop, np.array([*colour, 0.0], np.float64))
        return self._length(np.asarray(values, np.float32))

    def _length(self, values: Floats) -> Floats:
        """Return the root of the mean square over colours; the values are overwritten."""
        squares = np.asarray(cv2.transform(np.square(values, out=values), MEAN), np.float32)
        return np.asarray(cv2.sqrt(squares, squares), np.float32)

    def evidence(self, frame: Pixels, gain: Floats | None = None) -> Floats:
        """Return the (height, width) difference of a frame in units of the noise.

        Args:
            frame: (height, width, 3) uint8.
            gain: From `gain`, if it is known.

        Example:
            >>> from ullayers.locate.scene.background import still_scene
            >>> rng = np.random.default_rng(0)
            >>> frames = rng.normal(100, 4, (50, 24, 32, 3)).astype(np.uint8)
            >>> scene = still_scene(frames)
            >>> frames[7, 10:14, 10:14] = 180
            >>> found = scene.evidence(frames[7])
            >>> bool(found[10:14, 10:14].min() > 5), bool(np.median(found) < 2)
            (True, True)
        """
        relative = self.difference(frame, gain)
        relative /= self.noise
        squares = np.square(relative, out=relative)
        blurred = np.asarray(cv2.GaussianBlur(squares, (0, 0), ENERGY_BLUR), np.float32)
        return np.asarray(cv2.sqrt(blurred, blurred), np.float32)


def divided(frame: Pixels, gain: Floats) -> Floats:
    """Divide a frame by a gain, given as (1, 1, 1) or as (height, 1, 1).

    >>> divided(np.full((2, 2, 3), 6, np.uint8), np.full((1, 1, 1), 4, np.float32))[0, 0].tolist()
    [1.5, 1.5, 1.5]
    """
    values = frame.astype(np.float32)
    values /= gain
    return values


def common_evidence(evidence: Floats) -> float:
    """Return the evidence that most of a frame exceeds: a quantile, computed ten times faster."""
    some = evidence[::4, ::4].ravel()
    rank = int(COMMON_SHARE * some.size)
    return float(np.partition(some, rank)[rank])


def without_common(evidence: Floats, usual: float) -> Floats:
    """Set evidence to 0 where it does not exceed that of the rest of the frame.

    A codec changes the whole frame slightly at each key frame, which the noise does not include.

    Args:
        evidence: (height, width) of a frame, in units of the noise.
        usual: Usual value of `common_evidence`.

    Example:
        >>> evidence = np.full((40, 40), 2.0, np.float32)
        >>> evidence[:2, :5] = 8
        >>> evidence[8:20, 8:20] = 30
        >>> np.unique(without_common(evidence, usual=2.0)).tolist()
        [2.0, 8.0, 30.0]
        >>> np.unique(without_common(evidence, usual=0.5)).tolist()
        [0.0, 30.0]
    """
    raised = common_evidence(evidence) / max(usual, NOISE_SHARE)
    if raised < RAISED:
        return evidence
    return np.where(evidence < MIN_STILL_EVIDENCE * raised, np.float32(0), evidence)


MEAN = np.full((1, 3), 1 / 3, np.float32)
GREY = np.array([[0.299, 0.587, 0.114]], np.float32)


def correlation(first: Floats, second: Floats) -> float:
    """Return the correlation of two arrays of the same shape; 0 if one of them is constant."""
    a, b = (values.ravel() - values.mean() for values in (first, second))
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 0.0


def edges(image: Floats) -> Floats:
    """Return the length of the gradient of the grey image."""
    grey = cv2.GaussianBlur(cv2.transform(image, GREY), (0, 0), 1.0)
    across, down = cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    return np.asarray(cv2.magnitude(across, down), np.float32)


def texture(image: Floats) -> Floats:
    """Return the details of the grey image; light changes their strength but not their shape."""
    grey = cv2.transform(image, GREY)
    fine, coarse = (cv2.GaussianBlur(grey, (0, 0), sigma) for sigma in (DETAIL, 4 * DETAIL))
    return np.asarray(fine - coarse, np.float32)


def _resize(values: Floats, height: int, width: int) -> Floats:
    return np.asarray(cv2.resize(values, (width, height), interpolation=cv2.INTER_AREA), np.float32)
