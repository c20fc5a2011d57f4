"""Paths of one object: linked regions, positions given by a user, and the J of a path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from ullayers.locate.flow import Floats

MIN_FOUND = 0.6  # least share of frames in which the object must be found
MIN_FRAMES = 4
PIXEL_VARIANCE = 1 / 12  # of a position with the precision of a pixel
Positions = NDArray[np.float64]
BRIDGE = np.ones((3, 3), np.uint8)  # joins parts that are at most two pixels apart
UNATTENDED = 0.25  # share of its mass that a part keeps without attention of a network
AREA_WINDOW = 15  # frames over which the usual area of an object is measured
SWOLLEN = 1.8  # times the usual area: a larger part touches another object
TRIM_MARGIN = 3  # pixels that an object may move or grow from frame to frame
MOST_PARTS = 8  # parts of a frame that are considered
MOST_STATES = 16  # states of the path that are kept from frame to frame
REACH = 0.1  # of the longer side: a step of this length costs as much as the gain of a clear part
LARGEST_COST = 0.9  # of any step: the gain of a clear part always exceeds it
TAUGHT_COST = 10.0  # the same if the user has given positions of the object
CERTAIN = 1000.0  # gain of a part chosen by the user: exceeds any path without it
NEAR = 0.03  # of the longer side: largest distance of a part from a given position
NO_LABEL = -1  # label of a part that does not stand out; no pixel has it


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


class Part(NamedTuple):
    """A connected part of one frame.

    Attributes:
        x: Horizontal position of its centroid in pixels.
        y: Vertical position of its centroid in pixels.
        mass: Sum of the strength over its pixels, increased by attention of a network.
        label: Its number in the labels of the frame.
    """

    x: float
    y: float
    mass: float
    label: int


class Labelled(NamedTuple):
    """The parts of one frame.

    Attributes:
        labels: (height, width) number of the part of each pixel, from 1; 0 for none.
        parts: Candidates for the object, largest mass first.
        masses: (labels,) sum of the strength over the pixels of each label.
    """

    labels: NDArray[np.int32]
    parts: list[Part]
    masses: NDArray[np.float64]


def label_parts(
    strength: Floats,
    threshold: float,
    attention: Floats | None = None,
    labels: NDArray[np.int32] | None = None,
) -> Labelled:
    """Find the connected parts of a frame.

    Args:
        strength: (height, width).
        threshold: Pixels above it belong to a part.
        attention: Mask of a network, of any size: parts that it covers gain mass.
        labels: (height, width) memory for the labels; None for new memory.
    """
    inside = strength > threshold
    labels = np.empty(inside.shape, np.int32) if labels is None else labels
    count = _join(inside, labels)
    pixels = np.flatnonzero(inside)
    rows, columns = np.divmod(pixels, labels.shape[1])
    numbers = labels.ravel()[pixels]
    weight = strength.ravel()[pixels].astype(float)
    mass = np.bincount(numbers, weight, count).astype(float)
    x = np.bincount(numbers, weight * (columns + 0.5), count)
    y = np.bincount(numbers, weight * (rows + 0.5), count)
    shares = _shares(attention, labels.shape, pixels, numbers, count)
    largest = np.argsort(-mass * shares)[:MOST_PARTS]
    parts = [
        Part(x[i] / mass[i], y[i] / mass[i], mass[i] * shares[i], int(i))
        for i in largest
        if mass[i] > 0
    ]
    return Labelled(labels, parts, mass)


def _join(inside: NDArray[np.bool_], labels: NDArray[np.int32]) -> int:
    """Label each pixel, near parts equally; return the number of labels, including 0."""
    labels.fill(0)
    joined = cv2.dilate(inside.view(np.uint8), BRIDGE)
    # Objects cover little of a frame, so only the box around them is processed.
    left, top, width, height = cv2.boundingRect(joined)
    if not width:
        return 1
    # OpenCV numbers components by blocks of two by two pixels, which must be the same in all boxes.
    box = slice(top // 2 * 2, top + height), slice(left // 2 * 2, left + width)
    count, found = cv2.connectedComponents(joined[box], connectivity=8, ltype=cv2.CV_32S)
    np.multiply(found, inside[box], out=labels[box])
    return count


def _shares(
    attention: Floats | None,
    shape: tuple[int, ...],
    pixels: NDArray[np.intp],
    numbers: NDArray[np.int32],
    count: int,
) -> NDArray[np.float64]:
    """Return the factor by which each part gains from a network's attention.

    Args:
        attention: As in `label_parts`.
        shape: (height, width) of the frame.
        pixels: (pixels,) flat indices of the pixels of all parts.
        numbers: (pixels,) their labels.
        count: Number of labels, including 0.
    """
    if attention is None:
        return np.ones(count)
    height, width = shape
    large = cv2.resize(attention, (width, height), interpolation=cv2.INTER_LINEAR)
    inside = np.bincount(numbers, large.ravel()[pixels], count)
    return UNATTENDED + inside / max(float(large.sum()), 1e-9)


class _State(NamedTuple):
    """The best path that ends at a position."""

    score: float
    x: float
    y: float


@dataclass
class ObjectPath:
    """Choose one part per frame so that the object is clear and moves little (Viterbi 1967).

    Args:
        longer_side: Longer side of the frames in pixels.
        clear: Mass of a part that is clear.
        taught: Whether the user has given positions of the object. A clear part is then as large as
            the object at these positions, and the path leaves the object only for strong evidence.
    """

    longer_side: float
    clear: float
    states: list[_State] = field(default_factory=list)
    taught: bool = False

    def follow(
        self, frames: list[list[Part]], certain: Sequence[bool] | None = None
    ) -> list[int | None]:
        """Return the number of the chosen part in each frame, or None.

        The next call continues where this one ended.

        Args:
            frames: Parts of each frame.
            certain: Whether the path must pass through the part of a frame, which is then the only
                one.
        """
        choices: list[list[tuple[int, int | None]]] = []  # previous state, part
        for t, parts in enumerate(frames):
            states, origins = self._step(parts, CERTAIN if certain and certain[t] else 0.0)
            self.states = states
            choices.append(origins)
        chosen: list[int | None] = []
        best = int(np.argmax([state.score for state in self.states])) if self.states else -1
        for origins in reversed(choices):
            if best < 0:
                chosen.append(None)
                continue
            best, part = origins[best]
            chosen.append(part)
        return chosen[::-1]

    def gain(self, part: Part) -> float:
        """Return the gain of a part for a path: 1 if it is clear."""
        share = part.mass / self.clear
        return float(np.sqrt(min(share, 1 / share if self.taught else 1)))

    def _step(
        self, parts: list[Part], bonus: float
    ) -> tuple[list[_State], list[tuple[int, int | None]]]:
        """Extend all paths by a frame: to one of its parts, or without moving."""
        states = list(self.states)
        origins: list[tuple[int, int | None]] = [(i, None) for i in range(len(states))]
        if parts:
            best, origin = self._arrive(parts)
            for i, part in enumerate(parts):
                states.append(_State(best[i] + bonus, part.x, part.y))
                origins.append((int(origin[i]), i))
        order = sorted(range(len(states)), key=lambda i: -states[i].score)[:MOST_STATES]
        top = states[order[0]].score if order else 0.0
        kept = [states[i]._replace(score=states[i].score - top) for i in order]
        return kept, [origins[i] for i in order]

    def _arrive(self, parts: list[Part]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the score of the best path to each part, and the state it comes from."""
        gain = np.array([self.gain(part) for part in parts])
        if not self.states:
            return gain, np.full(len(parts), -1)
        before = np.array([(s.x, s.y) for s in self.states])
        here = np.array([(part.x, part.y) for part in parts])
        distance = np.linalg.norm(here[:, None] - before, axis=2) / (REACH * self.longer_side)
        cost = np.minimum(distance**2, TAUGHT_COST if self.taught else LARGEST_COST)
        score = np.array([s.score for s in self.states]) - cost
        origin = score.argmax(1)
        return score[np.arange(len(parts)), origin] + gain, origin


