"""Optical flow between neighbouring frames, and the motion of the camera in it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Frames = NDArray[np.uint8]  # (time, height, width, 3)
Pixels = NDArray[np.uint8]  # (height, width, 3)

FLOW_SIDE = 16  # pixels: narrower images are enlarged, because the flow needs some room
GRID_STEP = 8  # pixels between the flow vectors that the camera model is fitted to
INLIER = 0.6  # pixels that a flow vector of the background may differ from the camera model
STILL = 0.15  # median flow in pixels below which the camera counts as static
SIMPLER = 0.95  # an affine model is preferred if it explains this share of the homography's inliers
MIN_INLIERS = 0.2  # share of flow vectors below which no camera model is accepted


class CameraMotion(NamedTuple):
    """Motion of the camera between two frames.

    Attributes:
        matrix: (3, 3) homography from pixels of the first frame to pixels of the second.
        model: Which model was chosen.
    """

    matrix: NDArray[np.float64]
    model: Literal["static", "affine", "homography", "unknown"]


def optical_flow(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> Floats:
    """Return the dense optical flow between two grey images.

    Args:
        first: (height, width) image.
        second: (height, width) image.

    Returns:
        (height, width, 2) displacement to the right and down, in pixels.
    """
    method: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    height, width = first.shape
    below, beside = max(0, FLOW_SIDE - height), max(0, FLOW_SIDE - width)
    if below or beside:
        first, second = (
            np.pad(image, ((0, below), (0, beside)), mode="edge") for image in (first, second)
        )
    flow: Floats = method.calc(first, second, None)
    return flow[:height, :width]


def camera_motion(flow: Floats) -> CameraMotion:
    """Fit the motion of the camera to a flow field, robustly against moving objects.

    An affine model is fitted beside the homography and kept if it explains nearly as many vectors:
    the two additional parameters of a homography can fit the motion of a large object.

    Args:
        flow: (height, width, 2) displacement in pixels.
    """
    height, width = flow.shape[:2]
    points = _grid(height, width)
    vectors = flow[points[:, 1].astype(int), points[:, 0].astype(int)]
    if np.median(np.hypot(vectors[:, 0], vectors[:, 1])) < STILL:
        return CameraMotion(np.eye(3), "static")
    if len(points) < 8:
        return CameraMotion(np.eye(3), "unknown")
    homography, kept = cv2.findHomography(points, points + vectors, cv2.RANSAC, INLIER)
    affine, kept_affine = cv2.estimateAffine2D(
        points, points + vectors, method=cv2.RANSAC, ransacReprojThreshold=INLIER
    )
    count = 0 if homography is None else int(kept.sum())
    count_affine = 0 if affine is None else int(kept_affine.sum())
    if max(count, count_affine) < MIN_INLIERS * len(points):
        return CameraMotion(np.eye(3), "unknown")
    if count_affine >= SIMPLER * count:
        return CameraMotion(np.vstack([affine, [0, 0, 1]]), "affine")
    return CameraMotion(np.asarray(homography, np.float64), "homography")


def background_flow(matrix: NDArray[np.float64], height: int, width: int) -> Floats:
    """Return the flow of each pixel under a homography.

    >>> shift = np.array([[1.0, 0, 3], [0, 1, -2], [0, 0, 1]])
    >>> background_flow(shift, 4, 5)[2, 1].tolist()
    [3.0, -2.0]
    """
    y, x = np.mgrid[:height, :width].astype(np.float32)
    m = matrix.astype(np.float32)
    scale = m[2, 0] * x + m[2, 1] * y + m[2, 2]
    to_x = (m[0, 0] * x + m[0, 1] * y + m[0, 2]) / scale
    to_y = (m[1, 0] * x + m[1, 1] * y + m[1, 2]) / scale
    return np.stack([to_x - x, to_y - y], axis=-1)


def chain(motions: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return (time, 3, 3) homographies from each frame to the middle one.

    Args:
        motions: Homographies from each frame to the next.

    >>> shift = np.array([[1.0, 0, 3], [0, 1, 0], [0, 0, 1]])
    >>> chain([shift, shift])[:, 0, 2].tolist()
    [3.0, 0.0, -3.0]
    """
    count = len(motions) + 1
    middle = count // 2
    paths = [np.eye(3)] * count
    for t in range(middle, 0, -1):
        paths[t - 1] = paths[t] @ motions[t - 1]
    for t in range(middle, count - 1):
        paths[t + 1] = paths[t] @ np.linalg.inv(motions[t])
    return np.stack(paths)


def _grid(height: int, width: int) -> Floats:
    """Return (points, 2) positions x, y on a regular grid."""
    top, left = (min(GRID_STEP // 2, side - 1) for side in (height, width))
    y, x = np.mgrid[top:height:GRID_STEP, left:width:GRID_STEP]
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
