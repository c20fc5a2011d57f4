"""Evidence before a moving camera: what is behind the objects, and what differs from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import (
    CameraMotion,
    Floats,
    Frames,
    background_flow,
    camera_motion,
    chain,
    optical_flow,
)
from ullayers.video.parallel import in_parallel

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
LEAST_TRAVEL = 2.0  # pixels: least standard deviation of the camera's path
SAMPLE_FRAMES = 48  # at most; enough for a mean and a standard deviation
LEAST_EDGE = 8.0  # grey levels per pixel: weaker edges may be noise
LARGEST_SHAKE = 0.2  # pixels: edges that move less over a window are fixed to the picture
MARGIN = 1 / 48  # of the longer side: distance between edges of a character
LASTING = 0.2  # quantile of the evidence over time; high where the scene is never visible
LEAST_EVIDENCE = 2.0  # times the median of a frame
LEAST_FIXED = 0.3  # of a text; the rest are characters that change
Mask = NDArray[np.bool_]
FLOW_FLOOR = 0.05  # pixels: smaller flow is never motion, even if the rest of the frame is still
GREY_FLOOR = 1.0  # grey levels: the same for the deviation
LARGEST_QUANTILE = 0.995  # larger evidence is clipped, so that a few pixels do not set the scale
PATCH = (7, 7)  # pixels over which the flow is compared with the change of the picture
FAINT_TEXTURE = 2.0  # grey levels: weaker texture may be noise
UNEXPLAINED = 0.7  # share of the texture that the flow does not explain: evidence counts half
MOVING_PAIRS = 0.5  # share of pairs of frames in which a moving camera moves


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


def burned_in(frames: Frames, path: NDArray[np.float64], evidence: Floats) -> Mask:
    """Return the (height, width) mask of pixels that do not belong to the scene.

    The motion of an edge follows from the mean of all frames: the standard deviation of a pixel is
    its gradient times the motion. A clock also has characters that change. They are found next to
    fixed edges, where the scene is never visible.

    Args:
        frames: (time, height, width, 3) uint8, a window of consecutive frames.
        path: (time, 3, 3) homographies from each frame to the middle one.
        evidence: (time, height, width) evidence of motion, in units of its median.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scene = cv2.GaussianBlur(rng.integers(0, 255, (64, 160, 3), np.uint8), (0, 0), 2)
        >>> frames = np.stack([scene[:, 2 * t : 2 * t + 96] for t in range(24)])
        >>> frames[:, 50:54, 10:40:3] = 255  # a text
        >>> shift = np.array([[[1.0, 0, 2 * t], [0, 1, 0], [0, 0, 1]] for t in range(24)])
        >>> found = burned_in(frames, shift, np.zeros(frames.shape[:3], np.float32))
        >>> bool(found[50:54, 10:38].all()), bool(found[:40].any())
        (True, False)
    """
    height, width = frames.shape[1:3]
    if _travel(path, height, width) < LEAST_TRAVEL:
        return np.zeros((height, width), bool)
    some = slice(None, None, -(-len(frames) // SAMPLE_FRAMES))
    grey = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames[some]])
    side = 2 * round(MARGIN * max(height, width)) + 1
    fixed = _fixed_edges(grey, np.ones((side, side), np.uint8))
    if not fixed.any():
        return fixed.astype(bool)
    lasting = np.quantile(evidence[some], LASTING, axis=0) > LEAST_EVIDENCE
    count, labels = cv2.connectedComponents((lasting | (fixed > 0)).astype(np.uint8))
    area = np.bincount(labels.ravel(), minlength=count)
    share = np.bincount(labels.ravel(), fixed.ravel(), count) / np.maximum(area, 1)
    whole = share >= LEAST_FIXED
    whole[0] = False
    return np.asarray((fixed > 0) | whole[labels])


def _fixed_edges(grey: NDArray[np.uint8], near: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return where edges in both directions are fixed; motion along an edge is invisible."""
    mean = grey.mean(axis=0, dtype=np.float32)
    spread = grey.std(axis=0, dtype=np.float32)
    fixed = np.ones(mean.shape, np.uint8)
    for axis in ((1, 0), (0, 1)):
        edges = np.abs(cv2.Sobel(mean, cv2.CV_32F, *axis, scale=1 / 8))
        is_fixed = (edges > LEAST_EDGE) & (spread < LARGEST_SHAKE * edges)
        fixed &= cv2.dilate(is_fixed.astype(np.uint8), near)
    return fixed


def _travel(path: NDArray[np.float64], height: int, width: int) -> float:
    """Return the standard deviation of the image centre along the camera's path."""
    centre = path @ np.array([width / 2, height / 2, 1])
    return float(np.linalg.norm((centre[:, :2] / centre[:, 2:]).std(axis=0)))


@dataclass(frozen=True)
class Evidence:
    """Evidence of motion in a window of frames.

    Attributes:
        flow: (time, height, width) residual flow, in units of its median over the frame.
        recent: (time, height, width) difference from neighbouring frames, in units of its median.
        deviation: (time, height, width) difference from the mosaic, in units of its median.
        rigid: (time, height, width) weight from 0 to 1: how well the flow explains the change of
            the picture; 1 everywhere if the camera is still.
        path: (time, 3, 3) homographies from each frame to the middle one.
        motions: Motion of the camera from each frame to the next.
    """

    flow: Floats
    recent: Floats
    deviation: Floats
    rigid: Floats
    path: NDArray[np.float64]
    motions: tuple[CameraMotion, ...]

    @property
    def combined(self) -> Floats:
        """The geometric mean of the residual flow and the recent deviation."""
        both: Floats = self.rigid * np.sqrt(clip_largest(self.flow) * clip_largest(self.recent))
        return both

    @property
    def kinds(self) -> list[Floats]:
        """Competing combinations, the preferred one first; the others suit slow objects."""
        flow, deviation = clip_largest(self.flow), clip_largest(self.deviation)
        return [self.combined, self.rigid * np.sqrt(flow * deviation), self.rigid * deviation]


