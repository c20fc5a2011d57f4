"""Speed, heading and size of an object, from its positions and masks; codes on a circle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ullayers.tracks.reading import NAMES, Track
from ullayers.tracks.table import SURE, TRACK, Answer
from ullayers.video.sources import Info

if TYPE_CHECKING:
    from ullayers.locate.tracking.settle import Several

WINDOW_SECONDS = 0.2  # over which a velocity is fitted,
MIN_HALF_WINDOW = 2  # in frames to either side, so that the median ignores an outlier
MAX_WINDOW_FRAMES = 7  # in a longer window, evenly spaced frames are used
MAX_STEP = 1.5  # median frame intervals; a longer interval starts a new stretch
FLIP_LENGTHS = 1.0  # body lengths of backward motion that outweigh a flip of the heading
MIN_ELONGATION = 1.15  # length / width below which the axis of a mask is arbitrary
MEMORY_SECONDS = 1.0  # across a longer gap, headings are independent
Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Moments:
    """Moments of the masks of one or more objects.

    Attributes:
        area: (...,) pixels; 0 where there is no mask.
        centre: (..., 2) x and y in pixels, from the corner of the picture; NaN without a mask.
        covariance: (..., 3) variances xx, xy and yy in square pixels; NaN without a mask.
    """

    area: Floats
    centre: Floats
    covariance: Floats


def label_moments(labels: NDArray[Any], objects: int) -> Moments:
    """Measure the masks of all objects in label images.

    Args:
        labels: (time, height, width) integers: 0 is background, k the mask of object k.
        objects: Number of objects; larger labels are ignored.

    Returns:
        Moments of shape (time, objects), in pixels of the label images.

    Example:
        >>> labels = np.zeros((1, 8, 8), np.uint8)
        >>> labels[0, 2:4, 1:7] = 1
        >>> found = label_moments(labels, 1)
        >>> found.area.tolist(), found.centre.tolist()
        ([[12.0]], [[[4.0, 3.0]]])
        >>> [round(float(v), 6) for v in found.covariance[0, 0]]  # 6**2 / 12, 0, 2**2 / 12
        [3.0, 0.0, 0.333333]
    """
    time, row, column = np.nonzero((labels > 0) & (labels <= objects))
    place = time * objects + labels[time, row, column].astype(np.int64) - 1
    shape = len(labels), objects

    def total(values: NDArray[Any]) -> Floats:
        return np.bincount(place, values, len(labels) * objects).astype(np.float64)

    area = total(np.ones(len(place)))
    with np.errstate(invalid="ignore"):
        x, y = total(column + 0.5) / area, total(row + 0.5) / area
        right, down = column + 0.5 - x[place], row + 0.5 - y[place]
        pixel = 1 / 12  # variance within a pixel
        spread = total(right * right) / area + pixel, total(right * down) / area
        covariance = np.stack([*spread, total(down * down) / area + pixel], 1)
    return Moments(
        area.reshape(shape), np.stack([x, y], 1).reshape(*shape, 2), covariance.reshape(*shape, 3)
    )


def ellipse(covariance: Floats) -> tuple[Floats, Floats, Floats]:
    """Return length, width and axis of the ellipses with these second moments.

    Args:
        covariance: (..., 3) xx, xy and yy, as `label_moments` returns them.

    Returns:
        Longer axis, shorter axis, both in pixels, and the direction of the longer axis in degrees
        from 0 to 180, clockwise from the right.

    Example:
        >>> [round(float(v), 3) for v in ellipse(np.array([25.0, 0.0, 4.0]))]
        [20.0, 8.0, 0.0]
    """
    xx, xy, yy = np.moveaxis(np.asarray(covariance, np.float64), -1, 0)
    middle = (xx + yy) / 2
    spread = np.hypot((xx - yy) / 2, xy)
    length = 4 * np.sqrt(middle + spread)
    width = 4 * np.sqrt(np.maximum(middle - spread, 0))
    return length, width, np.degrees(np.arctan2(2 * xy, xx - yy) / 2) % 180


def stretches(known: NDArray[np.bool_], time: Floats) -> NDArray[np.int64]:
    """Number the stretches of known frames without a gap between them; -1 where unknown.

    >>> stretches(np.array([True, True, False, True, True]), np.array([0, 1, 2, 3, 9.0])).tolist()
    [0, 0, -1, 1, 2]
    """
    step = np.diff(time)
    usual = np.median(step[step > 0]) if (step > 0).any() else 0.0
    starts = known.copy()
    starts[1:] &= ~known[:-1] | (step > MAX_STEP * usual) | (step <= 0)
    return np.where(known, np.cumsum(starts) - 1, -1)


def velocity(x: Floats, y: Floats, time: Floats) -> Floats:
    """Return the velocity in each frame, robust to jitter and to outliers of single frames.

    It is the median slope over all pairs of positions within `WINDOW_SECONDS` around the frame
    (Theil-Sen). No window extends across a gap.

    Args:
        x: (time,) pixels, NaN where unknown.
        y: (time,) pixels.
        time: (time,) seconds, ascending.

    Returns:
        (time, 2) pixels per second; NaN where the position or both of its neighbours are unknown.

    Example:
        >>> t = np.arange(6) / 10
        >>> velocity(30 * t, -40 * t, t).round(6)[2].tolist()
        [30.0, -40.0]
    """
    positions = np.stack([x, y], 1).astype(np.float64)
    found = np.full(positions.shape, np.nan)
    part = stretches(np.isfinite(positions.sum(1)), time)
    # Pad with unknown frames, so that windows extend beyond the first and the last frame.
    half = half_window(time)
    part = np.pad(part, half, constant_values=-1)
    frames = np.pad(np.stack([time, *positions.T]), ((0, 0), (half, half)))
    offsets = np.unique(np.linspace(-half, half, MAX_WINDOW_FRAMES).round().astype(int))
    later, earlier = np.tril_indices(len(offsets), -1)
    rows = np.flatnonzero(part >= 0)
    for some in np.array_split(rows, len(rows) // 10_000 + 1):
        window = some[:, None] + offsets
        inside = part[window] == part[some, None]
        usable = inside[:, later] & inside[:, earlier]
        change = frames[:, window[:, later]] - frames[:, window[:, earlier]]
        for kind in (usable.all(1), usable.any(1) & ~usable.all(1)):
            steps = np.where(usable[kind], change[0][kind], np.nan)
            median = np.median if usable[kind].all() else np.nanmedian  # the latter is slow
            for column in (0, 1):
                found[some[kind] - half, column] = median(change[1 + column][kind] / steps, 1)
    return found


def half_window(time: Floats) -> int:
    """Return the number of frames before and after a frame on which its velocity depends."""
    step = np.diff(time)
    step = step[step > 0]
    if not len(step):
        return MIN_HALF_WINDOW
    frames = round(WINDOW_SECONDS / 2 / float(np.median(step)))
    return max(MIN_HALF_WINDOW, min(frames, len(time)))  # a header may claim any frame rate


def speed(x: Floats, y: Floats, time: Floats) -> Floats:
    """Return the length of `velocity` in each frame, in pixels per second.

    >>> t = np.arange(6) / 10
    >>> speed(30 * t, 40 * t, t).round(6).tolist()
    [50.0, 50.0, 50.0, 50.0, 50.0, 50.0]
    """
    right, down = velocity(x, y, time).T
    lengths: Floats = np.hypot(right, down)
    return lengths


def oriented(
    axis: Floats, velocity: Floats, time: Floats, length: Floats, width: Floats | None = None
) -> Floats:
    """Return the heading: the axis of the mask, with the front chosen by the direction of motion.

    The fronts of all frames are chosen together. An object faces the way it moves, and its heading
    flips from one frame to the next only if this avoids more than 2 * `FLIP_LENGTHS` body lengths
    of backward motion. It therefore keeps its heading while it stands still or backs up a little.

    Args:
        axis: (time,) degrees modulo 180, NaN where unknown.
        velocity: (time, 2) pixels per second; NaN counts as no motion.
        time: (time,) seconds, ascending.
        length: (time,) longer axis in pixels.
        width: (time,) shorter axis; where it is close to the length, the heading may flip. None if
            all masks are elongated.

    Returns:
        (time,) degrees from 0 to 360, clockwise from the right; NaN where the axis is unknown.

    Example:
        >>> axis, t = np.array([1.0, 179.0, 1.0, 0.0]), np.arange(4.0)
        >>> walk = np.array([[0.0, 0], [0, 0], [-90, 0], [-90, 0]])  # to the left, after a rest
        >>> oriented(axis, walk, t, np.full(4, 30.0)).tolist()
        [181.0, 179.0, 181.0, 180.0]
    """
    heading = np.full(len(axis), np.nan)
    rows = np.flatnonzero(np.isfinite(axis))
    if not len(rows):
        return heading
    turn = np.diff(axis[rows])
    # Of the two directions of each axis, choose the one closer to that of the previous frame.
    flips = np.cumsum(np.concatenate([[0], np.abs((turn + 180) % 360 - 180) > 90])) % 2
    steady = (axis[rows] + 180 * flips) % 360
    front = np.radians(steady)
    seconds = np.diff(time[rows], append=time[rows[-1]]).clip(0, MEMORY_SECONDS)
    along = np.nan_to_num(velocity[rows] * np.stack([np.cos(front), np.sin(front)], 1)).sum(1)
    body = float(np.nanmedian(length[rows])) if np.isfinite(length[rows]).any() else 1.0
    evidence = along * seconds / max(body, 1e-9)
    # The front is not propagated across turns of about 90 degrees, long gaps or round masks.
    price = FLIP_LENGTHS * np.abs(np.cos(np.radians(turn)))
    price[np.diff(time[rows]) > MEMORY_SECONDS] = 0
    if width is not None:
        is_round = ~(length[rows] >= MIN_ELONGATION * width[rows])
        price[is_round[1:] | is_round[:-1]] = 0
    heading[rows] = (steady + 180 * (_signs(evidence, price) < 0)) % 360
    return heading


def _signs(evidence: Floats, price: Floats) -> NDArray[np.int64]:
    """Return the signs s that maximise the sum of s * evidence minus 2 * price per change.

    This is a Viterbi path with two states. The difference of the scores of both states follows d[t]
    = clip(d[t - 1], -price, price) + evidence[t]. Steps of this form compose to steps of the same
    form, so all d are computed by a scan of logarithmic depth.
    """
    infinite = np.array([np.inf])
    shift = evidence.astype(np.float64)
    high = np.concatenate([infinite, price]) + evidence
    low = np.concatenate([-infinite, -price]) + evidence
    reach = 1
    while reach < len(evidence):  # each step becomes the composition of 2 * `reach` steps
        before = shift[:-reach], low[:-reach], high[:-reach]
        after = shift[reach:], low[reach:], high[reach:]
        new = (
            before[0] + after[0],
            np.clip(before[1] + after[0], after[1], after[2]),
            np.clip(before[2] + after[0], after[1], after[2]),
        )
        for array, value in zip((shift, low, high), new, strict=True):
            array[reach:] = value
        reach *= 2
    difference = np.clip(shift, low, high)  # the first state starts at 0
    decided = np.append(np.abs(difference[:-1]) >= price, True)
    # An undecided frame has the sign of the next one.
    rows = np.where(decided, np.arange(len(decided)), len(decided))
    next_decided = np.minimum.accumulate(rows[::-1])[::-1]
    return np.where(difference[next_decided] < 0, -1, 1)


@dataclass(frozen=True)
class Motion:
    """Motion from frame to frame, where the position is reliable in both.

    Attributes:
        seconds: (steps,) time in the middle of each step.
        durations: (steps,) seconds between its two frames.
        lengths: (steps,) pixels between the two positions.
        rows: (steps, 2) rows of the two frames.
    """

    seconds: AnyFloats
    durations: AnyFloats
    lengths: AnyFloats
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @property
    def speeds(self) -> AnyFloats:
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
    """Measure distance and speed of a track, as `motion_between` does.

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
    x, y = (answer.values[:, :2] * (width, height)).T
    sure = answer.values[:, 2] >= SURE
    if answer.shapes is None:
        speeds = speed(np.where(sure, x, np.nan), y, answer.seconds)
    else:
        speeds = answer.shapes[:, 0]
    return motion_between(speeds, answer.seconds, np.arange(len(sure)), sure)


