"""Blobs: what stands out in each frame, one or several objects each, with its outline."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Pixels

MOST_BLOBS = 64  # of a frame
SMALLEST = 0.12  # of the area of a typical object
LEAST_PIXELS = 4

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
    """

    labels: Labels
    places: NDArray[np.float64]
    spreads: NDArray[np.float64]
    areas: NDArray[np.float64]
    clarity: NDArray[np.float64]
    colours: NDArray[np.float64]
    boxes: NDArray[np.float64]

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
    number = labels[rows, columns] - 1
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


def appearance(frame: Pixels, labels: Labels, areas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (blobs, 6) mean and standard deviation of the colours of each blob."""
    rows, columns = np.nonzero(labels)
    number = labels[rows, columns] - 1
    values = frame[rows, columns].astype(float)
    safe = np.maximum(areas, 1)
    features = []
    for i in range(3):
        mean = np.bincount(number, values[:, i], len(areas)) / safe
        square = np.bincount(number, values[:, i] ** 2, len(areas)) / safe
        features += [mean, np.sqrt(np.maximum(square - mean**2, 0))]
    return np.stack(features, 1)


def find_blobs(
    frame: Pixels, mask: NDArray[np.bool_], strength: Floats, threshold: float, smallest: float
) -> Blobs:
    """Find the blobs of a frame.

    Args:
        frame: (height, width, 3) uint8.
        mask: (height, width) pixels of objects.
        strength: (rows, columns) evidence, of any size.
        threshold: Evidence above which a pixel belongs to an object.
        smallest: Area in pixels; smaller blobs are left out.
    """
    count, raw, stats, _ = cv2.connectedComponentsWithStats(
        mask.astype(np.uint8), connectivity=8, ltype=cv2.CV_32S
    )
    sizes = stats[1:, cv2.CC_STAT_AREA]
    largest = np.argsort(-sizes, kind="stable")[:MOST_BLOBS]
    kept = largest[sizes[largest] >= max(smallest, LEAST_PIXELS)]
    lookup = np.zeros(count, np.int32)
    lookup[kept + 1] = np.arange(1, len(kept) + 1)
    labels: Labels = lookup[raw]
    places, spreads, areas = measure(labels, len(kept))
    height, width = labels.shape
    evidence = cv2.resize(strength, (width, height), interpolation=cv2.INTER_LINEAR)
    peaks = np.zeros(len(kept))
    rows, columns = np.nonzero(labels)
    np.maximum.at(peaks, labels[rows, columns] - 1, evidence[rows, columns])
    clarity = np.clip(1 - 0.75 * threshold / np.maximum(peaks, 1e-9), 0, 1)
    corner, extent = stats[1:, :2][kept], stats[1:, 2:4][kept]
    boxes = np.concatenate([corner, corner + extent], 1).astype(float)
    colours = appearance(frame, labels, areas)
    return Blobs(labels, places, spreads, areas, clarity, colours, boxes)
