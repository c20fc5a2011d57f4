"""Evidence of motion with a still camera: the difference from the scene without objects.

The scene is learned from frames spread over the whole recording: the median of each pixel (moving
objects leave no trace in it) and its noise (a flickering lamp or leaves in the wind are noise). A
large object may hide a pixel most of the time, so frames in which it moves there do not count.
Changes of light are removed first, by a gain for the whole frame or, under mains light that
flickers during the exposure, by a gain for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels, optical_flow
from ullayers.locate.parallel import in_parallel
from ullayers.locate.quantiles import medians

BANDS = 0.9  # rows have their own gains if these reduce the difference to less than this share
NOISE_FLOOR = 1.0  # smallest noise in grey levels; compression hides smaller noise
DARK = 16.0  # grey levels added before dividing, because gains of dark pixels are uncertain
BAND_SMOOTHING = 0.01  # standard deviation of the filter of row gains, as a share of the height
ENERGY_BLUR = 1.0  # standard deviation of the filter of the evidence, in pixels
# The median of the absolute value of a normal deviate is 0.67 standard deviations.
MEDIAN_DEVIATION = 0.67
NOISE_BLUR = 2.0  # standard deviation of the filter of the noise, in pixels
DETAIL = 1.0  # size of the finest details of a texture in pixels; the coarsest are four times this
ROW_BYTES = 2**26  # memory for the median over time of a band of rows

MOTION_SIDE, SHORTEST_SIDE = 320, 16  # sides in pixels of the frames in which motion is measured
MOVING = 0.5  # smallest motion from frame to frame, in pixels
CLOSING = np.ones((7, 7), np.uint8)  # fills the inside of an object, where flow is uncertain
# A pixel moves often if it moves in more than the first share of the frames, and rests in more than
# the second share, which is enough for its median.
OFTEN, SELDOM = 0.25, 0.15
MOVING_WEIGHT = 0.6  # weight of a frame with motion when two colours of the scene are compared
SAME_COLOUR = 10.0  # largest difference in grey levels of a frame that agrees with a colour

COMMON_SHARE = 0.25  # this quantile of the evidence of a frame is not affected by objects
NOISE_SHARE = 0.4  # smallest value of this quantile if there is any noise
RAISED = 1.5  # a frame whose quantile is this many times the usual one differs everywhere
MIN_STILL_EVIDENCE = 3.0  # smallest evidence of an object, in units of the noise

# Objects that rest for more than half of the time are in the median and must be removed from it.
RESTING_EVIDENCE = 6.0  # smallest evidence that such an object has left, in units of the noise
RESTING_PIXELS = 9  # smallest area of a difference that is checked
RESTING_EDGES = 1.5  # edges of the backdrop are this many times stronger than those of the frame
SAME_TEXTURE = 0.6  # smallest correlation of the edges of two images of the same texture
RESTING_FRAMES = 3  # smallest number of frames that show the same scene behind the object
WEAK = 1 / 3  # smallest difference of the whole object, as a share of that of its clear part
MOST_GROWTH = 6.0  # largest area of the whole object, as a multiple of that of its clear part
MOST_VISITS = 4  # an object that comes and goes more often is part of the scene
RESTING_SAME = 2.0  # largest difference of two equal regions, in units of the noise


@dataclass(frozen=True)
class StillScene:
    """The scene of a still camera, without moving objects.

    Attributes:
        backdrop: (height, width, 3) median of each pixel.
        noise: (height, width) standard deviation of the difference from it, in grey levels.
        bands: Whether each row has its own gain.
    """

    backdrop: Floats
    noise: Floats
    bands: bool

    def resized(self, height: int, width: int) -> StillScene:
        """Return the scene at a smaller size, at which the noise is smaller too."""
        if self.noise.shape == (height, width):
            return self
        backdrop, noise = _resize(self.backdrop, height, width), _resize(self.noise, height, width)
        averaged = min(1.0, float(np.sqrt(noise.size / self.noise.size)))
        return StillScene(backdrop, np.maximum(noise * averaged, NOISE_FLOOR), self.bands)

    @cached_property
    def _lightness(self) -> Floats:
        return np.asarray(cv2.transform(self.backdrop, GREY) + DARK, np.float32)

    def gain(self, frame: Pixels) -> Floats:
        """Return the gain of the light: one number, or one for each row."""
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        if not self.bands:
            ratio = (grey[::2, ::2] + np.float32(DARK)) / self._lightness[::2, ::2]
            return np.full((1, 1, 1), medians(ratio.ravel()), np.float32)
        ratio = (grey[:, ::2] + np.float32(DARK)) / self._lightness[:, ::2]
        rows = medians(ratio)
        sigma = max(0.5, BAND_SMOOTHING * len(rows))
        smooth = np.asarray(cv2.GaussianBlur(rows, (1, 0), 0, sigmaY=sigma), np.float32)
        return smooth.reshape(-1, 1, 1)

    def levelled(self, frame: Pixels) -> Pixels:
        """Remove changes of light from a frame."""
        return divided(frame, self.gain(frame)).round().clip(0, 255).astype(np.uint8)

    def difference(self, frame: Pixels, gain: Floats | None = None) -> Floats:
        """Return the difference of a frame from the scene in grey levels, without changes of light.

        Args:
            frame: (height, width, 3) uint8.
            gain: From `gain`, if it is known.
        """
        values = divided(frame, self.gain(frame) if gain is None else gain)
        values -= self.backdrop
        return self._length(values)

    def distance(self, levelled: Floats) -> Floats:
        """Return the difference of a levelled frame from the scene, in grey levels.

        Args:
            levelled: (height, width, 3), divided by `gain`.
        """
        return self._length(np.asarray(cv2.subtract(levelled, self.backdrop), np.float32))

    def distance_of_colour(self, colour: Floats) -> Floats:
        """Return the difference of a single colour (3,) from the scene, in grey levels."""
        values = cv2.subtract(self.backdrop, np.array([*colour, 0.0], np.float64))
        return self._length(np.asarray(values, np.float32))

    def _length(self, values: Floats) -> Floats:
        """Return the root of the mean square over colours; the values are overwritten."""
        squares = np.asarray(cv2.transform(np.square(values, out=values), MEAN), np.float32)
        return np.asarray(cv2.sqrt(squares, squares), np.float32)

    def evidence(self, frame: Pixels, gain: Floats | None = None) -> Floats:
        """Return the (height, width) difference of a frame in units of the noise.

        Args:
            frame: (height, width, 3) uint8.
            gain: From `gain`, if it is known.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> frames = rng.normal(100, 4, (50, 24, 32, 3)).astype(np.uint8)
            >>> scene = still_scene(frames)
            >>> frames[7, 10:14, 10:14] = 180
            >>> found = scene.evidence(frames[7])
            >>> bool(found[10:14, 10:14].min() > 5), bool(np.median(found) < 2)
            (True, True)
        """
        relative = self.difference(frame, gain)
        relative /= self.noise
        squares = np.square(relative, out=relative)
        blurred = np.asarray(cv2.GaussianBlur(squares, (0, 0), ENERGY_BLUR), np.float32)
        return np.asarray(cv2.sqrt(blurred, blurred), np.float32)


def divided(frame: Pixels, gain: Floats) -> Floats:
    """Divide a frame by a gain, given as (1, 1, 1) or as (height, 1, 1).

    >>> divided(np.full((2, 2, 3), 6, np.uint8), np.full((1, 1, 1), 4, np.float32))[0, 0].tolist()
    [1.5, 1.5, 1.5]
    """
    values = frame.astype(np.float32)
    values /= gain
    return values


def common_evidence(evidence: Floats) -> float:
    """Return the evidence that most of a frame exceeds: a quantile, computed ten times faster."""
    some = evidence[::4, ::4].ravel()
    rank = int(COMMON_SHARE * some.size)
    return float(np.partition(some, rank)[rank])


def without_common(evidence: Floats, usual: float) -> Floats:
    """Set evidence to 0 where it does not exceed that of the rest of the frame.

    A codec changes the whole frame slightly at each key frame, which the noise does not include.

    Args:
        evidence: (height, width) of a frame, in units of the noise.
        usual: Usual value of `common_evidence`.

    Example:
        >>> evidence = np.full((40, 40), 2.0, np.float32)
        >>> evidence[:2, :5] = 8
        >>> evidence[8:20, 8:20] = 30
        >>> np.unique(without_common(evidence, usual=2.0)).tolist()
        [2.0, 8.0, 30.0]
        >>> np.unique(without_common(evidence, usual=0.5)).tolist()
        [0.0, 30.0]
    """
    raised = common_evidence(evidence) / max(usual, NOISE_SHARE)
    if raised < RAISED:
        return evidence
    return np.where(evidence < MIN_STILL_EVIDENCE * raised, np.float32(0), evidence)


MEAN = np.full((1, 3), 1 / 3, np.float32)
GREY = np.array([[0.299, 0.587, 0.114]], np.float32)


def still_scene(sample: Frames, moving: NDArray[np.bool_] | None = None) -> StillScene:
    """Learn the scene from frames spread over a recording.

    Args:
        sample: (time, height, width, 3) uint8; a few dozen frames are enough.
        moving: (time, height, width) pixels that move, from `moving_pixels`. A large object may
            cover a pixel in more than half of the frames.
    """
    flat = np.ones(sample.shape[1:3], np.float32)
    scene = StillScene(_median_over_time(sample), flat, bands=False)
    scene = StillScene(scene.backdrop, flat, bands=_has_bands(sample, scene))
    levelled = np.stack(in_parallel(scene.levelled, sample))
    if moving is not None:
        moving = _hidden_by_motion(levelled, moving)
    scene = StillScene(_median_over_time(levelled, moving), flat, scene.bands)
    differences = np.stack(in_parallel(scene.difference, sample))
    middle = _median_over_time(differences, moving)
    noise = cv2.GaussianBlur(middle, (0, 0), NOISE_BLUR) / MEDIAN_DEVIATION
    scene = StillScene(scene.backdrop, np.maximum(noise, NOISE_FLOOR), scene.bands)
    return _without_resting(scene, levelled)


def moving_pixels(sample: Frames, after: Frames) -> NDArray[np.bool_]:
    """Return the (time, height, width) pixels that move from each frame to the one after it.

    Args:
        sample: (time, height, width, 3) uint8.
        after: The frames that follow those of the sample.
    """
    size = sample.shape[2], sample.shape[1]
    scale = min(1.0, max(MOTION_SIDE / max(size), SHORTEST_SIDE / min(size)))

    def small(frame: Pixels) -> Pixels:
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        reduced = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        return np.asarray(reduced, np.uint8)

    def moves(frame: Pixels, following: Pixels) -> NDArray[np.bool_]:
        flow = optical_flow(small(frame), small(following))
        flow -= np.median(flow, axis=(0, 1))
        found = (np.hypot(flow[..., 0], flow[..., 1]) > MOVING).astype(np.uint8)
        whole = cv2.dilate(cv2.morphologyEx(found, cv2.MORPH_CLOSE, CLOSING), CLOSING)
        return np.asarray(cv2.resize(whole, size, interpolation=cv2.INTER_NEAREST) > 0)

    return np.stack(in_parallel(moves, sample, after))


def _median_over_time(
    frames: NDArray[np.uint8] | Floats, moving: NDArray[np.bool_] | None = None
) -> Floats:
    """Return the median of each pixel, computed in bands of rows to bound memory.

    Args:
        frames: (time, height, width) or (time, height, width, 3).
        moving: From `moving_pixels`. A pixel that moves often is the median of the other frames.
    """
    middle = np.empty(frames.shape[1:], np.float32)
    rows = max(1, min(ROW_BYTES // (8 * frames[:, 0].size), -(-len(middle) // 2)))

    def band(top: int) -> None:
        some = slice(top, top + rows)
        middle[some] = np.median(frames[:, some], axis=0)
        if moving is not None:
            often, median = _median_at_rest(frames[:, some], moving[:, some])
            middle[some][often] = median

    in_parallel(band, range(0, len(middle), rows))
    return middle


def _hidden_by_motion(levelled: Frames, moving: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return `moving`, but only where the frames without motion show what is behind.

    Where an animal rests, the scene may be seen mostly while the animal moves nearby. The median of
    all frames and that of the frames without motion compete: the one with which more frames agree
    is the scene. Frames with motion count less, as they may show a large object.
    """
    hidden = moving.copy()

    def compare(row: int) -> None:
        often, at_rest = _median_at_rest(levelled[:, row], moving[:, row])
        if not often.any():
            return
        seen = levelled[:, row, often].astype(np.float32)
        weight = np.where(moving[:, row, often], MOVING_WEIGHT, 1)
        all_frames = np.median(seen, axis=0)
        support, support_at_rest = (
            (weight * (np.abs(seen - colour).mean(-1) < SAME_COLOUR)).sum(0)
            for colour in (all_frames, at_rest)
        )
        differ = np.abs(all_frames - at_rest).mean(-1) > SAME_COLOUR
        hidden[:, row, np.flatnonzero(often)[differ & (support > support_at_rest)]] = False

    in_parallel(compare, range(levelled.shape[1]))
    return hidden