def motion_between(
    speeds: AnyFloats, seconds: AnyFloats, frames: NDArray[np.int64], sure: NDArray[np.bool_]
) -> Motion:
    """Measure the steps between consecutive frames: mean speed of both times the duration.

    Only steps between two frames with a confidence of at least `SURE` count.

    Args:
        speeds: (time,) speed in each frame, as `speed` returns it.
        seconds: (time,) time of each frame.
        frames: (time,) consecutive numbers; a gap in them is a gap in the track.
        sure: (time,) whether the position is reliable.

    Example:
        >>> there = np.arange(9) != 4
        >>> motion_between(np.ones(9), np.arange(9.0), np.arange(9), there).lengths.tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    rows = np.flatnonzero(sure & np.isfinite(speeds))
    both = np.stack([rows[:-1], rows[1:]], 1)
    durations = np.diff(seconds[rows])
    forward = (np.diff(frames[rows]) == 1) & (durations > 0)  # times may not increase
    both, durations = both[forward], durations[forward]
    lengths = speeds[both].mean(1) * durations
    return Motion(seconds[both].mean(1), durations, lengths, both)


def complete(answer: Answer, info: Info, found: Several | None = None) -> Answer:
    """Return a finished track with all columns of its table.

    Args:
        answer: All rows of the main object, with moments.
        info: Size of the frames.
        found: All objects, if several were tracked.
    """
    size = info.width, info.height
    several = None if found is None else found.rows
    if several is None or several.objects is None:
        number = 1 if found is None else found.number
        objects = None if number == 1 else np.full(len(answer.index), number)
        return replace(answer, size=size, shapes=_shapes(answer, size), objects=objects)
    shapes = np.empty((len(several.index), 5))
    for number in np.unique(several.objects):
        rows = several.objects == number
        shapes[rows] = _shapes(several.rows(rows), size)
    everyone = replace(several, size=size, shapes=shapes, box=answer.box)
    return replace(answer, size=size, shapes=_shapes(answer, size), several=everyone)


def _shapes(answer: Answer, size: tuple[int, int]) -> np.ndarray:
    """Return (time, 5) as in `SHAPE`."""
    assert answer.moments is not None
    x, y = (answer.values[:, :2] * size).T
    length, width, _ = ellipse(answer.moments[:, :3])
    *body, axis = ellipse(answer.moments[:, 4:])
    sure = answer.values[:, 2] >= SURE
    motion = velocity(np.where(sure, x, np.nan), y, answer.seconds)
    heading = oriented(axis, motion, answer.seconds, *body).round(2) % 360
    return np.stack(
        [np.hypot(*motion.T), heading, length, width, answer.moments[:, 3]],
        axis=1,
    )


def to_tracks(answer: Answer) -> list[Track]:
    """Return the tracks of all objects of a sequence, as `read_tracks` does."""
    tracks = []
    for each in answer.of_objects():
        assert each.size is not None
        assert each.shapes is not None
        number = 1 if each.objects is None else int(each.objects[0])
        x, y, confidence = each.values.T
        x_px, y_px = (each.values[:, :2] * each.size).T
        columns = (each.seconds, x, y, confidence, x_px, y_px, *each.shapes.T)
        named = dict(zip(NAMES, columns, strict=True))
        tracks.append(Track(each.sequence, number, {"frame": each.index, **named}))
    return tracks


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
