"""Speed and distance of a track in pixels, robust to jitter of single positions."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter, uniform_filter

from ullayers.learn.results import SURE, Answer

SMOOTHING_SECONDS = 0.2
MIN_MEDIAN_FRAMES = 3  # fewer would not remove an outlier

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Motion:
    """Motion from frame to frame, where the position is reliable in both.

    Attributes:
        seconds: (steps,) time in the middle of each step.
        durations: (steps,) seconds between its two frames.
        lengths: (steps,) pixels between the two positions.
        rows: (steps, 2) rows of the two frames.
    """

    seconds: Floats
    durations: Floats
    lengths: Floats
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @property
    def speeds(self) -> Floats:
        """Speed of each step in pixels per second."""
        return self.lengths / self.durations

    @property
    def distance(self) -> float | None:
        """Length of the path in pixels; None if there is no step."""
        return float(self.lengths.sum()) if len(self.lengths) else None

    @property
    def mean_speed(self) -> float | None:
        """Distance divided by duration, in pixels per second; None if there is no step."""
        return float(self.lengths.sum() / self.durations.sum()) if len(self.lengths) else None

    def speed_quantile(self, share: float) -> float | None:
        """Return a quantile of the speeds of all steps; None if there is no step."""
        return float(np.quantile(self.speeds, share)) if len(self.lengths) else None


def measure_motion(answer: Answer, width: int, height: int) -> Motion:
    """Measure distance and speed of a track.

    Only steps between two consecutive frames with a confidence of at least `SURE` count. Positions
    jitter from frame to frame, and the jitter would add up to a distance. They are therefore
    smoothed over `SMOOTHING_SECONDS` before differences are taken: with a running median of at
    least `MIN_MEDIAN_FRAMES` frames, which removes outliers, and then with a running mean, because
    a median moves in jumps.

    Args:
        answer: A track, with positions in 0..1.
        width: Width of the frames in pixels.
        height: Height of the frames in pixels.

    Example:
        >>> t = np.arange(50)
        >>> track = np.stack([t / 100, np.full(50, 0.5), np.ones(50)], 1)
        >>> found = Answer("a", t, t / 25, ("x", "y", "confidence"), track)
        >>> motion = measure_motion(found, width=640, height=480)  # 6.4 pixels per frame
        >>> round(motion.distance), round(motion.speed_quantile(0.5))
        (314, 160)
    """
    positions = answer.values[:, :2] * (width, height)
    sure = answer.values[:, 2] >= SURE
    return motion_between(positions, answer.seconds, np.arange(len(sure)), sure)


def motion_between(
    positions: Floats, seconds: Floats, frames: NDArray[np.int64], sure: NDArray[np.bool_]
) -> Motion:
    """Measure the steps between consecutive frames, as described in `measure_motion`.

    Args:
        positions: (time, 2) pixels.
        seconds: (time,) time of each frame.
        frames: (time,) consecutive numbers; a gap in them is a gap in the track.
        sure: (time,) whether the position is reliable.

    Example:
        >>> line = np.stack([np.arange(9.0), np.zeros(9)], 1)
        >>> there = np.arange(9) != 4
        >>> motion_between(line, np.arange(9) / 5, np.arange(9), there).lengths.round(6).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    rows = np.flatnonzero(sure & np.isfinite(positions).all(1))
    gaps = np.flatnonzero(np.diff(frames[rows]) > 1) + 1
    window = _smoothing_frames(seconds)
    parts = [
        _steps(seconds[some], _smoothed(positions[some], window), some)
        for some in np.split(rows, gaps)
        if len(some) > 1
    ]
    nothing = np.empty(0)
    parts.append(Motion(nothing, nothing, nothing))
    return Motion(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Motion))
    )


def _smoothing_frames(seconds: Floats) -> int:
    """Return the largest odd number of frames within `SMOOTHING_SECONDS`.

    >>> _smoothing_frames(np.arange(9) / 30), _smoothing_frames(np.arange(9) / 5)
    (5, 1)
    """
    steps = np.diff(seconds)
    steps = steps[steps > 0]
    if not len(steps):
        return 1
    # No more than there are: the header of a file may claim any frame rate.
    frames = min(len(seconds), round(SMOOTHING_SECONDS / float(np.median(steps))))
    return max(0, frames - 1) // 2 * 2 + 1


def _smoothed(positions: Floats, window: int) -> Floats:
    for smooth, frames in (
        (median_filter, max(MIN_MEDIAN_FRAMES, window)),
        (uniform_filter, window),
    ):
        # Extend the path beyond its ends; otherwise smoothing would shorten it.
        half = frames // 2
        longer = np.pad(positions, ((half, half), (0, 0)), mode="reflect", reflect_type="odd")
        positions = smooth(longer, (frames, 1))[half : half + len(positions)]
    return positions


def _steps(seconds: Floats, positions: Floats, rows: NDArray[np.int64]) -> Motion:
    durations = np.diff(seconds)
    lengths = np.hypot(*np.diff(positions, axis=0).T)
    middle = (seconds[1:] + seconds[:-1]) / 2
    forward = durations > 0  # times in a damaged file may not increase
    both = np.stack([rows[:-1], rows[1:]], 1)
    return Motion(middle[forward], durations[forward], lengths[forward], both[forward])
