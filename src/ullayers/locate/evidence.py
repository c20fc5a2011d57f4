"""Evidence of motion: change of each pixel that the camera's motion does not explain.

Two kinds are computed for a window of frames. The *residual flow* is the optical flow minus that of
the camera; it shows objects that are moving now. The *deviation* is the difference from a mosaic,
the median of all frames of the window along the camera's path; it also shows objects that have
stopped. Both are divided by their median over the frame, so that contrast, noise and frame rate
cancel out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.burned_in import burned_in
from ullayers.locate.flow import (
    CameraMotion,
    Floats,
    Frames,
    background_flow,
    camera_motion,
    chain,
    optical_flow,
)
from ullayers.locate.parallel import in_parallel

LARGEST_MOSAIC = 3.0  # largest side of the mosaic, in sides of a frame; the rest is cut off
ROW_BYTES = 2**26  # memory for the median over time of a band of rows
FLOW_FLOOR = 0.05  # pixels: smaller flow is never motion, even if the rest of the frame is still
GREY_FLOOR = 1.0  # grey levels: the same for the deviation
LARGEST_QUANTILE = 0.995  # larger evidence is clipped, so that a few pixels do not set the scale


@dataclass(frozen=True)
class Evidence:
    """Evidence of motion in a window of frames.

    Attributes:
        flow: (time, height, width) residual flow, in units of its median over the frame.
        deviation: (time, height, width) difference from the mosaic, in units of its median.
        path: (time, 3, 3) homographies from each frame to the middle one.
        motions: Motion of the camera from each frame to the next.
    """

    flow: Floats
    deviation: Floats
    path: NDArray[np.float64]
    motions: tuple[CameraMotion, ...]

    @property
    def combined(self) -> Floats:
        """The geometric mean of both kinds."""
        both: Floats = np.sqrt(clip_largest(self.flow) * clip_largest(self.deviation))
        return both


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
    flow, motions = _residual_flow(frames)
    path = chain([motion.matrix for motion in motions])
    deviation = _relative(_deviation(frames, path), GREY_FLOOR)
    flow = _relative(flow, FLOW_FLOOR)
    outside = ~burned_in(frames, path, np.sqrt(flow * deviation))
    return Evidence(flow * outside, deviation * outside, path, tuple(motions))


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


def _residual_flow(frames: Frames) -> tuple[Floats, list[CameraMotion]]:
    """Return the smaller residual of the flow to the next and to the previous frame.

    Where an object uncovers the background, one of the two has no match, and the other is used.
    """
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    smallest = np.full(frames.shape[:3], np.inf, np.float32)
    forward = in_parallel(_residual, grey[:-1], grey[1:])
    backward = in_parallel(_residual, grey[1:], grey[:-1])
    for t, ((ahead, _), (back, _)) in enumerate(zip(forward, backward, strict=True)):
        np.minimum(smallest[t], ahead, out=smallest[t])
        np.minimum(smallest[t + 1], back, out=smallest[t + 1])
    return smallest, [motion for _, motion in forward]


def _residual(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> tuple[Floats, CameraMotion]:
    """Return the flow between two grey images that the camera does not explain, and its motion."""
    flow = optical_flow(first, second)
    motion = camera_motion(flow)
    rest = flow - background_flow(motion.matrix, *flow.shape[:2])
    length: Floats = np.hypot(rest[..., 0], rest[..., 1])
    return length, motion


def _deviation(frames: Frames, path: NDArray[np.float64]) -> Floats:
    """Return the difference of each frame from the mosaic, in grey levels."""
    height, width = frames.shape[1:3]
    to_mosaic, size = _mosaic_frame(path, height, width)
    mosaic = _median_mosaic(frames, to_mosaic, size)

    def difference(frame: NDArray[np.uint8], matrix: NDArray[np.float64]) -> Floats:
        background = cv2.warpPerspective(mosaic, np.linalg.inv(matrix), (width, height))
        return _smallest_difference(frame, cast("Floats", background))

    return np.stack(in_parallel(difference, frames, to_mosaic))


def _mosaic_frame(
    path: NDArray[np.float64], height: int, width: int
) -> tuple[NDArray[np.float64], tuple[int, int]]:
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


def _median_mosaic(frames: Frames, to_mosaic: NDArray[np.float64], size: tuple[int, int]) -> Floats:
    """Return the median of all frames along the camera's path, in bands of rows."""
    width, height = size
    rows = max(1, ROW_BYTES // (len(frames) * width * 3 * 4))
    mosaic = np.zeros((height, width, 3), np.float32)
    for top in range(0, height, rows):
        count = min(rows, height - top)
        band = np.array([[1, 0, 0], [0, 1, -top], [0, 0, 1]])
        warped = np.stack(
            [
                _warp_with_gaps(frame, band @ matrix, (width, count))
                for frame, matrix in zip(frames, to_mosaic, strict=True)
            ]
        )
        seen = ~np.isnan(warped).all(0)
        mosaic[top : top + count][seen] = np.nanmedian(warped[:, seen], axis=0)
    return mosaic


def _warp_with_gaps(
    frame: NDArray[np.uint8], matrix: NDArray[np.float64], size: tuple[int, int]
) -> Floats:
    """Warp a frame; pixels outside it are NaN."""
    values = frame.astype(np.float32)
    outside = (np.nan, np.nan, np.nan)
    warped = cv2.warpPerspective(values, matrix, size, flags=cv2.INTER_NEAREST, borderValue=outside)
    return cast("Floats", warped)


def _smallest_difference(frame: NDArray[np.uint8], background: Floats) -> Floats:
    """Return the smallest difference over nine one-pixel shifts, as the path is not exact."""
    values = frame.astype(np.float32)
    best = np.full(frame.shape[:2], np.inf, np.float32)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            shifted = np.roll(background, (down, right), axis=(0, 1))
            np.minimum(best, np.abs(values - shifted).mean(-1), out=best)
    return best


def _relative(values: Floats, floor: float) -> Floats:
    """Divide each frame by its median, but at least by `floor`."""
    median = np.median(values.reshape(len(values), -1), axis=1)
    scale = np.maximum(median, floor).astype(np.float32)
    return values / scale[:, None, None]
