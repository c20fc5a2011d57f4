"""Blobs: what stands out in each frame, one or several objects each, with its outline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Pixels
from ullayers.locate.objects import BRIDGE
from ullayers.locate.outline import EDGE, contrast_outline
from ullayers.locate.still import StillScene

MOST_BLOBS = 64  # of a frame
LEAST_MASS = 0.05  # of a clear object: fainter parts are not outlined
SMALLEST = 0.12  # of the area of a typical object
LEAST_PIXELS = 4
UNCLEAR = 0.75  # an object 1.5 times above the threshold has a confidence of one half
MOST_PIECES = 256  # components of a frame
PIECE = 0.6  # of the area of a typical object: a smaller component may be a piece of one,
WHOLE = 1.3  # if it and the rest of the object are not larger than this
PIECE_GAP = 0.25  # of the root of the area of a typical object: how far pieces are apart

Labels = NDArray[np.int32]


@dataclass(frozen=True)
class Blobs:
    """The blobs of one frame.

    Attributes:
        labels: (height, width) number of the blob that each pixel belongs to, from 1; 0 for none.
        places: (blobs, 2) centroids x, y in pixels.
        spreads: (blobs, 2, 2) covariance of the pixels of each.
        areas: (blobs,) pixels.
        clarity: (blobs,) confidence that it is an object, from 0 to 1.
        colours: (blobs, features) appearance.
        boxes: (blobs, 4) left, top, right, bottom in pixels.
        typical: Area of a typical object in pixels; 0 if it is not known.
    """

    labels: Labels
    places: NDArray[np.float64]
    spreads: NDArray[np.float64]
    areas: NDArray[np.float64]
    clarity: NDArray[np.float64]
    colours: NDArray[np.float64]
    boxes: NDArray[np.float64]
    typical: float = 0.0

    def pixels(self, blob: int) -> NDArray[np.float64]:
        """Return (pixels, 2) places x, y of the pixels of a blob."""
        radius = 3 * np.sqrt(np.diag(self.spreads[blob])) + 2
        # A blob of several objects may be long and bent, so the box is generous.
        height, width = self.labels.shape
        left, top = np.maximum(self.places[blob] - radius, 0).astype(int)
        right, bottom = np.minimum(self.places[blob] + radius + 1, (width, height)).astype(int)
        rows, columns = np.nonzero(self.labels[top:bottom, left:right] == blob + 1)
        return np.column_stack([columns + left + 0.5, rows + top + 0.5])


def measure(labels: Labels, count: int) -> tuple[NDArray[np.float64], ...]:
    """Return places, spreads and areas of the labelled pixels.

    Args:
        labels: (height, width), from 1.
        count: The largest label.

    Example:
        >>> labels = np.zeros((8, 8), np.int32)
        >>> labels[2:4, 1:5] = 1
        >>> places, spreads, areas = measure(labels, 1)
        >>> places.tolist(), areas.tolist()
        ([[3.0, 3.0]], [8.0])
    """
    rows, columns = np.nonzero(labels)
    return _moments(rows, columns, labels[rows, columns] - 1, count)


def _moments(
    rows: NDArray[Any], columns: NDArray[Any], number: NDArray[Any], count: int
) -> tuple[NDArray[np.float64], ...]:
    x, y = columns + 0.5, rows + 0.5
    areas = np.bincount(number, minlength=count).astype(float)
    safe = np.maximum(areas, 1)
    means = [np.bincount(number, values, count) / safe for values in (x, y)]
    dx, dy = x - means[0][number], y - means[1][number]
    second = [np.bincount(number, v, count) / safe + f for v, f in _products(dx, dy)]
    spreads = np.stack([second[0], second[1], second[1], second[2]], 1).reshape(-1, 2, 2)
    return np.stack(means, 1), spreads, areas


def _products(
    dx: NDArray[np.float64], dy: NDArray[np.float64]
) -> list[tuple[NDArray[np.float64], float]]:
    """Return the second moments, and what the extent of a pixel adds to them."""
    return [(dx * dx, 1 / 12), (dx * dy, 0.0), (dy * dy, 1 / 12)]


def _appearance(
    values: NDArray[np.uint8], number: NDArray[Any], areas: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (blobs, 6) mean and standard deviation of the colours of the pixels of each blob."""
    safe = np.maximum(areas, 1)
    features = []
    for colour in values.astype(float).T:
        mean = np.bincount(number, colour, len(areas)) / safe
        square = np.bincount(number, colour**2, len(areas)) / safe
        features += [mean, np.sqrt(np.maximum(square - mean**2, 0))]
    return np.stack(features, 1)


