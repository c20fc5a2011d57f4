"""J of tracks: low if they are slow from frame to frame and vary over the window (Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MIN_FOUND = 0.6  # least share of frames in which the object must be found
MIN_FRAMES = 4
PIXEL_VARIANCE = 1 / 12  # of a position with the precision of a pixel

Positions = NDArray[np.float64]


def fill_gaps(positions: Positions) -> Positions:
    """Interpolate NaN positions; at both ends, repeat the nearest known one.

    >>> fill_gaps(np.array([[0.0, 0], [np.nan, np.nan], [2, 4]])).tolist()
    [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]
    """
    known = np.flatnonzero(~np.isnan(positions[:, 0]))
    if len(known) == 0:
        return positions
    times = np.arange(len(positions))
    return np.stack([np.interp(times, known, positions[known, i]) for i in range(2)], axis=1)


def in_world(positions: Positions, path: NDArray[np.float64]) -> Positions:
    """Map positions in pixels of each frame to pixels of one frame, along the camera's path.

    Args:
        positions: (time, 2) x, y in pixels; NaN stays NaN.
        path: (time, 3, 3) homographies.
    """
    homogeneous = np.column_stack([positions, np.ones(len(positions))])
    moved = np.einsum("tij,tj->ti", path, homogeneous)
    world: Positions = moved[:, :2] / moved[:, 2:]
    return world


def covariance_in_world(
    covariance: NDArray[np.float64], path: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Map covariances in pixels of each frame to pixels of one frame, along the camera's path.

    Args:
        covariance: (time, 3) variances xx, xy and yy; NaN stays NaN.
        path: (time, 3, 3) homographies; their perspective is neglected.

    Example:
        >>> quarter = np.array([[[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]])
        >>> covariance_in_world(np.array([[9.0, 1, 4]]), quarter).tolist()
        [[4.0, -1.0, 9.0]]
    """
    linear = path[:, :2, :2] / path[:, 2:, 2:]
    matrices = covariance[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
    mapped = linear @ matrices @ linear.transpose(0, 2, 1)
    return mapped.reshape(-1, 4)[:, [0, 1, 3]]


def track_objective(positions: Positions) -> float:
    """Return J of a track: (log det W - log det B) / 2.

    W is the covariance of its steps, B that of its positions. The size of the masks is not
    included, or masks would shrink to a part of the object.

    Args:
        positions: (time, 2) in world coordinates, in pixels or cells; NaN where not found.

    Returns:
        J, or infinity if the object was found in too few frames.

    Example:
        >>> walk = np.cumsum(np.random.default_rng(0).normal(size=(50, 2)), axis=0)
        >>> jumps = np.random.default_rng(0).permutation(walk)
        >>> track_objective(walk) < track_objective(jumps)
        True
    """
    found = ~np.isnan(positions[:, 0])
    if found.mean() < MIN_FOUND or found.sum() < MIN_FRAMES:
        return np.inf
    filled = fill_gaps(positions)
    steps = np.diff(filled, axis=0)
    centred = filled - filled.mean(0)
    return _objective(steps.T @ steps / len(steps), centred.T @ centred / len(centred))


def _objective(steps: Positions, places: Positions) -> float:
    """Return J from the mean square of steps and the covariance of positions."""
    floor = PIXEL_VARIANCE * np.eye(2)
    within, between = steps / 2 + floor, places + floor
    return float(np.linalg.slogdet(within)[1] - np.linalg.slogdet(between)[1]) / 2


@dataclass
class RunningObjective:
    """J of a track while it grows, in constant memory.

    Attributes:
        count: Number of positions so far.
        mean: Mean position.
        scatter: Sum of squares around it.
        steps: Sum of squares of the steps.
        last: The last position.

    Example:
        >>> walk = np.cumsum(np.random.default_rng(0).normal(size=(50, 2)), axis=0)
        >>> running = RunningObjective()
        >>> for position in walk:
        ...     running.add(position)
        >>> bool(np.isclose(running.value, track_objective(walk)))
        True
    """

    count: int = 0
    mean: Positions = field(default_factory=lambda: np.zeros(2))
    scatter: Positions = field(default_factory=lambda: np.zeros((2, 2)))
    steps: Positions = field(default_factory=lambda: np.zeros((2, 2)))
    last: Positions = field(default_factory=lambda: np.zeros(2))

    def add(self, position: Positions) -> None:
        """Add the next position (2,)."""
        if self.count:
            step = position - self.last
            self.steps = self.steps + np.outer(step, step)
        self.count += 1
        offset = position - self.mean
        self.mean = self.mean + offset / self.count
        self.scatter = self.scatter + np.outer(offset, position - self.mean)
        self.last = position

    @property
    def value(self) -> float:
        """J of all positions so far; infinity for too few."""
        if self.count < MIN_FRAMES:
            return np.inf
        return _objective(self.steps / (self.count - 1), self.scatter / self.count)
