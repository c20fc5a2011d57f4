"""What is behind the objects of a moving camera: medians of other frames along its path."""

from __future__ import annotations

from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames
from ullayers.locate.parallel import in_parallel

LARGEST_MOSAIC = 3.0  # largest side of the mosaic, in sides of a frame; the rest is cut off
MOST_COMPARED = 16  # frames that are sorted by comparing neighbours
ROW_BYTES = 2**26  # memory for the median over time of a band of rows
REACH = 10  # frames before and after a frame that are its neighbours
NEIGHBOURS = 10  # frames that are used of them
LEAST_NEIGHBOURS = 4  # frames that must show a pixel
MEAN = np.full((1, 3), 1 / 3, np.float32)
OUTSIDE = (np.nan, np.nan, np.nan)  # colour of pixels outside a frame

Pixels = NDArray[np.uint8]
Matrix = NDArray[np.float64]


def difference_from_mosaic(frames: Frames, path: Matrix) -> Floats:
    """Return the difference of each frame from the median of all frames, in grey levels.

    Pixels outside the mosaic are NaN.

    Args:
        frames: (time, height, width, 3) uint8.
        path: (time, 3, 3) homographies from each frame to the middle one.
    """
    height, width = frames.shape[1:3]
    to_mosaic, size = _mosaic_frame(path, height, width)
    mosaic = _median_mosaic(frames, to_mosaic, size)

    def difference(frame: Pixels, matrix: Matrix) -> Floats:
        background = cv2.warpPerspective(
            mosaic, np.linalg.inv(matrix), (width, height), borderValue=OUTSIDE
        )
        return _smallest_difference(frame, cast("Floats", background))

    return np.stack(in_parallel(difference, frames, to_mosaic))


