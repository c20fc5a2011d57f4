"""Burned-in text and logos, which stay in place while the camera moves.

They move relative to the scene like an object, but are not part of it.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames

LEAST_TRAVEL = 2.0  # pixels: least standard deviation of the camera's path
SAMPLE_FRAMES = 48  # at most; enough for a mean and a standard deviation
LEAST_EDGE = 8.0  # grey levels per pixel: weaker edges may be noise
LARGEST_SHAKE = 0.2  # pixels: edges that move less over a window are fixed to the picture
MARGIN = 1 / 48  # of the longer side: distance between edges of a character
LASTING = 0.2  # quantile of the evidence over time; high where the scene is never visible
LEAST_EVIDENCE = 2.0  # times the median of a frame
LEAST_FIXED = 0.3  # of a text; the rest are characters that change

Mask = NDArray[np.bool_]


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
