"""Evidence that teaches a network: what differs from the scene in frames spread over a recording.

It is as simple as it can be, and right in three cases that pull apart: something large that is in a
few frames only, an object that is in a few frames only, and objects that rest most of the time. It
need not see every object in every frame, because the network that it teaches learns what the
objects look like.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames
from ullayers.locate.moving.segment import reduced_size, resized
from ullayers.locate.scene.still import DARK, ENERGY_BLUR, NOISE_FLOOR
from ullayers.video.parallel import in_parallel

SIDE = 384  # pixels of the longer side at which evidence is computed
SCENE_SHARE = 0.3  # of the frames that must show the scene at a pixel
COLOURS = 9  # frames of which a colour of the scene is the median
NOISE_QUANTILE = 0.25  # of the difference from the scene: objects cover a pixel in fewer frames
QUANTILE_OF_NOISE = 0.75  # this quantile of the difference that noise makes, in units of the noise
LEAST = 4.0  # evidence of an object, in units of the noise
CONTRAST = 0.25  # of the usual contrast of the clearest object: least contrast of an object
APART = math.log(4), 3.5  # difference of two classes of frames: least, and in standard deviations
LEAST_CLASS = 0.1  # of the frames: if fewer show far more than the others, they are the exception
DOUBTFUL = 0.5  # of the threshold: what exceeds it is neither an object nor background
SMALLEST, LARGEST = 0.2, 4.0  # areas of an object, in units of the usual area
CROWDED = 3.0  # times the usual area of all objects: such a frame shows something else
LEAST_PIXELS = 3

OBJECT, UNKNOWN = 1, 255
SQUARE = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))


class Taught(NamedTuple):
    """What evidence teaches about frames.

    Attributes:
        labels: (time, rows, columns) `OBJECT`, 0 for the background, or `UNKNOWN`.
        trusted: (time,) whether the labels of a frame may be learned from.
        area: Median area of an object, in pixels of the labels.
    """

    labels: NDArray[np.uint8]
    trusted: NDArray[np.bool_]
    area: float


def teach(frames: Frames) -> Taught:
    """Return what evidence teaches about frames spread over a recording.

    Args:
        frames: (time, height, width, 3) uint8.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> frames = rng.normal(100, 2, (40, 48, 64, 3)).astype(np.uint8)
        >>> for t in range(40):
        ...     frames[t, 20:28, t : t + 8] = 160
        >>> frames[20] = 0  # someone walks past the camera
        >>> taught = teach(frames)
        >>> bool(taught.labels[5, 24, 9] == OBJECT), int(taught.labels[5, 8, 40])
        (True, 0)
        >>> np.flatnonzero(~taught.trusted).tolist(), 60 < taught.area < 130
        ([20], True)
    """
    evidence = _evidence(resized(frames, SIDE))
    floor = LEAST * max(1.0, float(np.median(evidence[:, ::4, ::4])))
    peaks = evidence.max((1, 2))
    shown = _showing(np.maximum(evidence - floor, 0).sum((1, 2), dtype=np.float64) + 1)
    threshold = max(floor, CONTRAST * float(np.median(peaks[shown])))
    parts = [_parts(values > threshold) for values in evidence]
    usual = _median(np.array([_middle(areas) for _, areas in parts])[shown])
    total = np.array([areas.sum() for _, areas in parts])
    labels = np.zeros(evidence.shape, np.uint8)
    kept: list[float] = []
    for label, values, (numbers, areas) in zip(labels, evidence, parts, strict=True):
        label[values > DOUBTFUL * threshold] = UNKNOWN
        fitting = (areas >= SMALLEST * usual) & (areas <= LARGEST * usual)
        label[np.concatenate([[False], fitting])[numbers]] = OBJECT
        kept += areas[fitting].tolist()
    trusted = total < CROWDED * max(1.0, _median(total[shown]))
    return Taught(labels, trusted, float(np.median(kept)) if kept else 0.0)


def _evidence(frames: Frames) -> Floats:
    """Return the (time, rows, columns) difference from the scene in units of the noise."""
    gains = np.array([_lightness(frame) for frame in frames])
    gains /= np.median(gains, 0)
    gain = np.median(gains.reshape(len(frames), -1), 1).astype(np.float32)
    scene = _scene(np.stack([_divided(*each) for each in zip(frames, gain, strict=True)]))
    # An edge that moves by a pixel is no evidence.
    low, high = cv2.erode(scene, SQUARE), cv2.dilate(scene, SQUARE)

    def difference(frame: NDArray[np.uint8], by: np.float32) -> tuple[Floats, Floats]:
        values = frame.astype(np.float32) / by
        strict = np.sqrt(np.square(values - scene).mean(-1))
        return strict, np.sqrt(np.square(np.maximum(values - high, low - values).clip(0)).mean(-1))

    both = in_parallel(difference, frames, gain)
    noise = np.quantile(np.stack([strict for strict, _ in both]), NOISE_QUANTILE, axis=0)
    noise = (noise / QUANTILE_OF_NOISE).astype(np.float32)
    noise = np.maximum(np.maximum(cv2.blur(noise, (5, 5)), noise), NOISE_FLOOR)
    blurred = [
        cv2.GaussianBlur(np.square(tolerant / noise), (0, 0), ENERGY_BLUR) for _, tolerant in both
    ]
    return np.sqrt(np.stack(blurred, dtype=np.float32))


def _lightness(frame: NDArray[np.uint8]) -> Floats:
    return np.asarray(frame[::4, ::4].mean(-1) + DARK, np.float32)


def _divided(frame: NDArray[np.uint8], gain: float) -> NDArray[np.uint8]:
    return np.asarray((frame / np.float32(gain)).clip(0, 255), np.uint8)


def _scene(frames: Frames) -> Floats:
    """Return the (rows, columns, 3) scene behind the objects.

    At each pixel, it is the middle of the shortest interval that contains a share of all values:
    people who stand there for most of the time move a little, the scene does not.
    """
    count = max(LEAST_PIXELS, round(SCENE_SHARE * len(frames)))
    places = np.linspace(0, count - 1, min(count, COLOURS)).astype(int)[:, None]

    def line(pixels: NDArray[np.uint8]) -> Floats:
        grey = pixels.mean(-1, dtype=np.float32)
        order = np.argsort(grey, axis=0, kind="stable")
        values = np.take_along_axis(grey, order, 0)
        start = (values[count - 1 :] - values[: len(values) - count + 1]).argmin(0)
        chosen = np.take_along_axis(order, start + places, 0)
        colours = np.take_along_axis(pixels, chosen[..., None], 0)
        return np.asarray(np.median(colours, 0), np.float32)

    return np.stack(in_parallel(line, frames.swapaxes(0, 1)))


def _showing(mass: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which frames show what is looked for, from the sum of the evidence of each.

    Frames may form two classes. The upper one shows an object that comes and goes, or, if it is
    small, something else that passes.

    >>> _showing(np.array([1.0, 2, 1, 2, 1, 900, 800, 950, 870, 910])).nonzero()[0].tolist()
    [5, 6, 7, 8, 9]
    >>> _showing(np.array([100.0, 120, 90] * 10 + [1e5])).sum()
    np.int64(30)
    """
    values = np.log(np.sort(mass))
    count = len(values)
    everything = np.ones(count, bool)
    lower = np.arange(1, count)
    if not len(lower):
        return everything
    sums = np.cumsum(values)
    below, above = sums[:-1] / lower, (sums[-1] - sums[:-1]) / (count - lower)
    cut = int(np.argmax(lower * (count - lower) * np.square(above - below)))
    apart = float(above[cut] - below[cut])
    inside = np.concatenate([values[: cut + 1] - below[cut], values[cut + 1 :] - above[cut]])
    if apart < APART[0] or apart < APART[1] * float(np.sqrt(np.square(inside).mean())):
        return everything
    upper: NDArray[np.bool_] = np.log(mass) >= values[cut + 1]
    return upper if upper.mean() >= LEAST_CLASS else ~upper