def outline_all(
    frame: Pixels,
    scene: StillScene,
    gain: Floats,
    evidence: Floats,
    threshold: float,
    least: float,
) -> NDArray[np.bool_]:
    """Outline everything that stands out of a frame.

    Args:
        frame: (height, width, 3) uint8.
        scene: The scene at the size of the frame.
        gain: Gain of the light in this frame.
        evidence: (rows, columns) of any size.
        threshold: Evidence above which a pixel belongs to something.
        least: Least sum of the evidence of a part.
    """
    mask = np.zeros(frame.shape[:2], bool)
    above = (evidence > threshold).astype(np.uint8)
    count, joined = cv2.connectedComponents(
        cv2.dilate(above, BRIDGE), connectivity=8, ltype=cv2.CV_32S
    )
    labels = joined * above
    mass = np.bincount(labels.ravel(), evidence.ravel(), count)
    mass[0] = 0
    for part in np.argsort(-mass)[:MOST_BLOBS]:
        if mass[part] < max(least, threshold):
            break
        mask |= contrast_outline(frame, scene, gain, labels == part) >= EDGE
    return mask


def typical_area(areas: Sequence[float]) -> float:
    """Return the area to which half of all pixels belong, of areas of connected parts.

    >>> typical_area([1, 1, 1, 1, 10, 12])
    10.0
    """
    ordered = np.sort(areas)
    half = np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)
    return float(ordered[half])


def find_blobs(
    frame: Pixels, mask: NDArray[np.bool_], strength: Floats, threshold: float, typical: float
) -> Blobs:
    """Find the blobs of a frame.

    Args:
        frame: (height, width, 3) uint8.
        mask: (height, width) pixels of objects.
        strength: (rows, columns) evidence, of any size.
        threshold: Evidence above which a pixel belongs to an object.
        typical: Area of a typical object in pixels. Pieces of objects are joined, and blobs that
            are much smaller are left out.
    """
    _, raw, stats, _ = cv2.connectedComponentsWithStats(
        mask.astype(np.uint8), connectivity=8, ltype=cv2.CV_32S
    )
    lookup, boxes = _join_pieces(stats[1:], typical)
    # Objects cover little of a frame: only their pixels are looked at from here on.
    rows, columns = np.nonzero(mask)
    number = lookup[raw[rows, columns] - 1]
    rows, columns, number = (each[number > 0] for each in (rows, columns, number))
    labels = np.zeros(mask.shape, np.int32)
    labels[rows, columns] = number
    number = number - 1
    places, spreads, areas = _moments(rows, columns, number, len(boxes))
    scale = np.array(strength.shape) / mask.shape
    near = strength[(rows * scale[0]).astype(int), (columns * scale[1]).astype(int)]
    peaks = np.zeros(len(boxes))
    np.maximum.at(peaks, number, near)
    clarity = np.clip(1 - UNCLEAR * threshold / np.maximum(peaks, 1e-9), 0, 1)
    colours = _appearance(frame[rows, columns], number, areas)
    return Blobs(labels, places, spreads, areas, clarity, colours, boxes, typical)


def _join_pieces(
    stats: NDArray[Any], typical: float
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Join small components to near ones that are not whole either.

    Args:
        stats: (components, 5) left, top, width, height and area.
        typical: Area of a typical object.

    Returns:
        The number of the blob of each component, from 1 for the largest, or 0; and the boxes.
    """
    areas = stats[:, 4].astype(float)
    boxes = np.concatenate([stats[:, :2], stats[:, :2] + stats[:, 2:4]], 1).astype(float)
    order = np.argsort(-areas, kind="stable")[:MOST_PIECES]
    group = np.arange(len(areas))
    for piece in order[::-1]:  # from the smallest
        if areas[piece] >= PIECE * typical:
            break
        gap = np.maximum(boxes[order, :2] - boxes[piece, 2:], boxes[piece, :2] - boxes[order, 2:])
        near = np.linalg.norm(np.maximum(gap, 0), axis=1)
        usable = (areas[order] > 0) & (order != piece)
        usable &= areas[order] + areas[piece] <= WHOLE * typical
        near[~usable | (near > PIECE_GAP * np.sqrt(typical))] = np.inf
        if np.isfinite(near).any():
            other = order[near.argmin()]
            group[group == piece] = other
            areas[other] += areas[piece]
            areas[piece] = 0
            boxes[other, :2] = np.minimum(boxes[other, :2], boxes[piece, :2])
            boxes[other, 2:] = np.maximum(boxes[other, 2:], boxes[piece, 2:])
    kept = order[areas[order] >= max(SMALLEST * typical, LEAST_PIXELS)]
    kept = kept[np.argsort(-areas[kept], kind="stable")][:MOST_BLOBS]
    numbers = np.zeros(len(areas), np.int32)
    numbers[kept] = np.arange(1, len(kept) + 1)
    return numbers[group], boxes[kept]
