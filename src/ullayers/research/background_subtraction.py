"""Background subtraction with OpenCV, to which tracks are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import MissingPackageError

Floats = NDArray[np.floating[Any]]

# MOG2's defaults are for hours of video. These were chosen with the truth for clips of seconds.
VARIANCE_THRESHOLD = 64.0
BACKGROUND_RATIO = 0.6
SPECK = 3  # pixels; smaller foreground is noise


def moving_centroids(frames: NDArray[np.uint8], passes: int = 4) -> Floats:
    """Return centroids of the foreground of OpenCV's background subtraction (MOG2).

    Args:
        frames: Frames (time, height, width, 3).
        passes: Number of times that the frames are shown; all but the last only learn the
            background.

    Returns:
        x and y in 0..1 of the frame, (time, 2). Frames without foreground repeat the last
        position, or the first one if there is none yet, or the centre if nothing ever moves.

    Raises:
        MissingPackageError: OpenCV is not installed.

    Example:
        >>> frames = np.zeros((20, 32, 40, 3), np.uint8)
        >>> for t in range(20):
        ...     frames[t, 8:14, t : t + 6] = 255
        >>> x, y = moving_centroids(frames)[10]  # columns 10 to 15 of 40, rows 8 to 13 of 32
        >>> bool(abs(x - 13 / 40) < 0.02), bool(abs(y - 11 / 32) < 0.02)
        (True, True)
    """
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "background subtraction needs OpenCV: pip install opencv-python-headless"
        ) from error
    mixture = cv2.createBackgroundSubtractorMOG2(
        history=passes * len(frames), varThreshold=VARIANCE_THRESHOLD, detectShadows=False
    )
    mixture.setBackgroundRatio(BACKGROUND_RATIO)
    for _ in range(passes - 1):
        for frame in frames:
            mixture.apply(frame)
    speck = np.ones((SPECK, SPECK), np.uint8)
    found = np.full((len(frames), 2), np.nan)
    for t, frame in enumerate(frames):
        mask = cv2.morphologyEx(mixture.apply(frame, learningRate=0), cv2.MORPH_OPEN, speck)
        rows, columns = np.nonzero(mask)
        if len(rows):
            height, width = mask.shape
            found[t] = (columns.mean() + 0.5) / width, (rows.mean() + 0.5) / height
    return _fill_gaps(found)


def _fill_gaps(positions: Floats) -> Floats:
    """Replace missing positions by the last known, else the first known, else the centre."""
    known = np.flatnonzero(np.isfinite(positions[:, 0]))
    if not len(known):
        return np.full_like(positions, 0.5)
    last = np.searchsorted(known, np.arange(len(positions)), side="right") - 1
    return positions[known[np.maximum(last, 0)]]