def trim_swollen(parts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Trim a part that suddenly covers far more pixels than in neighbouring frames.

    An object that touches another one for a few frames forms one part with it. Such parts are
    limited to the neighbourhood of the object in the nearest frame where it is alone.

    Args:
        parts: (time, height, width) bool.

    Example:
        >>> parts = np.zeros((9, 8, 20), bool)
        >>> parts[:, 2:6, 2:6] = True
        >>> parts[4, :, 8:] = parts[4, 3, :] = True  # touches something large
        >>> trim_swollen(parts).any(1)[4].sum()
        np.int64(9)
    """
    areas = parts.sum(axis=(1, 2))
    found = np.flatnonzero(areas)
    usual = median_filter(areas[found], AREA_WINDOW, mode="mirror")
    swollen = found[areas[found] > SWOLLEN * usual]
    normal = np.setdiff1d(found, swollen)
    trimmed = parts.copy()
    for t in swollen:
        nearest = normal[np.argmin(np.abs(normal - t))]
        side = 2 * TRIM_MARGIN * abs(int(t - nearest)) + 1
        near = cv2.dilate(parts[nearest].astype(np.uint8), np.ones((side, side), np.uint8)) > 0
        if (parts[t] & near).any():
            trimmed[t] &= near
    return trimmed


@dataclass(frozen=True)
class Anchors:
    """The user's input for the frames of a window.

    Attributes:
        places: (time, 2) x and y of the object in 0..1; NaN in frames without a given position.
        nothing: (time,) whether the object is not in the frame.
    """

    places: NDArray[np.float64]
    nothing: NDArray[np.bool_]

    @property
    def given(self) -> NDArray[np.bool_]:
        """(time,) whether the position of the object is given."""
        known: NDArray[np.bool_] = np.isfinite(self.places[:, 0])
        return known

    def choose(self, labelled: list[Labelled], strength: Floats) -> list[Labelled]:
        """Keep only the object in frames with a given position, and no part in empty frames.

        Args:
            labelled: Parts of the frames.
            strength: (time, height, width) strength from which the parts were computed.

        Example:
            >>> from ullayers.locate.paths import label_parts
            >>> strength = np.zeros((2, 10, 30), np.float32)
            >>> strength[:, 2:5, 2:5] = strength[:, 2:8, 20:26] = 1
            >>> labelled = [label_parts(frame, 0.5) for frame in strength]
            >>> anchors = Anchors(np.array([[0.1, 0.3], [np.nan, np.nan]]), np.array([False, True]))
            >>> small, nothing = anchors.choose(labelled, strength)
            >>> [float(part.x) for part in labelled[0].parts], [float(p.x) for p in small.parts]
            ([23.0, 3.5], [3.5])
            >>> nothing.parts
            []
        """
        chosen = list(labelled)
        for t in np.flatnonzero(self.given):
            place = self.places[t] * strength.shape[:0:-1]
            chosen[t] = labelled[t]._replace(parts=[_part_at(labelled[t], strength[t], place)])
        for t in np.flatnonzero(self.nothing):
            chosen[t] = labelled[t]._replace(parts=[])
        return chosen


def _part_at(labelled: Labelled, strength: Floats, place: NDArray[np.float64]) -> Part:
    """Return the part at a position; a part without pixels if nothing stands out there."""
    labels = labelled.labels
    rows, columns = np.nonzero(labels)
    distance = np.hypot(columns + 0.5 - place[0], rows + 0.5 - place[1])
    if not len(rows) or distance.min() > NEAR * max(labels.shape):
        return Part(float(place[0]), float(place[1]), 1.0, NO_LABEL)
    nearest = distance.argmin()
    label = int(labels[rows[nearest], columns[nearest]])
    for part in labelled.parts:
        if part.label == label:
            return part
    own = labels[rows, columns] == label  # not a candidate otherwise, because of its small mass
    weight = strength[rows[own], columns[own]].astype(float)
    x, y = (weight @ (each[own] + 0.5) / weight.sum() for each in (columns, rows))
    return Part(float(x), float(y), UNATTENDED * float(weight.sum()), label)


def taught_path(
    longer_side: float, frames: Sequence[Sequence[Part]], given: Sequence[bool]
) -> ObjectPath:
    """Return a path through given positions; a clear part is as large as the object there.

    Args:
        longer_side: Longer side of the frames in pixels.
        frames: Parts of each frame, from `Anchors.choose`.
        given: Whether the position of the object is given in each frame; at least one must be.
    """
    shown = [parts[0] for parts, known in zip(frames, given, strict=True) if known]
    masses = [part.mass for part in shown if part.label != NO_LABEL]
    largest = [max(part.mass for part in parts) for parts in frames if parts]
    return ObjectPath(longer_side, float(np.median(masses or largest)), taught=True)
