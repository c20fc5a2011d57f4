"""One window of frames: evidence, consensus, hypotheses compared by J, and outlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.anchors import Anchors, taught_path
from ullayers.locate.consensus import (
    CellChain,
    cell_chain,
    cell_colours,
    cell_means,
    cell_side,
)
from ullayers.locate.evidence import motion_evidence
from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.judge import in_world, track_objective
from ullayers.locate.objects import Labelled, ObjectPath, label_parts, trim_swollen
from ullayers.locate.outline import EDGE, edge_outline, mask_moments
from ullayers.locate.parallel import in_parallel
from ullayers.locate.refine import refine
from ullayers.locate.still import MIN_STILL_EVIDENCE
from ullayers.video import recycled

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
    scaled = recycled.empty((len(frames), rows, columns, 3), np.uint8)

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