def _median_at_rest(
    frames: NDArray[np.uint8] | Floats, moving: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Floats]:
    """Return the pixels that move often but not always, and their medians while they do not."""
    resting = np.count_nonzero(~moving, axis=0)
    often = (resting < (1 - OFTEN) * len(frames)) & (resting > SELDOM * len(frames))
    values = frames[:, often].astype(np.float32)
    values[moving[:, often]] = np.inf
    values.sort(axis=0)
    median: Floats = values[(resting[often] - 1) // 2, np.arange(values.shape[1])]
    return often, median


def _has_bands(sample: Frames, scene: StillScene) -> bool:
    """Return whether one gain per row explains the frames clearly better than a single gain."""
    banded = StillScene(scene.backdrop, scene.noise, bands=True)
    plain = np.mean([np.median(scene.difference(frame)) for frame in sample[::4]])
    return bool(np.mean([np.median(banded.difference(f)) for f in sample[::4]]) < BANDS * plain)


def _without_resting(scene: StillScene, levelled: Frames) -> StillScene:
    """Remove objects that rest for about half of the time or more.

    Where such an object has left, frames differ from the backdrop, but the outline of the
    difference has edges in the backdrop and none in the frame. There, the frame shows the scene.
    """
    backdrop, noise = scene.backdrop.copy(), scene.noise.copy()
    for frame in levelled:
        seen = StillScene(backdrop, noise, bands=False)
        mask = (seen.evidence(frame) > RESTING_EVIDENCE).astype(np.uint8)
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
        images = edges(frame.astype(np.float32)), edges(backdrop)
        difference = seen.distance(frame.astype(np.float32))
        for number in range(1, count):
            if stats[number, cv2.CC_STAT_AREA] < RESTING_PIXELS:
                continue
            part = (labels == number).astype(np.uint8)
            inside = cv2.dilate(part, SQUARE) > 0
            outline = inside & (cv2.erode(part, SQUARE, borderValue=0) == 0)
            in_frame, in_backdrop = (float(np.mean(edge[outline])) for edge in images)
            if in_backdrop > RESTING_EDGES * in_frame:
                inside = _whole(part, difference)
                if correlation(images[0][inside], images[1][inside]) > SAME_TEXTURE:
                    continue  # a lamp: the same scene in different light
                alike = _frames_alike(levelled, frame, inside, noise)
                if alike.sum() >= RESTING_FRAMES:
                    shown = levelled[alike][:, inside]
                    backdrop[inside] = np.median(shown, axis=0)
                    if np.count_nonzero(np.diff(alike)) <= MOST_VISITS:  # else a lamp that flickers
                        noise[inside] = np.minimum(noise[inside], _noise(shown, backdrop[inside]))
    return StillScene(backdrop, noise, scene.bands)


def _whole(part: Pixels, difference: Floats) -> NDArray[np.bool_]:
    """Return the whole object that a part with clear evidence belongs to.

    The noise is high where an object rests for half of the time, so the evidence shows only its
    part of highest contrast.
    """
    weak = difference > WEAK * np.median(difference[part > 0])
    _, labels = cv2.connectedComponents((weak | (part > 0)).astype(np.uint8), connectivity=8)
    whole = labels == labels[part > 0][0]
    if np.count_nonzero(whole) > MOST_GROWTH * np.count_nonzero(part):  # it touches something else
        whole = part > 0
    return np.asarray(cv2.dilate(whole.astype(np.uint8), SQUARE) > 0)


def _noise(shown: NDArray[np.uint8], backdrop: Floats) -> Floats:
    """Return the noise of pixels (frames, pixels, 3) around their backdrop (pixels, 3)."""
    squares = np.square(shown - backdrop).mean(-1)
    noise: Floats = np.median(np.sqrt(squares), axis=0) / MEDIAN_DEVIATION
    return np.maximum(noise, NOISE_FLOOR)


SQUARE = np.ones((3, 3), np.uint8)


def _frames_alike(
    levelled: Frames, frame: Pixels, inside: NDArray[np.bool_], noise: Floats
) -> NDArray[np.bool_]:
    """Return which frames are the same as `frame` in a region."""
    difference = levelled[:, inside].astype(np.float32) - frame[inside]
    length = np.sqrt(np.square(difference).mean(-1)) / noise[inside]
    alike: NDArray[np.bool_] = np.median(length, axis=1) < RESTING_SAME
    return alike


def correlation(first: Floats, second: Floats) -> float:
    """Return the correlation of two arrays of the same shape; 0 if one of them is constant."""
    a, b = (values.ravel() - values.mean() for values in (first, second))
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 0.0


def edges(image: Floats) -> Floats:
    """Return the length of the gradient of the grey image."""
    grey = cv2.GaussianBlur(cv2.transform(image, GREY), (0, 0), 1.0)
    across, down = cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    return np.asarray(cv2.magnitude(across, down), np.float32)


def texture(image: Floats) -> Floats:
    """Return the details of the grey image; light changes their strength but not their shape."""
    grey = cv2.transform(image, GREY)
    fine, coarse = (cv2.GaussianBlur(grey, (0, 0), sigma) for sigma in (DETAIL, 4 * DETAIL))
    return np.asarray(fine - coarse, np.float32)


def _resize(values: Floats, height: int, width: int) -> Floats:
    return np.asarray(cv2.resize(values, (width, height), interpolation=cv2.INTER_AREA), np.float32)