def difference_from_neighbours(frames: Frames, path: Matrix) -> Floats:
    """Return the difference of each frame from the median of its neighbours, in grey levels.

    Over a few frames, the path of the camera is accurate and smoke or foam change little, but an
    object must move by half of its size to be seen. Pixels that too few neighbours show are NaN.

    Args:
        frames: (time, height, width, 3) uint8.
        path: (time, 3, 3) homographies from each frame to the middle one.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scene = cv2.GaussianBlur(rng.integers(0, 255, (40, 96, 3), np.uint8), (0, 0), 2)
        >>> frames = np.stack([scene[:, 3 * t : 3 * t + 60] for t in range(12)])  # a pan
        >>> frames[:, 10:20, 30:40] = 255  # that follows an object
        >>> shift = np.array([[[1.0, 0, 3 * (t - 6)], [0, 1, 0], [0, 0, 1]] for t in range(12)])
        >>> found = difference_from_neighbours(frames, shift)[5]
        >>> bool(found[12:18, 32:38].mean() > 50), bool(np.nanmean(found[25:]) < 1)
        (True, True)
    """
    count, height, width = frames.shape[:3]
    values = frames.astype(np.float32)
    least = min(LEAST_NEIGHBOURS, max(1, count // 2))

    def difference(t: int) -> Floats:
        to_frame = np.linalg.inv(path[t])
        shown = np.stack(
            [
                cv2.warpPerspective(
                    values[k], to_frame @ path[k], (width, height), borderValue=OUTSIDE
                )
                for k in neighbours(t, count)
            ]
        )
        return _smallest_difference(frames[t], _median(shown, least))

    return np.stack(in_parallel(difference, range(count)))


def neighbours(t: int, count: int) -> list[int]:
    """Return the numbers of frames near frame `t` of `count` frames.

    At the ends of the window they span as many frames as elsewhere, so that objects move as far.

    >>> neighbours(30, 90)
    [20, 22, 24, 27, 29, 31, 33, 36, 38, 40]
    """
    first = max(0, min(t - REACH, count - 1 - 2 * REACH))
    last = min(count - 1, first + 2 * REACH)
    spread = np.linspace(first, last, NEIGHBOURS).round().astype(int)
    return [int(k) for k in np.unique(spread) if k != t]


def _median(values: Floats, least: int = 1) -> Floats:
    """Return the median over time of the values that are not NaN.

    Args:
        values: (time, height, width, 3); sorted in place.
        least: Pixels that fewer frames show are NaN.
    """
    count = len(values)
    known = count - np.count_nonzero(np.isnan(values[..., 0]), axis=0)
    np.copyto(values, np.inf, where=np.isnan(values))
    if count > MOST_COMPARED:
        values.sort(axis=0)
    else:
        _sort_over_time(values)
    median: Floats = (values[(count - 1) // 2] + values[count // 2]) / 2
    partly = (known >= least) & (known < count)
    some, seen = values[:, partly], known[partly]
    each = np.arange(len(seen))
    median[partly] = (some[(seen - 1) // 2, each] + some[seen // 2, each]) / 2
    median[known < least] = np.nan
    return median


def _sort_over_time(values: Floats) -> None:
    """Sort a few images pixel by pixel, by comparing neighbours until all are in order.

    Whole images are compared at once, which is several times faster than sorting each pixel.
    """
    smaller = np.empty_like(values[0])
    for turn in range(len(values)):
        for first in range(turn % 2, len(values) - 1, 2):
            np.minimum(values[first], values[first + 1], out=smaller)
            np.maximum(values[first], values[first + 1], out=values[first + 1])
            values[first] = smaller


def _mosaic_frame(path: Matrix, height: int, width: int) -> tuple[Matrix, tuple[int, int]]:
    """Return homographies from each frame to the mosaic, and the mosaic's (width, height)."""
    corners = np.array([[[0, 0], [width, 0], [width, height], [0, height]]], np.float64)
    seen = np.concatenate([cv2.perspectiveTransform(corners, matrix)[0] for matrix in path])
    side = np.array([width, height])
    margin = (LARGEST_MOSAIC - 1) / 2 * side
    low = np.maximum(np.floor(seen.min(0)), -margin)
    high = np.minimum(np.ceil(seen.max(0)), side + margin)
    shift = np.array([[1, 0, -low[0]], [0, 1, -low[1]], [0, 0, 1]])
    columns, rows = (high - low).astype(int)
    return shift @ path, (int(columns), int(rows))


def _median_mosaic(frames: Frames, to_mosaic: Matrix, size: tuple[int, int]) -> Floats:
    """Return the median of all frames along the camera's path, in bands of rows."""
    width, height = size
    rows = max(1, ROW_BYTES // (len(frames) * width * 3 * 4))
    mosaic = np.empty((height, width, 3), np.float32)
    for top in range(0, height, rows):
        count = min(rows, height - top)
        band = np.array([[1, 0, 0], [0, 1, -top], [0, 0, 1]])
        warped = np.stack(
            [
                _warp_with_gaps(frame, band @ matrix, (width, count))
                for frame, matrix in zip(frames, to_mosaic, strict=True)
            ]
        )
        mosaic[top : top + count] = _median(warped)
    return mosaic


def _warp_with_gaps(frame: Pixels, matrix: Matrix, size: tuple[int, int]) -> Floats:
    """Warp a frame; pixels outside it are NaN."""
    values = frame.astype(np.float32)
    warped = cv2.warpPerspective(values, matrix, size, flags=cv2.INTER_NEAREST, borderValue=OUTSIDE)
    return cast("Floats", warped)


def _smallest_difference(frame: Pixels, background: Floats) -> Floats:
    """Return the smallest difference over nine one-pixel shifts, as the path is not exact.

    It is NaN where the background is unknown.
    """
    values = frame.astype(np.float32)
    height, width = frame.shape[:2]
    around = cv2.copyMakeBorder(background, 1, 1, 1, 1, cv2.BORDER_WRAP)
    best = np.full((height, width), np.inf, np.float32)
    for down in range(3):
        for right in range(3):
            shifted = around[down : down + height, right : right + width]
            np.fmin(best, cv2.transform(cv2.absdiff(values, shifted), MEAN), out=best)
    best[np.isnan(background[..., 0])] = np.nan
    return best
