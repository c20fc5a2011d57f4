"""One window of a moving camera: consensus, refinement, and hypotheses that J compares.

Section 2 of the paper places the states of a Markov chain so that states between which the chain
often steps lie close together. Here a state is a small cell of a frame, and the chain steps to
cells that look alike and lie nearby, in any frame of the video. Averaging a function of the cells
along the chain keeps its slow components (parts of the video that belong together) and removes fast
ones (single cells that stand out by chance). A few steps therefore carry evidence of motion from
cells where it is clear to similar cells where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import cv2
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.spatial import KDTree

from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.moving.evidence import motion_evidence
from ullayers.locate.outline import edge_outline, mask_moments
from ullayers.locate.paths import (
    Anchors,
    Labelled,
    ObjectPath,
    fill_gaps,
    in_world,
    label_parts,
    taught_path,
    track_objective,
    trim_swollen,
)
from ullayers.locate.scene.still import MIN_STILL_EVIDENCE
from ullayers.tracks.masks import EDGE
from ullayers.video import memory
from ullayers.video.parallel import in_parallel

CELLS = 96  # along the longer side of a frame
LANDMARKS = 40_000  # cells that the chain steps to, drawn at random
NEIGHBOURS = 12  # cells that each cell steps to
STEPS = 4
REACH_STEPS = 30  # enough to reach a cell with clear evidence
SURROUNDINGS = 3.0  # cells: width of the blur that describes the surroundings of a cell
POSITION = 3.0  # weight of the position, in standard deviations of the colour per longer side
TOLERANCE = 1.0  # relative: neighbours may be this much farther away than the nearest ones
STRENGTH_BINS = 40
STRENGTH_RANGE = 0.01, 0.999  # quantiles of the strength that the bins cover
STRENGTH_BLUR = 1.5  # bins
COLOUR_BINS = 16  # along each axis of the Lab colour space
COLOUR_WIDTH = 16.0, 5.0, 5.0  # of a bin; most colours are close to grey
COLOUR_BLUR = 0.7  # bins
SHAPE_BLUR = 2.5  # cells
LARGEST_RATIO = 4.0  # of a logarithm: no single histogram decides alone
FEW = 1e-3  # cells added to each bin, so that an empty one decides nothing
Bins = NDArray[np.intp]
Doubles = NDArray[np.float64]
LEAST_SIDE, MOST_ENLARGED = 96, 2  # of the shorter side in pixels; factor of narrow frames
ANALYSIS_SIDE = 384  # pixels of the longer side at which motion is measured
SHORTEST_SIDE = 16  # pixels
BINS = 256
MIN_EVIDENCE = 1.5  # times the median of a frame: weaker evidence is not motion
# Relative to the threshold: cells below the first are background, cells above the second are
# objects. In between, the chain decides.
BACKGROUND, OBJECT = 0.5, 1.2
LARGEST_OBJECT = 0.5  # of the frame: anything larger is the background
SELECTIVITY = (1.0, 1.4, 2.0)  # competing thresholds, times Otsu's; higher ones split objects
# Confidence per share of the evidence that an object explains. On DAVIS and the thrown pillow, at
# least 95 % of the positions with a confidence of at least 0.5 are on the object.
CALIBRATION = 0.66
EXPLAINED = 1.5  # times the median: weaker evidence is not counted
FITTING = 2.0  # times the noise: a scene fits frames whose median difference is below this
STILL_SELECTIVITY = 0.5  # of Otsu's threshold: objects differ in contrast, noise does not
LARGEST_QUANTILE = 0.999  # larger evidence does not raise the threshold
MISSING_COST = 10.0  # of J, if the object is found in no frame
CLEAR_GAIN = 0.75  # by which another hypothesis must lower J to replace the first one


@dataclass(frozen=True)
class CellChain:
    """A Markov chain on the cells of a video.

    Attributes:
        shape: (time, rows, columns) of cells.
        to_landmarks: (cells, landmarks) probabilities of a step from each cell.
        landmarks: (landmarks,) cells that the chain steps to.
    """

    shape: tuple[int, int, int]
    to_landmarks: sp.csr_array
    landmarks: NDArray[np.int64]

    @cached_property
    def between_landmarks(self) -> sp.csr_array:
        """(landmarks, landmarks) probabilities of a step from each landmark."""
        return self.to_landmarks[self.landmarks]

    def walk(self, values: Floats, steps: int = STEPS) -> Floats:
        """Return the expectation of a function of the cells after some steps of the chain.

        Args:
            values: (time, rows, columns) or (time, rows, columns, functions).
            steps: Number of steps, at least 1; many steps leave only the slowest functions.
        """
        if steps < 1 or values.shape[:3] != self.shape:
            raise ValueError(
                f"expected values {self.shape} and at least one step, got {values.shape} and "
                f"{steps} steps"
            )
        flat = values.reshape(self.to_landmarks.shape[0], -1)[self.landmarks]
        for _ in range(steps - 1):
            flat = self.between_landmarks @ flat
        result: Floats = (self.to_landmarks @ flat).reshape(values.shape).astype(np.float32)
        return result

    def reach(self, values: Floats, low: float, high: float) -> Floats:
        """Return the probability that the chain reaches a high value before a low one.

        Cells above `high` belong to an object and cells below `low` to the background; the chain
        starts at each cell and ends when it reaches one of them (a random walker, Grady 2006). The
        natural threshold is 0.5.

        Args:
            values: (time, rows, columns).
            low: Values below are background.
            high: Values above are an object.
        """
        found = values.ravel()[self.landmarks]
        is_object, is_background = found > high, found < low
        chance = np.clip((found - low) / (high - low), 0, 1)
        for _ in range(REACH_STEPS):
            chance = self.between_landmarks @ chance
            chance[is_object] = 1
            chance[is_background] = 0
        result: Floats = (self.to_landmarks @ chance).reshape(values.shape).astype(np.float32)
        return result


def cell_side(height: int, width: int) -> int:
    """Return the side of a cell in pixels.

    >>> cell_side(216, 384), cell_side(144, 96), cell_side(16, 3000)
    (4, 2, 16)
    """
    return max(1, min(round(max(height, width) / CELLS), height, width))


def cell_means(values: NDArray[np.generic], cell: int) -> Floats:
    """Average images over square cells; a remainder at the right and bottom edge is dropped.

    Args:
        values: (time, height, width) or (time, height, width, channels).
        cell: Side of a cell in pixels.

    >>> cell_means(np.arange(16).reshape(1, 4, 4), cell=2).tolist()
    [[[2.5, 4.5], [10.5, 12.5]]]
    """
    time, height, width = values.shape[:3]
    rows, columns = height // cell, width // cell
    kept = values[:, : rows * cell, : columns * cell].astype(np.float32)
    blocks = kept.reshape(time, rows, cell, columns, cell, *values.shape[3:])
    means: Floats = blocks.mean(axis=(2, 4))
    return means


def cell_colours(frames: Frames, cell: int) -> Floats:
    """Return the (time, rows, columns, 3) colours of cells, in OpenCV's Lab of 8 bits.

    Args:
        frames: (time, height, width, 3) uint8.
        cell: Side of a cell in pixels.
    """
    lab = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2LAB) for frame in frames])
    return cell_means(lab, cell)


def cell_chain(frames: Frames, cell: int, seed: int = 0) -> CellChain:
    """Build the chain of a video.

    Args:
        frames: (time, height, width, 3) uint8.
        cell: Side of a cell in pixels.
        seed: Seed of the random choice of landmarks.

    Example:
        >>> frames = np.zeros((3, 32, 32, 3), np.uint8)
        >>> frames[:, :, 16:] = 200  # two halves
        >>> chain = cell_chain(frames, cell=4)
        >>> hint = np.zeros(chain.shape, np.float32)
        >>> hint[0, 4, 6] = 1  # evidence in a single cell of the right half
        >>> spread = chain.walk(hint, steps=8)
        >>> bool(spread[2, 4, 6] > 0), bool(spread[:, :, :4].max() == 0)
        (True, True)
    """
    features, shape = _describe(frames, cell)
    count = len(features)
    generator = np.random.default_rng(seed)
    landmarks = np.sort(generator.permutation(count)[:LANDMARKS])
    k = min(NEIGHBOURS, len(landmarks))
    distance, near = KDTree(features[landmarks]).query(features, k=k, eps=TOLERANCE)
    distance = np.asarray(distance).reshape(count, k)
    near = np.asarray(near).reshape(count, k)
    scale = max(float(np.median(distance[:, -1])), 1e-6)
    weights = np.exp(-0.5 * np.square(distance / scale)) + 1e-12
    weights /= weights.sum(axis=1, keepdims=True)
    starts = np.arange(0, count * k + 1, k)
    steps = sp.csr_array((weights.ravel(), near.ravel(), starts), shape=(count, len(landmarks)))
    steps.sort_indices()
    return CellChain(shape, steps, landmarks)


def _describe(frames: Frames, cell: int) -> tuple[Floats, tuple[int, int, int]]:
    """Return colour, colour of the surroundings, and position of all cells."""
    own = cell_colours(frames, cell)
    wide = np.stack([cv2.GaussianBlur(image, (0, 0), SURROUNDINGS) for image in own])
    time, rows, columns = own.shape[:3]
    y, x = np.mgrid[:rows, :columns] / max(rows, columns)
    place = np.broadcast_to(POSITION * np.stack([x, y], axis=-1), (time, rows, columns, 2))
    contrast = max(float(own.reshape(-1, 3).std(0).mean()), 1.0)
    features = np.concatenate([own / contrast, wide / contrast, place], axis=-1)
    return features.reshape(-1, 8).astype(np.float32), (time, rows, columns)


def refine(colours: Floats, strength: Floats, chance: Floats) -> Floats:
    """Return the probability that each cell belongs to the object.

    Args:
        colours: (time, rows, columns, 3) colours of the cells, in OpenCV's Lab of 8 bits.
        strength: (time, rows, columns) evidence of motion.
        chance: (time, rows, columns) probability of each cell by motion alone, 0 for other objects.
            In some frame, it must not be 0 everywhere.

    Example:
        >>> colours = np.full((6, 20, 30, 3), 128, np.float32)
        >>> truth = np.zeros((6, 20, 30), bool)
        >>> for t in range(6):
        ...     truth[t, 5:15, 3 * t + 4 : 3 * t + 12] = True
        >>> colours[truth] = 60, 160, 128
        >>> seen = truth.astype(np.float32)
        >>> seen[2, 10:] = 0  # in one frame, motion shows the upper half only
        >>> found = refine(colours, 1 + 4 * seen, seen) > 0.5
        >>> bool((found == truth).mean() > 0.99)
        True
    """
    known = chance.ravel().astype(float)
    odds = _shape_odds(chance)
    for bins, blur in (
        (_strength_bins(strength), STRENGTH_BLUR),
        (_colour_bins(colours), COLOUR_BLUR),
    ):
        odds += _log_ratio(bins, known, blur).clip(-LARGEST_RATIO, LARGEST_RATIO)
    found: Floats = (1 / (1 + np.exp(-odds))).reshape(chance.shape).astype(np.float32)
    return found


def _shape_odds(chance: Floats) -> Doubles:
    """Return the logarithm of the odds of each cell, given its position relative to the object."""
    count, rows, columns = chance.shape
    y, x = np.mgrid[:rows, :columns]
    centre = np.full((count, 2), np.nan)
    for t, frame in enumerate(chance):
        if (total := frame.sum()) > 0:
            centre[t] = (frame * x).sum() / total, (frame * y).sum() / total
    centre = fill_gaps(centre).round().astype(int)
    down = y - centre[:, 1, None, None] + rows
    right = x - centre[:, 0, None, None] + columns
    shape = 2 * rows, 2 * columns
    bins = np.ravel_multi_index((down.ravel(), right.ravel()), shape)
    size = shape[0] * shape[1]
    inside = np.bincount(bins, chance.ravel(), size).reshape(shape)
    seen = np.bincount(bins, minlength=size).reshape(shape).astype(float)
    share = (_blurred(inside, SHAPE_BLUR) + FEW) / (_blurred(seen, SHAPE_BLUR) + 2 * FEW)
    share = share.clip(FEW, 1 - FEW)
    odds: Doubles = np.log(share / (1 - share)).ravel()[bins]
    return odds


def _strength_bins(strength: Floats) -> tuple[Bins, tuple[int, ...]]:
    logarithm = np.log(np.maximum(strength, 1e-3)).ravel()
    low, high = np.quantile(logarithm, STRENGTH_RANGE)
    edges = np.linspace(float(low), float(high), STRENGTH_BINS)
    return np.digitize(logarithm, edges), (STRENGTH_BINS + 1,)


def _colour_bins(colours: Floats) -> tuple[Bins, tuple[int, ...]]:
    shape = (COLOUR_BINS,) * 3
    bins = (colours.reshape(-1, 3) - 128) / COLOUR_WIDTH + COLOUR_BINS / 2
    inside = bins.astype(int).clip(0, COLOUR_BINS - 1)
    return np.ravel_multi_index(tuple(inside.T), shape), shape


def _log_ratio(binned: tuple[Bins, tuple[int, ...]], known: Doubles, blur: float) -> Doubles:
    """Return the logarithm of the ratio of probabilities in the object and outside it."""
    bins, shape = binned
    size = int(np.prod(shape))
    inside, outside = (
        _blurred(np.bincount(bins, weights, size).astype(float).reshape(shape), blur)
        for weights in (known, 1 - known)
    )
    few = FEW / size
    ratio = (inside / inside.sum() + few) / (outside / outside.sum() + few)
    logarithm: Doubles = np.log(ratio).ravel()[bins]
    return logarithm


def _blurred(counts: Doubles, width: float) -> Doubles:
    smooth: Doubles = gaussian_filter(counts, width)
    return smooth


@dataclass(frozen=True)
class Segments:
    """The moving object in a window of frames.

    Attributes:
        soft: (time, height, width) uint8 at the size of the frames: 255 on the object, 128 at its
            outline.
        positions: (time, 2) centroids x, y in 0..1; NaN where nothing was found.
        confidence: (time,) from 0 to 1.
        others: (time,) mass of the strongest other object, relative to the object's own.
        objective: J of the track; NaN if the window is too short for it.
        owners: (time, height, width) number of the track of each pixel, if all objects are
            followed.
        cores: (time, 3) variances xx, xy and yy of the core of the object, as in `Blobs`, in pixels
            of the frames; None if only its mask is known.
    """

    soft: NDArray[np.uint8]
    positions: NDArray[np.float64]
    confidence: NDArray[np.float64]
    others: NDArray[np.float64]
    objective: float
    owners: NDArray[np.uint16] | None = None
    cores: NDArray[np.float64] | None = None

    @property
    def masks(self) -> NDArray[np.bool_]:
        """(time, height, width) bool mask of the object in each frame."""
        inside: NDArray[np.bool_] = self.soft >= EDGE
        return inside


@dataclass(frozen=True)
class _Hypothesis:
    """A kind of evidence, a threshold, and the resulting object."""

    objective: float
    strength: Floats
    chance: Floats
    parts: NDArray[np.bool_]
    others: NDArray[np.float64]

    @property
    def cost(self) -> float:
        """Cost for comparing hypotheses: J plus a cost for frames without the object."""
        return self.objective + MISSING_COST * float(np.mean(~self.parts.any(axis=(1, 2))))


def segment_motion(
    frames: Frames,
    attention: Floats | None = None,
    seed: int = 0,
    anchors: Anchors | None = None,
) -> Segments:
    """Find the object that moves relative to the camera in a window of consecutive frames.

    Args:
        frames: (time, height, width, 3) uint8, at least two frames of at least 16 x 16 pixels.
        attention: (time, rows, columns) masks of a network, of any size. If there are several
            objects, the one with the most attention is preferred.
        seed: Seed of the random choice of cells in `cell_chain`.
        anchors: Positions of the object given by the user.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scene = cv2.GaussianBlur(rng.integers(0, 255, (64, 120, 3), np.uint8), (0, 0), 2)
        >>> frames = np.stack([scene[:, t : t + 96] for t in range(8)])  # the camera pans
        >>> for t in range(8):
        ...     frames[t, 20:32, 30 + 2 * t : 42 + 2 * t] = (255, 40, 40)
        >>> found = segment_motion(frames)
        >>> x, y = found.positions[4] * (96, 64)
        >>> bool(abs(x - 44) < 3), bool(abs(y - 26) < 3)
        (True, True)
    """
    small = enlarged(resized(frames, ANALYSIS_SIDE))
    cell = cell_side(*small.shape[1:3])
    evidence = motion_evidence(small)
    chain = cell_chain(small, cell, seed)
    window = _Window(
        [_agreed(cell_means(kind, cell), chain) for kind in evidence.kinds],
        chain,
        in_cells(evidence.path, cell),
        attention,
        anchors,
    )
    best = _refined(window, _best_hypothesis(window), cell_colours(small, cell))
    soft = np.stack(in_parallel(edge_outline, frames, best.chance, best.parts))
    objective = best.objective if np.isfinite(best.objective) else np.nan
    shares = [explained_share(strength, best.parts) for strength in window.strengths]
    confidence = CALIBRATION * np.max(shares, axis=0) * contrast(best.strength, best.parts)
    return Segments(soft, centroids(soft >= EDGE), confidence, best.others, objective)


def _agreed(values: Floats, chain: CellChain) -> Floats:
    """Return the evidence of cells after consensus.

    The product keeps the detail of the evidence and the certainty of the consensus.
    """
    strength: Floats = np.sqrt(values * chain.walk(values))
    return strength


@dataclass(frozen=True)
class _Window:
    """Input for all hypotheses.

    Attributes:
        strengths: Evidence of cells for each kind, the preferred kind first.
        chain: The chain of the cells.
        path: Homographies of cells along the camera's path.
        attention: Masks of a network.
        anchors: Positions given by the user.
    """

    strengths: list[Floats]
    chain: CellChain
    path: NDArray[np.float64]
    attention: Floats | None
    anchors: Anchors | None


def _best_hypothesis(window: _Window) -> _Hypothesis:
    """Compare thresholds and kinds of evidence by J; keep the first unless J is clearly lower."""
    first, *others = window.strengths
    tried = [_hypothesis(window, first, factor) for factor in SELECTIVITY]
    tried += [_hypothesis(window, strength, SELECTIVITY[0]) for strength in others]
    best = tried[0]
    for other in tried[1:]:
        if other.cost < best.cost - CLEAR_GAIN:
            best = other
    return best


def _hypothesis(window: _Window, strength: Floats, selectivity: float) -> _Hypothesis:
    threshold = selectivity * max(otsu_threshold(strength), MIN_EVIDENCE)
    chance = window.chain.reach(strength, BACKGROUND * threshold, OBJECT * threshold)
    return _main_object(window, strength, chance, np.where(chance > 0.5, strength, 0))


def _main_object(window: _Window, strength: Floats, chance: Floats, weight: Floats) -> _Hypothesis:
    """Return the hypothesis of the main object among the parts with a positive weight."""
    labelled = label_all(weight, 0.0, window.attention)
    certain = None
    if window.anchors is not None:
        labelled = window.anchors.choose(labelled, strength)
        certain = window.anchors.given.tolist()
    chosen = follow_object(labelled, max(strength.shape[1:]), certain)
    parts = trim_swollen(part_masks(labelled, chosen))
    parts[parts.mean(axis=(1, 2)) > LARGEST_OBJECT] = False
    world = in_world(centroids(parts) * parts.shape[:0:-1], window.path)
    others = other_masses(labelled, chosen)
    return _Hypothesis(track_objective(world), strength, chance, parts, others)


def _refined(window: _Window, best: _Hypothesis, colours: Floats) -> _Hypothesis:
    """Return the same object with the cells that its colours and its shape add or remove."""
    if not best.parts.any():
        return best
    chance = refine(colours, best.strength, best.chance * best.parts)
    found = _main_object(window, best.strength, chance, np.where(chance > 0.5, chance, 0))
    return replace(found, others=best.others)  # elsewhere, refinement leaves nothing


def label_all(strength: Floats, threshold: float, attention: Floats | None) -> list[Labelled]:
    """Find the parts of each frame; see `label_parts`."""
    masks = [None] * len(strength) if attention is None else attention
    return in_parallel(label_parts, strength, [threshold] * len(strength), masks)


def in_cells(path: NDArray[np.float64], cell: int) -> NDArray[np.float64]:
    """Convert homographies of pixels to homographies of cells."""
    scale = np.diag([cell, cell, 1.0])
    return np.linalg.inv(scale) @ path @ scale


def explained_share(strength: Floats, parts: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of the clear evidence in each frame that the object explains.

    It is high for an object that moves alone, and low among waves, smoke or parallax.
    """
    usual = EXPLAINED * np.median(strength, axis=(1, 2), keepdims=True)
    excess = np.maximum(strength - usual, 0)
    total = excess.sum(axis=(1, 2))
    inside = np.where(parts, excess, 0).sum(axis=(1, 2))
    share: NDArray[np.float64] = (inside / np.maximum(total, 1e-9)).astype(float)
    return share


