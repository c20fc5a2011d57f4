"""Codes that lie around a circle, like those of a full turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.results import TRACK, Answer

Floats = NDArray[np.floating[Any]]

MIN_FRAMES = 12
MAX_GAP = 60.0  # largest angle without a frame in degrees, seen from the centre
MIN_HOLE = 0.5  # radius that 95 % of the frames exceed, relative to the median


def ring_angles(codes: Floats) -> Floats | None:
    """Return the angle of each code around a circle, in degrees; None if there is no circle.

    There is a circle if frames lie in all directions from its centre, and none near it.

    Args:
        codes: (frames, 2).

    Example:
        >>> turn = np.linspace(0, 2 * np.pi, 72, endpoint=False)
        >>> circle = np.stack([3 + np.cos(turn), np.sin(turn)], 1)
        >>> ring_angles(circle)[:3].round().tolist()
        [0.0, 5.0, 10.0]
        >>> ring_angles(circle[:50]) is None
        True
    """
    known = codes[np.isfinite(codes).all(1)]
    if len(known) < MIN_FRAMES:
        return None
    # Least-squares circle: |p|^2 = 2 c.p + r^2 - |c|^2.
    rows = np.c_[2 * known, np.ones(len(known))]
    centre = np.linalg.lstsq(rows, np.square(known).sum(1), rcond=None)[0][:2]
    radius = np.hypot(*(known - centre).T)
    angles = _degrees(codes - centre)
    around = np.sort(angles[np.isfinite(angles)])
    gap = np.diff(around, append=around[0] + 360).max()
    is_hollow = np.quantile(radius, 0.05) >= MIN_HOLE * np.median(radius)
    return angles if is_hollow and gap <= MAX_GAP else None


def _degrees(vectors: Floats) -> Floats:
    angles: Floats = np.degrees(np.arctan2(vectors[:, 1], vectors[:, 0])) % 360
    return angles


def is_ring(answers: Sequence[Answer]) -> bool | None:
    """Return whether most frames belong to a sequence whose codes lie around a circle.

    Returns:
        None if the results are not codes of two numbers.
    """
    if not answers or answers[0].columns == TRACK or len(answers[0].columns) != 2:
        return None
    frames = [len(answer.index) for answer in answers]
    around = [len(answer.index) for answer in answers if ring_angles(answer.values) is not None]
    return 2 * sum(around) > sum(frames)