def _parts(inside: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the (rows, columns) number of the part of each pixel, and the areas from number 1."""
    _, numbers, stats, _ = cv2.connectedComponentsWithStats(inside.view(np.uint8), connectivity=8)
    areas = stats[1:, cv2.CC_STAT_AREA].astype(float)
    areas[areas < LEAST_PIXELS] = 0
    return np.asarray(numbers, np.int32), areas


def _middle(areas: NDArray[np.float64]) -> float:
    """Return the area of the part in which the median pixel lies; 0 without parts."""
    ordered = np.sort(areas)
    total = np.cumsum(ordered)
    if not len(total) or not total[-1]:
        return 0.0
    return float(ordered[np.searchsorted(total, total[-1] / 2)])


def _median(values: NDArray[np.float64]) -> float:
    """Return the median of the positive values; 0 if there are none."""
    found = values[values > 0]
    return float(np.median(found)) if len(found) else 0.0


def working_size(height: int, width: int, area: float, wanted: float) -> tuple[int, int]:
    """Return the height and width at which an object has the wanted area, in multiples of eight.

    Args:
        height: Height of the frames.
        width: Width of the frames, the largest that is returned.
        area: Area of an object in pixels of the labels of `teach`.
        wanted: Wanted area in pixels.

    >>> working_size(480, 640, area=288.0, wanted=72.0)
    (144, 192)
    """
    rows, columns = reduced_size(height, width, SIDE)
    longest, shortest = max(height, width), 12 * 8
    side = max(rows, columns) * math.sqrt(wanted / max(area, 1.0))
    scale = min(max(side, shortest), longest) / longest
    tall, wide = (max(2, round(scale * each / 8)) * 8 for each in (height, width))
    return tall, wide