def motion_evidence(frames: Frames) -> Evidence:
    """Measure motion relative to the camera in a window of consecutive frames.

    Needs a few times the memory of the frames, so split long videos into windows.

    Args:
        frames: (time, height, width, 3) uint8, at least two frames.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scene = cv2.GaussianBlur(rng.integers(0, 255, (64, 120, 3), np.uint8), (0, 0), 2)
        >>> frames = np.stack([scene[:, t : t + 96] for t in range(8)])  # the camera pans
        >>> for t in range(8):
        ...     frames[t, 20:32, 30 + 2 * t : 42 + 2 * t] = 255  # an object moves relative to it
        >>> found = motion_evidence(frames)
        >>> inside = found.combined[4, 20:32, 38:50].mean()
        >>> bool(inside > 5 * found.combined[4, :, 60:].mean())
        True
    """
    _check(frames)
    flow, unexplained, motions = _residual_flow(frames)
    path = chain([motion.matrix for motion in motions])
    flow = _relative(flow, FLOW_FLOOR)
    recent = _known(_relative(difference_from_neighbours(frames, path), GREY_FLOOR), flow)
    deviation = _known(_relative(difference_from_mosaic(frames, path), GREY_FLOOR), flow)
    outside = ~burned_in(frames, path, np.sqrt(flow * deviation))
    rigid = np.ones_like(flow)
    if np.mean([motion.model != "static" for motion in motions]) >= MOVING_PAIRS:
        rigid = 1 / (1 + np.square(unexplained / np.float32(UNEXPLAINED)))
    return Evidence(
        flow * outside, recent * outside, deviation * outside, rigid, path, tuple(motions)
    )


def clip_largest(evidence: Floats) -> Floats:
    """Clip the largest values of a window."""
    clipped: Floats = np.minimum(evidence, np.quantile(evidence, LARGEST_QUANTILE))
    return clipped


def _check(frames: Frames) -> None:
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or len(frames) < 2:
        raise ValueError(
            "expected at least two uint8 frames (time, height, width, 3), got "
            f"{frames.dtype} {frames.shape}"
        )


def _residual_flow(frames: Frames) -> tuple[Floats, Floats, list[CameraMotion]]:
    """Return the residual flow, the share of the texture that flow does not explain, and motions.

    Of the flow to the next and to the previous frame, the smaller values count: where an object
    uncovers the background, one of the two has no match.
    """
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    flow = np.full(frames.shape[:3], np.inf, np.float32)
    unexplained = np.full(frames.shape[:3], np.inf, np.float32)
    forward = in_parallel(_residual, grey[:-1], grey[1:])
    backward = in_parallel(_residual, grey[1:], grey[:-1])
    for t, pair in enumerate(zip(forward, backward, strict=True)):
        for at, (length, share, _) in zip((t, t + 1), pair, strict=True):
            np.minimum(flow[at], length, out=flow[at])
            np.minimum(unexplained[at], share, out=unexplained[at])
    return flow, unexplained, [motion for _, _, motion in forward]


def _residual(
    first: NDArray[np.uint8], second: NDArray[np.uint8]
) -> tuple[Floats, Floats, CameraMotion]:
    """Return the same for the flow from one grey image to another."""
    flow = optical_flow(first, second)
    motion = camera_motion(flow)
    rest = flow - background_flow(motion.matrix, *flow.shape[:2])
    length: Floats = np.hypot(rest[..., 0], rest[..., 1])
    return length, _unexplained(first, second, flow), motion


def _unexplained(first: NDArray[np.uint8], second: NDArray[np.uint8], flow: Floats) -> Floats:
    """Return the difference that is left between two grey images, relative to their texture."""
    height, width = first.shape
    y, x = np.mgrid[:height, :width].astype(np.float32)
    here, there = first.astype(np.float32), second.astype(np.float32)
    moved = cv2.remap(
        there,
        x + flow[..., 0],
        y + flow[..., 1],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    texture = cv2.blur(cv2.absdiff(here, cv2.blur(here, PATCH)), PATCH)
    left = cv2.blur(cv2.absdiff(here, moved), PATCH)
    return np.asarray(left / (texture + FAINT_TEXTURE), np.float32)


def _relative(values: Floats, floor: float) -> Floats:
    """Divide each frame by its median, but at least by `floor`; NaN stays NaN."""
    median = np.array([np.median(known) if len(known) else 0 for known in map(_finite, values)])
    scale = np.maximum(median, floor).astype(np.float32)
    relative: Floats = values / scale[:, None, None]
    return relative


def _finite(values: Floats) -> Floats:
    known: Floats = values[~np.isnan(values)]
    return known


def _known(values: Floats, instead: Floats) -> Floats:
    """Replace NaN by other values."""
    return np.where(np.isnan(values), instead, values)