def contrast(strength: Floats, parts: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return how clearly an object stands out: 0 at the median, 1 from 4 times the median."""
    area = parts.sum(axis=(1, 2))
    inside = np.where(parts, strength, 0).sum(axis=(1, 2)) / np.maximum(area, 1)
    ratio = inside / np.maximum(np.median(strength, axis=(1, 2)), 1e-9)
    clear: NDArray[np.float64] = np.clip(np.log2(np.maximum(ratio, 1)) / 2, 0, 1).astype(float)
    return clear


def other_masses(labelled: list[Labelled], chosen: list[int | None]) -> NDArray[np.float64]:
    """Return the mass of the strongest other part of each frame, relative to the chosen one."""
    found = np.zeros(len(chosen))
    for t, number in enumerate(chosen):
        if number is not None:
            masses = [part.mass for part in labelled[t].parts]
            own = masses.pop(number)
            found[t] = max(masses, default=0.0) / own
    return found


def part_masks(labelled: list[Labelled], chosen: list[int | None]) -> NDArray[np.bool_]:
    """Return (time, height, width) masks of the chosen parts."""
    masks = np.zeros((len(labelled), *labelled[0].labels.shape), bool)
    for each, number, mask in zip(labelled, chosen, masks, strict=True):
        if number is not None:
            np.equal(each.labels, each.parts[number].label, out=mask)
    return masks


def part_places(labelled: list[Labelled], chosen: list[int | None]) -> NDArray[np.float64]:
    """Return (time, 2) centroids of the chosen parts in pixels; NaN where there is none."""
    places = np.full((len(chosen), 2), np.nan)
    for t, number in enumerate(chosen):
        if number is not None:
            places[t] = labelled[t].parts[number][:2]
    return places


def follow_object(
    labelled: list[Labelled], longer_side: float, certain: Sequence[bool] | None = None
) -> list[int | None]:
    """Return the number of the part that is the main object in each frame.

    Args:
        labelled: Parts of the frames.
        longer_side: Longer side of the frames in pixels.
        certain: As in `ObjectPath.follow`.
    """
    largest = [each.parts[0].mass for each in labelled if each.parts]
    if not largest:
        return [None] * len(labelled)
    if certain is not None and any(certain):
        path = taught_path(longer_side, [each.parts for each in labelled], certain)
    else:
        path = ObjectPath(longer_side, float(np.median(largest)))
    return path.follow([each.parts for each in labelled], certain)


def resized(frames: Frames, longer_side: int) -> Frames:
    """Shrink frames whose longer side exceeds `longer_side`."""
    _, height, width, _ = frames.shape
    rows, columns = reduced_size(height, width, longer_side)
    if (rows, columns) == (height, width):
        return frames
    return _scaled(frames, rows, columns, cv2.INTER_AREA)


def enlarged(frames: Frames) -> Frames:
    """Enlarge narrow frames, up to twice: optical flow needs objects of several pixels.

    Frames that are small in both directions stay as they are: there, the larger steps of fast
    objects outweigh the gain.
    """
    _, height, width, _ = frames.shape
    wanted = min(MOST_ENLARGED, LEAST_SIDE / min(height, width))
    if max(height, width) < LEAST_SIDE:
        return frames
    scale = min(wanted, ANALYSIS_SIDE / max(height, width))
    if scale <= 1:
        return frames
    return _scaled(frames, round(height * scale), round(width * scale), cv2.INTER_CUBIC)


def _scaled(frames: Frames, rows: int, columns: int, interpolation: int) -> Frames:
    scaled = memory.empty((len(frames), rows, columns, 3), np.uint8)

    def scale(frame: Pixels, place: Pixels) -> None:
        cv2.resize(frame, (columns, rows), place, interpolation=interpolation)

    in_parallel(scale, frames, scaled)
    return scaled


def reduced_size(height: int, width: int, longer_side: int) -> tuple[int, int]:
    """Return the size of smaller frames; their shorter side keeps a few pixels.

    >>> reduced_size(480, 960, 320), reduced_size(100, 200, 320), reduced_size(16, 3200, 320)
    ((160, 320), (100, 200), (16, 3200))
    """
    scale = min(1.0, max(longer_side / max(height, width), SHORTEST_SIDE / min(height, width)))
    return round(height * scale), round(width * scale)


def otsu_threshold(values: Floats) -> float:
    """Return the threshold that best separates two groups of values (Otsu 1979).

    >>> bool(1 < otsu_threshold(np.array([0.0, 1, 0, 1, 9, 10], np.float32)) < 9)
    True
    """
    counts, edges = np.histogram(values, BINS)
    centres = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(counts)[:-1].astype(float)
    above = counts.sum() - below
    sum_below = np.cumsum(counts * centres)[:-1]
    sum_above = (counts * centres).sum() - sum_below
    between = np.full(BINS - 1, -1.0)
    both = (below > 0) & (above > 0)
    difference = sum_below[both] / below[both] - sum_above[both] / above[both]
    between[both] = below[both] * above[both] * np.square(difference)
    return float(edges[1:-1][np.argmax(between)])


def still_threshold(evidence: Floats) -> float:
    """Return the evidence above which a pixel belongs to something, with a still camera.

    Args:
        evidence: Evidence of one or several frames, in units of the noise.
    """
    capped = np.minimum(evidence, np.quantile(evidence, LARGEST_QUANTILE))
    return max(STILL_SELECTIVITY * otsu_threshold(capped), MIN_STILL_EVIDENCE)


def centroids(masks: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the (time, 2) centroids x, y of masks in 0..1; NaN where a mask is empty.

    >>> mask = np.zeros((2, 4, 8), bool)
    >>> mask[0, 0, :2] = True
    >>> centroids(mask).tolist()
    [[0.125, 0.125], [nan, nan]]
    """
    _, height, width = masks.shape
    places = np.array([mask_moments(mask)[:2] for mask in masks])  # faster than sums over windows
    return places / (width, height)
