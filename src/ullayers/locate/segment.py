"""Masks and positions of what moves, from evidence and consensus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import cv2
import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from ullayers.locate.consensus import cell_chain, cell_means
from ullayers.locate.evidence import Evidence, motion_evidence
from ullayers.locate.flow import Floats, Frames

SMALLEST_PART = 0.2  # a part smaller than this share of the largest one is dropped
GUIDE_RADIUS = 8  # pixels
GUIDE_NOISE = 25.0  # squared grey levels: edges below about five levels are not followed
BINS = 256
MIN_EVIDENCE = 1.5  # times the median of a frame; less is not motion


@dataclass(frozen=True)
class Segments:
    """What moves in a window of frames.

    Attributes:
        masks: (time, height, width) bool.
        positions: (time, 2) centroids x, y in 0..1; NaN where the mask is empty.
        strength: (time, height, width) evidence after consensus.
        evidence: The evidence before it.
    """

    masks: NDArray[np.bool_]
    positions: NDArray[np.float64]
    strength: Floats
    evidence: Evidence


def segment_motion(frames: Frames, seed: int = 0) -> Segments:
    """Find what moves against the camera in a window of consecutive frames, without training.

    Args:
        frames: (time, height, width, 3) uint8, at least two frames of at least 16 x 16 pixels.
        seed: Seed of the random choice of cells in `cell_chain`.

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
    evidence = motion_evidence(frames)
    combined = cell_means(evidence.combined)
    carried = cell_chain(frames, seed=seed).walk(combined)
    # The product keeps the detail of the evidence and the certainty of the consensus.
    cells: Floats = np.sqrt(combined * carried)
    strength = np.stack(
        [_follow_edges(frame, _enlarge(c, frame)) for frame, c in zip(frames, cells, strict=True)]
    )
    masks = largest_parts(strength > max(otsu_threshold(cells), MIN_EVIDENCE))
    return Segments(masks, centroids(masks), strength, evidence)


def otsu_threshold(values: Floats) -> float:
    """Return the threshold that separates two groups of values best (Otsu 1979).

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


def largest_parts(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep the connected parts of a space-time mask that are not much smaller than the largest.

    >>> mask = np.zeros((1, 6, 6), bool)
    >>> mask[0, :4, :4] = mask[0, 5, 5] = True
    >>> largest_parts(mask).sum()
    np.int64(16)
    """
    labels, count = scipy.ndimage.label(masks, np.ones((3, 3, 3)))
    if count == 0:
        return masks
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    kept: NDArray[np.bool_] = (sizes >= SMALLEST_PART * sizes.max())[labels] & masks
    return kept


def centroids(masks: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the (time, 2) centroids x, y of masks in 0..1; NaN where a mask is empty.

    >>> mask = np.zeros((2, 4, 8), bool)
    >>> mask[0, 0, :2] = True
    >>> centroids(mask).tolist()
    [[0.125, 0.125], [nan, nan]]
    """
    _, height, width = masks.shape
    area = masks.sum(axis=(1, 2)).astype(float)
    area[area == 0] = np.nan
    x = masks.sum(axis=1) @ (np.arange(width) + 0.5) / width
    y = masks.sum(axis=2) @ (np.arange(height) + 0.5) / height
    return np.stack([x / area, y / area], axis=1)


def _enlarge(cells: Floats, frame: NDArray[np.uint8]) -> Floats:
    height, width = frame.shape[:2]
    large = cv2.resize(cells, (width, height), interpolation=cv2.INTER_LINEAR)
    return cast("Floats", large)


def _follow_edges(frame: NDArray[np.uint8], values: Floats) -> Floats:
    """Let values change where the frame does: a guided filter (He et al. 2010), per colour."""
    guides = [frame[..., i].astype(np.float32) for i in range(3)]
    filtered: Floats = np.mean([_guided_filter(guide, values) for guide in guides], axis=0)
    return filtered


def _guided_filter(guide: Floats, values: Floats) -> Floats:
    side = (2 * GUIDE_RADIUS + 1, 2 * GUIDE_RADIUS + 1)
    guide_mean, mean = cv2.blur(guide, side), cv2.blur(values, side)
    covariance = cv2.blur(guide * values, side) - guide_mean * mean
    variance = cv2.blur(guide * guide, side) - guide_mean * guide_mean
    slope = covariance / (variance + GUIDE_NOISE)
    offset = mean - slope * guide_mean
    filtered: Floats = cv2.blur(slope, side) * guide + cv2.blur(offset, side)
    return filtered
